//! What the headers of a request say: whether its body is to be read, and how.

use super::caller::Caller;
use super::coding::Coding;
use super::config::Compressed;
use super::parameters::Parameters;
use super::{Config, Dialect, Refusal, too_large};

/// What the headers of a request say about its body.
#[derive(Clone, Debug, Default)]
pub struct Head {
    /// `:method`.
    pub method: String,
    /// `:path`, with the query string.
    pub path: String,
    /// `content-type`, empty when there is none.
    pub content_type: String,
    /// `content-encoding`, empty when there is none; of several headers all.
    pub content_encoding: String,
    /// `content-length`, when it is a number.
    pub content_length: Option<u64>,
    /// The client wants another protocol on this connection (`upgrade`, or an extended CONNECT).
    pub upgrade: bool,
    /// Who asks.
    pub caller: Caller,
}

impl Head {
    /// Collects what matters from header names (lower case) and values.
    pub fn new<'a>(headers: impl IntoIterator<Item = (&'a str, &'a str)>, config: &Config) -> Self {
        let mut head = Self::default();
        for (name, value) in headers {
            match name {
                ":method" => head.method = value.into(),
                ":path" => head.path = value.into(),
                "content-type" => join(&mut head.content_type, value),
                "content-encoding" => join(&mut head.content_encoding, value),
                "content-length" => head.content_length = value.parse().ok(),
                "upgrade" | ":protocol" => head.upgrade = true,
                _ => head.caller.note(name, value, config),
            }
        }
        head
    }
}

/// A header that comes twice is a list of two, which nothing takes for a single value.
fn join(held: &mut String, value: &str) {
    if !held.is_empty() {
        held.push_str(", ");
    }
    held.push_str(value);
}

/// What to do with a request whose headers have come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// No inference request that this gateway reads: let it pass untouched, at once.
    Pass,
    /// Hold it until the body is complete, then read that.
    Read(Incoming),
    /// Answer it now.
    Refuse(Refusal),
}

/// A request whose body is to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// The API the client speaks.
    pub dialect: Dialect,
    pub(super) form: Form,
    pub(super) coding: Option<Coding>,
    pub(super) caller: Caller,
}

/// How a body is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Json,
    /// `multipart/form-data`, by its boundary.
    Parts(String),
}

/// Plain JSON, from nobody in particular.
impl From<Dialect> for Incoming {
    fn from(dialect: Dialect) -> Self {
        Self { dialect, form: Form::Json, coding: None, caller: Caller::default() }
    }
}

/// Decides from the headers. `no_body` says that the request ended with them.
pub fn plan(head: &Head, no_body: bool, config: &Config) -> Plan {
    if head.method != "POST" {
        return Plan::Pass;
    }
    let Some(dialect) = config.paths.dialect(&head.path) else { return Plan::Pass };
    match incoming(dialect, head, no_body, config) {
        Ok(incoming) => Plan::Read(incoming),
        Err(refusal) => Plan::Refuse(refusal),
    }
}

fn incoming(dialect: Dialect, head: &Head, no_body: bool, config: &Config) -> Result<Incoming, Refusal> {
    let refuse = |status, why: String| Err(Refusal::new(dialect, status, why));
    if head.upgrade {
        // WebSockets begin with GET. What follows a POST's upgrade has no end to wait for.
        return refuse(400, "a request for inference cannot ask for an upgrade".into());
    }
    if no_body {
        return refuse(400, "the request has no body".into());
    }
    let form = match form(&head.content_type) {
        Ok(Form::Parts(_)) if !dialect.uploads() => {
            return refuse(415, "this API takes no multipart bodies; send application/json".into());
        }
        Ok(form) => form,
        Err(why) => return refuse(415, why),
    };
    let unread = |why: &str| {
        let coding = &head.content_encoding;
        refuse(415, format!("content-encoding {coding:?} cannot be read here{why}; send the body as it is"))
    };
    let coding = match Coding::of(&head.content_encoding) {
        Ok(None) => None,
        Ok(Some(_)) if config.compressed == Compressed::Refuse => return unread(""),
        Ok(Some(_)) if form != Form::Json => return unread(" on multipart bodies"),
        Ok(coding) => coding,
        Err(()) => return unread(""),
    };
    if head.content_length.is_some_and(|length| length > config.max_body_bytes as u64) {
        return Err(too_large(dialect, config));
    }
    Ok(Incoming { dialect, form, coding, caller: head.caller.clone() })
}

/// The form of a body by its content type, or why it cannot be read. Without one it is JSON: engines that look at all
/// take it so.
fn form(content_type: &str) -> Result<Form, String> {
    if matches!(content_type, "application/json" | "") {
        return Ok(Form::Json);
    }
    let Some(read) = Parameters::read(content_type) else {
        return Err(format!("content-type {content_type:?} cannot be understood"));
    };
    let utf8 =
        |charset: &str| ["utf-8", "utf8", "us-ascii"].iter().any(|own| own.eq_ignore_ascii_case(charset));
    if let Some(charset) = read.get("charset").filter(|charset| !utf8(charset)) {
        return Err(format!("charset {charset:?} cannot be read here; send UTF-8"));
    }
    let kind = read.value.to_ascii_lowercase();
    let json =
        kind.strip_prefix("application/").is_some_and(|kind| kind == "json" || kind.ends_with("+json"));
    if json {
        return Ok(Form::Json);
    }
    if kind != "multipart/form-data" {
        return Err(format!("content-type {kind:?} cannot be read here; send application/json"));
    }
    let fits = |boundary: &&str| {
        (1..=70).contains(&boundary.len())
            && boundary.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ')
    };
    match read.get("boundary").filter(fits) {
        Some(boundary) => Ok(Form::Parts(boundary.to_owned())),
        None => Err("content-type multipart/form-data needs a boundary of 1 to 70 visible characters".into()),
    }
}
