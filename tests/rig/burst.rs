//! Requests at once through several gateways, and who chose for them.

use crate::{Gateway, MODELS, chat, fields, request_id};
use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use std::collections::BTreeMap;
use weir_engine::Engine;

/// What came of it.
#[derive(Debug)]
pub struct Burst {
    /// How many requests each engine got.
    pub each: Vec<usize>,
    /// Who chose, how often.
    pub by: BTreeMap<String, usize>,
}

/// Sends streams at once whose prompts nobody has seen, through the gateways in turn, and reads all to their ends. Nothing else may
/// be under way.
pub async fn burst(gateways: &[Gateway], engines: &[Engine], requests: usize, name: &str) -> Result<Burst> {
    engines.iter().for_each(Engine::clear_requests);
    let ids = try_join_all((0..requests).map(async |turn| {
        let at = turn % gateways.len();
        let mut body = chat(MODELS[0], &format!("{name} {turn:02} {}", "cold ".repeat(300)), 30);
        body["stream"] = true.into();
        let answer = gateways[at].chat(&body).await?;
        ensure!(answer.status() == 200, "request {turn} of {name}: {}", answer.status());
        let id = request_id(&answer);
        answer.bytes().await?;
        anyhow::Ok((at, id))
    }))
    .await?;
    let each: Vec<usize> = engines.iter().map(|engine| engine.requests().len()).collect();
    println!("{name}, {requests} at once: {each:?}");
    ensure!(each.iter().sum::<usize>() == requests, "{each:?}");
    Ok(Burst { each, by: chosen_by(gateways, &ids).await? })
}

/// Who chose for requests, each of the gateway at a place, and how often, as the access logs say.
pub async fn chosen_by(gateways: &[Gateway], ids: &[(usize, String)]) -> Result<BTreeMap<String, usize>> {
    let mut by = BTreeMap::new();
    for (at, id) in ids {
        let line = gateways[*at].logged(id).await?;
        *by.entry(fields(&line, "pick").get("by").cloned().unwrap_or_default()).or_default() += 1;
    }
    Ok(by)
}
