//! What `extract` would make of a request.

use super::Raw;
use serde::Serialize;
use weir::invalid::Invalid;
use weir::request::{self, Head, Plan, Reading, Refusal};
use weir::{rewrite, wire};
use weir_extract::Config;

/// What became of a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Request {
    /// `forward` for one that was read, `pass` for one that is none of this gateway's, or the status of a refusal.
    pub verdict: String,
    /// The model that serves it.
    pub model: Option<String>,
    /// The model asked for, where another serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rewritten_from: Option<String>,
    /// The client asks for a stream.
    pub stream: bool,
    /// The most tokens it lets the engine write; none where it sets no bound.
    pub max_output_tokens: Option<u32>,
    /// The prompt in the order in which the engine sees it.
    pub prompt: Vec<String>,
    /// Chained hashes of the prompt's blocks.
    pub blocks: Vec<String>,
    /// Estimated tokens of the prompt.
    pub prompt_tokens: Option<u32>,
    /// The API the client speaks.
    pub dialect: Option<&'static str>,
    /// Why it is refused.
    pub reason: Option<String>,
    /// The model as the header has it, where that differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_header: Option<String>,
    /// The model that it is an adapter of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_model: Option<String>,
    /// How hard the model shall think.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// The most tokens it may think.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking_tokens: Option<u32>,
    /// Milliseconds to the first token that the client asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo_ttft_ms: Option<u32>,
    /// Milliseconds per further token that it asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo_tpot_ms: Option<u32>,
    /// How often it was tried before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Milliseconds that the client gives it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u32>,
    /// vLLM's priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// The objective.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objective: Option<String>,
    /// The service tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// Hash of the tenant's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Hash of the session's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Hash of the user's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// Explains a request, with the configuration of `extract`. Of several models that share the work, one without a session is
/// explained with any.
pub fn request(raw: &Raw, config: &Config) -> Result<Request, Invalid> {
    let rules = config.rules()?;
    Ok(explain(raw, &config.request, &rules))
}

fn explain(raw: &Raw, config: &request::Config, rules: &rewrite::Rules) -> Request {
    let line = [(":method", raw.method.as_str()), (":path", raw.path.as_str())];
    let headers = raw.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let head = Head::new(line.into_iter().chain(headers), config);
    let incoming = match request::plan(&head, raw.body.is_empty(), config) {
        Plan::Pass => return Request { verdict: "pass".into(), ..Request::default() },
        Plan::Refuse(refusal) => return refused(refusal),
        Plan::Read(incoming) => incoming,
    };
    let target = |model: &str, session: Option<u64>| {
        rules.choose(model, || session.unwrap_or_default()).map(|chosen| chosen.model.to_owned())
    };
    let read = incoming.decode(&raw.body, config);
    let read = read.map(|body| incoming.read_as(&body, config, target).map(told));
    read.flatten().unwrap_or_else(refused)
}

fn told(reading: Reading<'_>) -> Request {
    let Reading { facts, prompt, blocks, .. } = reading;
    let hash = |hash: Option<u64>| Some(wire::hex(&[hash?]));
    let header = facts.model.as_deref().map(|name| wire::encode(name).into_owned());
    Request {
        verdict: "forward".into(),
        model_header: header.filter(|header| facts.model.as_ref() != Some(header)),
        stream: facts.stream,
        max_output_tokens: facts.max_output_tokens,
        prompt: prompt.iter().map(ToString::to_string).collect(),
        blocks: blocks.iter().map(|block| wire::hex(&[*block])).collect(),
        prompt_tokens: Some(facts.prompt_tokens),
        dialect: Some(facts.dialect.name()),
        reason: None,
        base_model: facts.base_model,
        effort: facts.effort,
        thinking_tokens: facts.thinking_tokens,
        priority: facts.priority,
        slo_ttft_ms: facts.slo_ttft_ms,
        slo_tpot_ms: facts.slo_tpot_ms,
        retries: Some(facts.retries).filter(|retries| *retries > 0),
        timeout_ms: facts.timeout_ms,
        objective: facts.objective,
        tier: facts.tier,
        tenant: hash(facts.tenant),
        session: hash(facts.session),
        user: hash(facts.user),
        model: facts.model,
        rewritten_from: facts.rewritten_from,
    }
}

fn refused(refusal: Refusal) -> Request {
    let Refusal { status, message, .. } = refusal;
    Request { verdict: status.to_string(), reason: Some(message), ..Request::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(path: &str, body: &str) -> Request {
        let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        let raw = Raw { method: "POST".into(), path: path.into(), headers, body: body.into() };
        request(&raw, &Config::default()).unwrap()
    }

    #[test]
    fn a_chat_is_forwarded_with_its_facts() {
        let long = "so ".repeat(30);
        let body = format!(
            r#"{{"tools":[{{"type":"function","function":{{"name":"tide"}}}}],"n":2,"max_tokens":5,"stream":true,
               "messages":[{{"content":"{long}","role":"user"}}],"model":"m-1"}}"#
        );
        let told = explained("/v1/chat/completions", &body);
        assert_eq!((told.verdict.as_str(), told.model.as_deref()), ("forward", Some("m-1")));
        assert_eq!((told.stream, told.max_output_tokens, told.dialect), (true, Some(10), Some("chat")));
        assert_eq!(told.prompt, ["[tools: tide]".to_owned(), format!("user: {long}")]);
        assert!(
            !told.blocks.is_empty() && told.blocks.iter().all(|block| block.len() == 16),
            "{:?}",
            told.blocks
        );
    }

    #[test]
    fn refusals_and_passes_tell_nothing_else() {
        let refused = explained("/v1/chat/completions", r#"{"messages":[]}"#);
        assert_eq!((refused.verdict.as_str(), refused.dialect, refused.prompt.len()), ("400", None, 0));
        assert!(refused.reason.unwrap().starts_with("model: missing"));
        assert_eq!(explained("/v1/chat/completions", "").verdict, "400");
        assert_eq!(explained("/v1/files", "{}").verdict, "pass");
        let line = serde_json::to_string(&explained("/v1/files", "")).unwrap();
        assert!(
            line.starts_with(r#"{"verdict":"pass","model":null,"stream":false,"max_output_tokens":null"#),
            "{line}"
        );
    }
}
