//! What `extract` would make of a request.

use super::Raw;
use serde::Serialize;
use weir::invalid::Invalid;
use weir::request::{self, Head, Plan, Refusal};
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
    let head = Head::new(line.into_iter().chain(headers));
    let read = match request::plan(&head, raw.body.is_empty(), config) {
        Plan::Pass => return Request { verdict: "pass".into(), ..Request::default() },
        Plan::Refuse(refusal) => return refused(refusal),
        Plan::Read(dialect) => {
            let header = |wanted: &str| {
                let header = raw.headers.iter().find(|(name, _)| name == wanted);
                header.map(|(_, value)| value.as_str())
            };
            let key = || rules.session(header).map_or(0, rewrite::key);
            let target = |model: &str| rules.choose(model, key).map(|chosen| chosen.model.to_owned());
            request::read_as(dialect, &raw.body, config, target)
        }
    };
    match read {
        Err(refusal) => refused(refusal),
        Ok(reading) => Request {
            verdict: "forward".into(),
            model: reading.facts.model,
            rewritten_from: reading.facts.rewritten_from,
            stream: reading.facts.stream,
            max_output_tokens: reading.facts.max_output_tokens,
            prompt: reading.prompt.iter().map(ToString::to_string).collect(),
            blocks: reading.blocks.iter().map(|block| wire::hex(&[*block])).collect(),
            prompt_tokens: Some(reading.facts.prompt_tokens),
            dialect: Some(reading.facts.dialect.name()),
            reason: None,
        },
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
