//! Anthropic's answers, whole and streamed. `input_tokens` leaves out those read from the cache.

use crate::form::{Form, Usage};

pub(crate) fn whole(form: &Form, text: &str, usage: Usage) -> String {
    let content = format!(r#"{{"type":"text","text":"{text}"}}"#);
    message(form, &content, r#""max_tokens""#, usage)
}

pub(crate) fn head(form: &Form, usage: Usage) -> String {
    let message = message(form, "", "null", Usage { output: 1, ..usage });
    let mut head = event("message_start", &format!(r#""message":{message}"#));
    head += &event("content_block_start", r#""index":0,"content_block":{"type":"text","text":""}"#);
    head += "event: ping\ndata: {\"type\":\"ping\"}\n\n";
    head
}

pub(crate) fn token(text: &str) -> String {
    let delta = format!(r#""index":0,"delta":{{"type":"text_delta","text":"{text}"}}"#);
    event("content_block_delta", &delta)
}

pub(crate) fn tail(usage: Usage) -> String {
    let mut tail = event("content_block_stop", r#""index":0"#);
    let output = usage.output;
    let delta = format!(
        r#""delta":{{"stop_reason":"max_tokens","stop_sequence":null}},"usage":{{"output_tokens":{output}}}"#
    );
    tail += &event("message_delta", &delta);
    tail += "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    tail
}

fn message(form: &Form, content: &str, stop_reason: &str, usage: Usage) -> String {
    let Form { id, model, .. } = form;
    let Usage { prompt, cached, output } = usage;
    let input = prompt - cached;
    let usage = format!(
        r#"{{"input_tokens":{input},"cache_creation_input_tokens":0,"cache_read_input_tokens":{cached},"output_tokens":{output}}}"#
    );
    format!(
        r#"{{"id":"msg_{id}","type":"message","role":"assistant","content":[{content}],"model":{model},"stop_reason":{stop_reason},"stop_sequence":null,"usage":{usage}}}"#
    )
}

fn event(kind: &str, fields: &str) -> String {
    format!("event: {kind}\ndata: {{\"type\":\"{kind}\",{fields}}}\n\n")
}
