//! OpenAI's answers, whole and streamed, as vLLM writes them.
//!
//! Written as templates, since a chunk a token is the hot path; the words need no escaping.

use crate::form::{Api, Form, Usage};

pub(crate) fn whole(form: &Form, text: &str, usage: Usage) -> String {
    let (object, answer) = match form.api {
        Api::Completions => ("text_completion", format!(r#""text":"{text}""#)),
        Api::Chat | Api::Messages => (
            "chat.completion",
            format!(r#""message":{{"role":"assistant","content":"{text}","refusal":null,"reasoning":null}}"#),
        ),
    };
    let choice =
        format!(r#"{{"index":0,{answer},"logprobs":null,"finish_reason":"length","stop_reason":null}}"#);
    object_with(form, object, &choice, &usage_json(usage))
}

pub(crate) fn head(form: &Form) -> String {
    chunk(form, r#""delta":{"role":"assistant","content":""}"#, "null")
}

pub(crate) fn token(form: &Form, text: &str) -> String {
    match form.api {
        Api::Completions => chunk(form, &format!(r#""text":"{text}""#), "null"),
        Api::Chat | Api::Messages => chunk(form, &format!(r#""delta":{{"content":"{text}"}}"#), "null"),
    }
}

pub(crate) fn tail(form: &Form, usage: Usage) -> String {
    let empty = if form.api == Api::Completions { r#""text":"""# } else { r#""delta":{}"# };
    let mut tail = chunk(form, empty, r#""length""#);
    if form.include_usage {
        tail += &event(&object_with(form, chunk_object(form), "", &usage_json(usage)));
    }
    tail += "data: [DONE]\n\n";
    tail
}

fn chunk(form: &Form, delta: &str, finish: &str) -> String {
    let choice = format!(r#"{{"index":0,{delta},"logprobs":null,"finish_reason":{finish}}}"#);
    event(&object_with(form, chunk_object(form), &choice, ""))
}

fn event(data: &str) -> String {
    format!("data: {data}\n\n")
}

fn chunk_object(form: &Form) -> &'static str {
    if form.api == Api::Completions { "text_completion" } else { "chat.completion.chunk" }
}

fn object_with(form: &Form, object: &str, choice: &str, usage: &str) -> String {
    let Form { id, created, model, .. } = form;
    let prefix = if form.api == Api::Completions { "cmpl" } else { "chatcmpl" };
    format!(
        r#"{{"id":"{prefix}-{id}","object":"{object}","created":{created},"model":{model},"choices":[{choice}]{usage}}}"#
    )
}

fn usage_json(usage: Usage) -> String {
    let Usage { prompt, cached, output } = usage;
    let total = prompt + output;
    format!(
        r#","usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{output},"prompt_tokens_details":{{"cached_tokens":{cached}}}}}"#
    )
}
