//! What of a request's body becomes tokens, as vLLM reads it.
//!
//! Requests whose prompt an engine makes of more than text (images, sounds), by rules of its own (responses, another
//! template), or of several prompts have no tokens here, and are chosen for by what was sent before.

use super::Unread;
use super::template::{Chat, Template};
use minijinja::value::{Value, ValueKind};

/// What is to be tokenised.
#[derive(Debug, PartialEq)]
pub(super) enum Prompt {
    /// Tokens already.
    Tokens(Vec<u32>),
    /// Text, and whether the tokenizer adds its special tokens.
    Text { text: String, special: bool },
}

/// The prompt of a body.
pub(super) fn prompt(body: &Value, template: Option<&Template>) -> Result<Prompt, Unread> {
    if body.kind() != ValueKind::Map {
        return Err(Unread::Body);
    }
    let has = |name: &str| field(body, name).is_some();
    if [
        "continue_final_message",
        "truncate_prompt_tokens",
        "chat_template",
        "documents",
        "mm_processor_kwargs",
    ]
    .iter()
    .any(|name| field(body, name).is_some_and(|value| value.is_true()))
    {
        return Err(Unread::Unsupported);
    }
    if has("messages") {
        let template = template.ok_or(Unread::NoTemplate)?;
        let text = template.render(chat(body, template)?).map_err(|error| {
            log::debug!("chat template: {error}");
            Unread::Template
        })?;
        let special = field(body, "add_special_tokens").is_some_and(|value| value.is_true());
        return Ok(Prompt::Text { text, special });
    }
    let special = field(body, "add_special_tokens").is_none_or(|value| value.is_true());
    let prompt = ["prompt", "token_ids", "text", "input_ids"].into_iter().find_map(|name| field(body, name));
    written(&prompt.ok_or(Unread::Unsupported)?, special)
}

/// A prompt that is no chat: text, tokens, or a list of one of these.
fn written(prompt: &Value, special: bool) -> Result<Prompt, Unread> {
    if let Some(text) = prompt.as_str() {
        return Ok(Prompt::Text { text: text.to_owned(), special });
    }
    if prompt.kind() != ValueKind::Seq {
        return Err(Unread::Unsupported);
    }
    let items: Vec<Value> = prompt.try_iter().map_err(|_| Unread::Body)?.collect();
    match items.as_slice() {
        [] => Err(Unread::Unsupported),
        [only] if only.kind() != ValueKind::Number => written(only, special),
        tokens => {
            let token = |token: &Value| token.as_i64().and_then(|token| u32::try_from(token).ok());
            tokens.iter().map(token).collect::<Option<_>>().map(Prompt::Tokens).ok_or(Unread::Unsupported)
        }
    }
}

fn chat(body: &Value, template: &Template) -> Result<Chat, Unread> {
    let mut messages = Vec::new();
    if let Some(system) = field(body, "system") {
        // Anthropic's: it stands beside the messages.
        let text = text_of(&system, "")?;
        messages.push(map([("role", "system".into()), ("content", content(text, template))]));
    }
    let all =
        field(body, "messages").filter(|messages| messages.kind() == ValueKind::Seq).ok_or(Unread::Body)?;
    for message in all.try_iter().map_err(|_| Unread::Body)? {
        messages.push(self::message(&message, template)?);
    }
    let mut more = Vec::new();
    if let Some(effort) = field(body, "reasoning_effort") {
        more.push(("reasoning_effort".to_owned(), effort));
    }
    let mut add_generation_prompt = field(body, "add_generation_prompt").is_none_or(|value| value.is_true());
    if let Some(options) = field(body, "chat_template_kwargs") {
        for name in options.try_iter().map_err(|_| Unread::Body)? {
            let value = options.get_item(&name).map_err(|_| Unread::Body)?;
            match name.as_str().ok_or(Unread::Body)? {
                "add_generation_prompt" => add_generation_prompt = value.is_true(),
                // These are the template's, or the engine's.
                "messages" | "tools" | "chat_template" | "tokenize" | "documents" => {
                    return Err(Unread::Unsupported);
                }
                name => more.push((name.to_owned(), value)),
            }
        }
    }
    let tools = field(body, "tools").map(|tools| self::tools(&tools)).transpose()?.flatten();
    Ok(Chat { messages, tools, add_generation_prompt, more })
}

/// A message as the template gets it: its content as text, or as parts where it looks for these; arguments of calls as
/// values.
fn message(message: &Value, template: &Template) -> Result<Value, Unread> {
    let role = field(message, "role").ok_or(Unread::Body)?;
    let mut fields = vec![("role".to_owned(), role)];
    let said = field(message, "content");
    let text = said.as_ref().map(|said| text_of(said, "\n")).transpose()?;
    match (text, said) {
        (Some(text), Some(said)) if !template.wants_parts || said.as_str().is_some() => {
            fields.push(("content".into(), content(text, template)));
        }
        (Some(_), Some(said)) => fields.push(("content".into(), said)),
        // An answer that was calls only.
        _ => {
            let nothing = if template.wants_parts { Vec::<Value>::new().into() } else { "".into() };
            fields.push(("content".into(), nothing));
        }
    }
    for name in ["name", "tool_call_id", "reasoning_content", "reasoning"] {
        fields.extend(field(message, name).map(|value| (name.to_owned(), value)));
    }
    if let Some(calls) = field(message, "tool_calls") {
        let calls = calls.try_iter().map_err(|_| Unread::Body)?.map(|call| self::call(&call));
        fields.push(("tool_calls".into(), calls.collect::<Result<Vec<_>, _>>()?.into()));
    }
    Ok(Value::from_pairs(fields))
}

/// Text as content, in the form that the template wants.
fn content(text: String, template: &Template) -> Value {
    match template.wants_parts {
        true => vec![map([("type", "text".into()), ("text", text.into())])].into(),
        false => text.into(),
    }
}

/// The text of a content: itself, or of its parts, which are all of them text.
fn text_of(content: &Value, between: &str) -> Result<String, Unread> {
    if let Some(text) = content.as_str() {
        return Ok(text.to_owned());
    }
    if content.kind() != ValueKind::Seq {
        return Err(Unread::Body);
    }
    let mut texts = Vec::new();
    for part in content.try_iter().map_err(|_| Unread::Body)? {
        let kind = field(&part, "type");
        let is_text =
            kind.as_ref().and_then(Value::as_str).is_some_and(|kind| ["text", "input_text"].contains(&kind));
        let text = field(&part, "text").filter(|_| is_text).ok_or(Unread::Media)?;
        texts.push(text.as_str().ok_or(Unread::Body)?.to_owned());
    }
    Ok(texts.join(between))
}

/// A call whose arguments are text becomes one whose arguments are values: templates write them themselves.
fn call(call: &Value) -> Result<Value, Unread> {
    let function = field(call, "function").ok_or(Unread::Unsupported)?;
    let arguments = field(&function, "arguments");
    let arguments = match arguments.as_ref().and_then(Value::as_str) {
        Some("") => map([]),
        Some(text) => serde_json::from_str::<Value>(text).map_err(|_| Unread::Body)?,
        None => arguments.unwrap_or_else(|| map([])),
    };
    let function = with(&function, "arguments", arguments)?;
    with(call, "function", function)
}

/// Tools in the form in which vLLM hands them on: the fields that it knows first, and those that are missing as nothing.
fn tools(tools: &Value) -> Result<Option<Value>, Unread> {
    let tool = |tool: Value| {
        let function = field(&tool, "function").ok_or(Unread::Unsupported)?;
        let mut fields: Vec<(String, Value)> = Vec::new();
        for name in ["name", "description", "parameters"] {
            fields.push((name.to_owned(), field(&function, name).unwrap_or_else(|| Value::from(()))));
        }
        for name in function.try_iter().map_err(|_| Unread::Body)? {
            let value = function.get_item(&name).map_err(|_| Unread::Body)?;
            let name = name.to_string();
            if fields.iter().all(|(own, _)| *own != name) {
                fields.push((name, value));
            }
        }
        let kind = field(&tool, "type").unwrap_or_else(|| "function".into());
        Ok(map([("type", kind), ("function", Value::from_pairs(fields))]))
    };
    let tools: Vec<Value> =
        tools.try_iter().map_err(|_| Unread::Body)?.map(tool).collect::<Result<_, Unread>>()?;
    Ok((!tools.is_empty()).then(|| tools.into()))
}

/// A field that is there and not null.
pub(super) fn field(value: &Value, name: &str) -> Option<Value> {
    value.get_attr(name).ok().filter(|value| !value.is_none() && !value.is_undefined())
}

fn map<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Value::from_pairs(fields)
}

/// The same map with another value in one place.
fn with(map: &Value, name: &str, value: Value) -> Result<Value, Unread> {
    let mut fields: Vec<(String, Value)> = Vec::new();
    for key in map.try_iter().map_err(|_| Unread::Body)? {
        let own = map.get_item(&key).map_err(|_| Unread::Body)?;
        fields.push((key.to_string(), own));
    }
    match fields.iter_mut().find(|(own, _)| own == name) {
        Some((_, own)) => *own = value,
        None => fields.push((name.to_owned(), value)),
    }
    Ok(Value::from_pairs(fields))
}
