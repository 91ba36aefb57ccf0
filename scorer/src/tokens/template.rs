//! Chat templates: Jinja as Hugging Face runs it.
//!
//! Blocks leave no line behind (`trim_blocks`, `lstrip_blocks`), loops may be broken, values have Python's methods, and
//! there are `raise_exception`, `strftime_now` and a `tojson` that writes as Python does and not for HTML.

use anyhow::Context;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind};
use std::fmt::Write;

/// The name of the one template of an environment.
const NAME: &str = "chat";

/// A chat template that was read.
#[derive(Debug)]
pub(super) struct Template {
    environment: Environment<'static>,
    bos_token: Option<String>,
    eos_token: Option<String>,
    /// It looks into the parts of a message, and gets none as plain text.
    pub(super) wants_parts: bool,
}

/// What a template is given.
#[derive(Debug)]
pub(super) struct Chat {
    pub(super) messages: Vec<Value>,
    pub(super) tools: Option<Value>,
    pub(super) add_generation_prompt: bool,
    /// What the request adds: `chat_template_kwargs`.
    pub(super) more: Vec<(String, Value)>,
}

impl Template {
    pub(super) fn new(
        source: &str,
        bos_token: Option<String>,
        eos_token: Option<String>,
    ) -> anyhow::Result<Self> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
        environment.set_syntax(syntax);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |why: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, why))
        });
        environment.add_function("strftime_now", |format: String| now(&format));
        environment.add_filter("tojson", to_json);
        environment
            .add_template_owned(NAME, source.to_owned())
            .context("the chat template cannot be read")?;
        Ok(Self { environment, bos_token, eos_token, wants_parts: wants_parts(source) })
    }

    /// The prompt of a chat.
    pub(super) fn render(&self, chat: Chat) -> Result<String, Error> {
        let mut values: Vec<(String, Value)> = vec![
            ("messages".into(), chat.messages.into()),
            ("add_generation_prompt".into(), chat.add_generation_prompt.into()),
            ("tools".into(), chat.tools.unwrap_or_else(|| Value::from(()))),
            ("documents".into(), Value::from(())),
        ];
        let special = [("bos_token", &self.bos_token), ("eos_token", &self.eos_token)];
        values.extend(
            special.into_iter().filter_map(|(name, token)| Some((name.into(), token.clone()?.into()))),
        );
        values.extend(chat.more);
        self.environment.get_template(NAME)?.render(Value::from_pairs(values))
    }
}

/// Whether a template loops over the content of a message, by which vLLM tells how it is to be given.
fn wants_parts(source: &str) -> bool {
    let source: String = source.split_whitespace().collect::<Vec<_>>().join(" ");
    let loops = source.split("for ").skip(1).filter_map(|rest| rest.split_once(" in ").map(|(_, over)| over));
    let over = |over: &str| {
        let end = over.find([' ', '%', '|']).unwrap_or(over.len());
        let over = over.get(..end).unwrap_or_default();
        over.ends_with(".content") || over.ends_with("['content']") || over.ends_with("[\"content\"]")
    };
    let mut loops = loops;
    loops.any(over)
}

fn now(format: &str) -> Result<String, Error> {
    let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
    jiff::fmt::strtime::format(format, &now)
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}")))
}

/// `tojson` as Python's `json.dumps(…, ensure_ascii=False)` writes.
fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent = options.get::<Option<usize>>("indent")?;
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    options.get::<Option<bool>>("ensure_ascii")?;
    options.assert_all_used()?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        _ => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let mut json = Json { out: String::new(), indent, sort_keys, item, key };
    json.value(value, 0)?;
    Ok(json.out)
}

struct Json {
    out: String,
    indent: Option<usize>,
    sort_keys: bool,
    item: String,
    key: String,
}

impl Json {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        const DEEPEST: usize = 100;
        if depth > DEEPEST {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson: too deep"));
        }
        match value.kind() {
            ValueKind::Undefined => return Err(Error::new(ErrorKind::UndefinedError, "tojson: undefined")),
            ValueKind::None => self.out += "null",
            ValueKind::Bool => self.out += if value.is_true() { "true" } else { "false" },
            ValueKind::Number => {
                let _ = write!(self.out, "{value}");
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.list(('{', '}'), &keys, depth, |own, name| {
                    own.text(&name.to_string());
                    let between = own.key.clone();
                    own.out += &between;
                    own.value(&value.get_item(name)?, depth + 1)
                })?;
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list(('[', ']'), &items, depth, |own, item| own.value(item, depth + 1))?;
            }
            _ => self.text(&value.to_string()),
        }
        Ok(())
    }

    fn list(
        &mut self,
        (open, close): (char, char),
        items: &[Value],
        depth: usize,
        mut one: impl FnMut(&mut Self, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                let between = self.item.clone();
                self.out += &between;
            }
            self.line(depth + 1);
            one(self, item)?;
        }
        if !items.is_empty() {
            self.line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent.min(16).saturating_mul(depth)));
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for letter in text.chars() {
            match letter {
                '"' => self.out += "\\\"",
                '\\' => self.out += "\\\\",
                '\n' => self.out += "\\n",
                '\r' => self.out += "\\r",
                '\t' => self.out += "\\t",
                '\u{8}' => self.out += "\\b",
                '\u{c}' => self.out += "\\f",
                control if control < ' ' => {
                    let _ = write!(self.out, "\\u{:04x}", u32::from(control));
                }
                other => self.out.push(other),
            }
        }
        self.out.push('"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(source: &str, messages: serde_json::Value) -> Result<String, Error> {
        let template = Template::new(source, Some("<s>".into()), None).unwrap();
        let messages: Value = serde_json::from_value(messages).unwrap();
        let messages = messages.try_iter().unwrap().collect();
        template.render(Chat { messages, tools: None, add_generation_prompt: true, more: Vec::new() })
    }

    #[test]
    fn a_template_is_run_as_python_runs_it() {
        let source = "{{- bos_token }}\n{%- for message in messages %}\n    {%- if message.role == 'x' %}{% continue %}{% endif %}\n\
                      {{ '<' + message['role'].upper() + '>' + message.content.strip().split('\\n')[-1] }}\n{% endfor %}\n\
                      {% if add_generation_prompt %}\n<assistant>\n{% endif %}";
        let messages = json!([{"role": "user", "content": " a\nb & <c> "}, {"role": "x", "content": ""}]);
        assert_eq!(render(source, messages).unwrap(), "<s><USER>b & <c>\n<assistant>\n");
    }

    #[test]
    fn json_is_written_as_python_writes_it() {
        let value = r#"{"b": [1, 2.5, null, true], "a": {"é\"\n": "<&>"}, "c": {}, "d": []}"#;
        let template = |options: &str| format!("{{{{ messages[0] | tojson{options} }}}}");
        let messages = || vec![serde_json::from_str::<Value>(value).unwrap()];
        let render = |source: &str| {
            let chat =
                Chat { messages: messages(), tools: None, add_generation_prompt: false, more: Vec::new() };
            Template::new(source, None, None).unwrap().render(chat).unwrap()
        };
        assert_eq!(render(&template("")), value, "in the order of the request");
        assert_eq!(
            render(&template("(sort_keys=true, separators=(',', ':'))")),
            r#"{"a":{"é\"\n":"<&>"},"b":[1,2.5,null,true],"c":{},"d":[]}"#
        );
        assert!(render(&template("(indent=2)")).starts_with("{\n  \"b\": [\n    1,\n    2.5,"));
    }

    #[test]
    fn what_a_template_refuses_is_an_error() {
        let error = render("{{ raise_exception('roles must alternate') }}", json!([])).unwrap_err();
        assert!(error.to_string().contains("roles must alternate"), "{error}");
        assert!(Template::new("{% for %}", None, None).is_err());
    }

    #[test]
    fn the_date_of_today_can_be_written() {
        let date = render("{{ strftime_now('%d %b %Y') }}", json!([])).unwrap();
        assert_eq!(date.split(' ').count(), 3);
        assert!(date.ends_with(|last: char| last.is_ascii_digit()), "{date}");
    }

    #[test]
    fn templates_that_loop_over_parts_are_told_from_those_that_do_not() {
        for parts in [
            "{% for part in message.content %}",
            "{%- for content in message['content'] %}",
            "{% for item in m[\"content\"] | selectattr('type') %}",
        ] {
            assert!(wants_parts(parts), "{parts}");
        }
        assert!(!wants_parts("{% for message in messages %}{{ message.content }}{% endfor %}"));
    }
}
