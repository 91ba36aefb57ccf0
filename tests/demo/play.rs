//! Plays the script: a few users at a time, each takes the next turn when it has read its last answer.

use crate::client::{Answer, Client};
use crate::script::{Script, Step};
use crate::why::Why;
use anyhow::Result;
use rig::Gateway;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;

/// Users of each model at the same time: light load, where the choice decides about the cache and not the queue.
pub(crate) const USERS: usize = 2;
/// What a user needs to read an answer.
const PAUSE: Duration = Duration::from_millis(100);

/// One pass of the script through one gateway.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) rows: Vec<Row>,
    /// The endpoints of each pool.
    pub(crate) endpoints: [Vec<String>; 2],
}

/// One request.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) run: &'static str,
    /// Counted from one, as is `turn`.
    pub(crate) conversation: usize,
    pub(crate) turn: usize,
    pub(crate) model: &'static str,
    /// The endpoint that served it, as Envoy says.
    pub(crate) endpoint: String,
    pub(crate) why: Why,
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) ttft_ms: Option<f64>,
    /// Zero when the connection failed.
    pub(crate) status: u16,
    pub(crate) problem: Option<String>,
}

/// The next turns with one model.
type Queue = Mutex<std::vec::IntoIter<Step>>;
/// The messages of each conversation so far.
type Talks = Vec<Arc<Mutex<Vec<Value>>>>;

/// Sends everything, and hands over each request when it is done.
pub(crate) async fn play(
    run: &'static str,
    gateway: &Gateway,
    script: &Arc<Script>,
    mut each: impl FnMut(&Row) -> Result<()>,
) -> Result<Run> {
    let client = Client { http: gateway.client.clone(), url: gateway.url.clone() };
    let system = |text: &str| Arc::new(Mutex::new(vec![json!({"role": "system", "content": text})]));
    let talks: Arc<Talks> = Arc::new(script.conversations.iter().map(|talk| system(talk.system)).collect());
    let (tell, mut told) = mpsc::unbounded_channel();
    let mut users = JoinSet::new();
    for order in &script.orders {
        let queue: Arc<Queue> = Arc::new(Mutex::new(order.clone().into_iter()));
        for _ in 0..USERS {
            users.spawn(user(client.clone(), queue.clone(), talks.clone(), script.clone(), tell.clone()));
        }
    }
    drop(tell);
    let mut rows = Vec::new();
    // Here and not by the users: to look up the access log takes longer than a request.
    while let Some((step, answer)) = told.recv().await {
        let row = explain(run, gateway, script, step, answer).await;
        each(&row)?;
        rows.push(row);
    }
    while let Some(ended) = users.join_next().await {
        ended?;
    }
    let endpoints =
        [0, 1].map(|pool: usize| gateway.engines[pool].iter().map(|e| e.addr.to_string()).collect());
    Ok(Run { rows, endpoints })
}

async fn user(
    client: Client,
    queue: Arc<Queue>,
    talks: Arc<Talks>,
    script: Arc<Script>,
    tell: mpsc::UnboundedSender<(Step, Result<Answer>)>,
) {
    loop {
        // The queue is held until the conversation is free, so that its turns cannot overtake each other.
        let mut next = queue.lock().await;
        let Some(step) = next.next() else { return };
        let mut messages = talks[step.conversation].clone().lock_owned().await;
        drop(next);
        let talk = &script.conversations[step.conversation];
        messages.push(json!({"role": "user", "content": talk.turns[step.turn]}));
        let answer = client.ask(talk.model, &messages).await;
        if let Ok(answer) = &answer
            && answer.status == 200
        {
            messages.push(json!({"role": "assistant", "content": answer.text}));
        }
        if tell.send((step, answer)).is_err() {
            return;
        }
        drop(messages);
        tokio::time::sleep(PAUSE).await;
    }
}

/// Puts together what the client saw and what the gateway wrote down.
async fn explain(
    run: &'static str,
    gateway: &Gateway,
    script: &Script,
    step: Step,
    answer: Result<Answer>,
) -> Row {
    let talk = &script.conversations[step.conversation];
    let (answer, failed) = match answer {
        Ok(answer) => (answer, None),
        Err(error) => (Answer::default(), Some(format!("the connection failed: {error:#}"))),
    };
    let problem = failed.or_else(|| answer.problem());
    let (logged, unlogged) = match answer.request_id.as_str() {
        "" => (Value::Null, Some("the answer has no x-request-id".into())),
        id => match gateway.logged(id).await {
            Ok(line) => (line, None),
            Err(error) => (Value::Null, Some(format!("no line in the access log: {error:#}"))),
        },
    };
    Row {
        run,
        conversation: step.conversation + 1,
        turn: step.turn + 1,
        model: talk.model,
        endpoint: logged["upstream"].as_str().unwrap_or("-").into(),
        why: Why::read(&logged, talk.shared_tokens()),
        prompt_tokens: answer.usage.map_or(0, |usage| usage.prompt_tokens),
        cached_tokens: answer.usage.map_or(0, |usage| usage.cached_tokens),
        ttft_ms: answer.ttft_ms,
        status: answer.status,
        problem: problem.or(unlogged),
    }
}
