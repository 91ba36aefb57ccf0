//! A request's body as the tokens that its engine will see.
//!
//! An engine's cache is kept by tokens, so to know what it holds of a prompt the prompt must be turned into tokens just
//! as the engine does: by the model's chat template and its tokenizer. Both are read from the files that the engine reads.
//! [`of_body`] does it, and where it cannot it says why ([`Unread`]): then the choice is made by what was sent before.
//!
//! It takes the longer the longer the prompt is, and for a long one more than a gateway waits. So [`Reader`] does it on
//! threads of its own, a few at a time, and not longer than it may. What would take longer is not begun (`pace.rs`), and one
//! thread is kept for short prompts.

mod body;
mod config;
mod pace;
mod template;

pub use config::Config;

use crate::clock::Clock;
use anyhow::Context;
use body::Prompt;
use minijinja::value::Value;
use pace::Pace;
use serde_json::Value as Json;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use template::Template;
use tokenizers::Tokenizer;
use tokio::sync::Semaphore;
use weir::kv;

/// Why a body has no tokens here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// There is none: the gateway did not send it along.
    Absent,
    /// It is longer than is read, or than can be read in time.
    TooLong,
    /// It is not JSON, or not a request.
    Body,
    /// Its prompt is not only text.
    Media,
    /// It asks for something that the engine does by rules of its own.
    Unsupported,
    /// It is a chat, and no chat template is known.
    NoTemplate,
    /// The chat template refuses it.
    Template,
    /// The tokenizer failed.
    Tokenizer,
    /// It took too long.
    Late,
}

impl Unread {
    /// All of them, as metrics name them.
    pub const NAMES: [&str; 9] = [
        "absent",
        "too_long",
        "body",
        "media",
        "unsupported",
        "no_template",
        "template",
        "tokenizer",
        "late",
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        let [absent, too_long, body, media, unsupported, no_template, template, tokenizer, late] =
            Self::NAMES;
        match self {
            Self::Absent => absent,
            Self::TooLong => too_long,
            Self::Body => body,
            Self::Media => media,
            Self::Unsupported => unsupported,
            Self::NoTemplate => no_template,
            Self::Template => template,
            Self::Tokenizer => tokenizer,
            Self::Late => late,
        }
    }
}

/// A model's tokenizer and chat template.
#[derive(Debug)]
pub struct Model {
    tokenizer: Tokenizer,
    template: Option<Template>,
}

impl Model {
    /// Reads the files.
    pub fn read(config: &Config) -> anyhow::Result<Self> {
        let bytes =
            |file: &Path| std::fs::read(file).with_context(|| format!("{}: cannot be read", file.display()));
        let wrong = |why: &dyn std::fmt::Display| {
            anyhow::anyhow!("{}: no tokenizer: {why}", config.tokenizer.display())
        };
        let mut tokenizer =
            Tokenizer::from_bytes(bytes(&config.tokenizer)?).map_err(|error| wrong(&error))?;
        tokenizer.with_truncation(None).map_err(|error| wrong(&error))?;
        tokenizer.with_padding(None);
        let known: Json = match &config.config {
            None => Json::Null,
            Some(file) => serde_json::from_slice(&bytes(file)?)
                .with_context(|| format!("{}: not JSON", file.display()))?,
        };
        let source = match &config.template {
            Some(file) => Some(
                String::from_utf8(bytes(file)?).with_context(|| format!("{}: not text", file.display()))?,
            ),
            None => template_of(&known),
        };
        let token = |name: &str| {
            let token = known.get(name)?;
            token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_owned)
        };
        let template = source.map(|source| {
            let file = config.template.as_ref().or(config.config.as_ref());
            let file = file.map_or_else(String::new, |file| file.display().to_string());
            Template::new(&source, token("bos_token"), token("eos_token")).context(file)
        });
        Ok(Self { tokenizer, template: template.transpose()? })
    }
}

/// The chat template of a `tokenizer_config.json`: text, or one of several by name.
fn template_of(config: &Json) -> Option<String> {
    let template = config.get("chat_template")?;
    let of_name = |named: &Json| named.get("name").is_some_and(|name| name == "default");
    let text = template
        .as_str()
        .or_else(|| template.as_array()?.iter().find(|one| of_name(one))?.get("template")?.as_str());
    text.map(str::to_owned)
}

/// The tokens of a request's body, with its cache salt. Of the adapter the body says nothing: who calls knows it.
pub fn of_body(model: &Model, body: &[u8]) -> Result<kv::Tokens, Unread> {
    let body: Value = serde_json::from_slice(body).map_err(|_| Unread::Body)?;
    let ids = match body::prompt(&body, model.template.as_ref())? {
        Prompt::Tokens(ids) => ids,
        Prompt::Text { text, special } => {
            let encoded = model.tokenizer.encode_fast(text, special).map_err(|error| {
                log::debug!("tokenizer: {error}");
                Unread::Tokenizer
            })?;
            encoded.get_ids().to_vec()
        }
    };
    let salt = body::field(&body, "cache_salt").and_then(|salt| kv::salt(salt.as_str()?));
    Ok(kv::Tokens { ids, adapter: None, salt })
}

/// Reads bodies on threads beside the one that serves.
#[derive(Clone, Debug)]
pub struct Reader {
    model: Arc<Model>,
    turns: Arc<Semaphore>,
    /// Turns of bodies that are not short: where there are two or more, one less.
    long: Arc<Semaphore>,
    pace: Arc<Pace>,
    clock: Clock,
    timeout: Duration,
    most: usize,
}

impl Reader {
    /// A reader with the model of these files.
    pub fn new(config: &Config) -> anyhow::Result<Self> {
        let threads = config.threads.get().min(Semaphore::MAX_PERMITS);
        Ok(Self {
            model: Arc::new(Model::read(config)?),
            turns: Arc::new(Semaphore::new(threads)),
            long: Arc::new(Semaphore::new(threads.saturating_sub(1).max(1))),
            pace: Arc::default(),
            clock: Clock::start(),
            timeout: config.timeout(),
            most: config.max_bytes.get(),
        })
    }

    /// The longest body that it reads.
    pub fn most(&self) -> usize {
        self.most
    }

    /// The tokens of a body, in time or not at all. `adapter` is the hash of its LoRA adapter's name.
    pub async fn read(
        &self,
        body: impl AsRef<[u8]> + Send + 'static,
        adapter: Option<u64>,
    ) -> Result<kv::Tokens, Unread> {
        let length = body.as_ref().len();
        if length == 0 {
            return Err(Unread::Absent);
        }
        if length > self.most || !self.pace.fits(length, self.timeout, self.clock.now()) {
            return Err(Unread::TooLong);
        }
        let Self { model, turns, long, pace, clock, .. } = self.clone();
        let work = async move {
            let turn = async |turns: Arc<Semaphore>| turns.acquire_owned().await.map_err(|_| Unread::Late);
            let long = if length > pace::SHORT { Some(turn(long).await?) } else { None };
            let turns = (long, turn(turns).await?);
            let read = move || {
                // Given back when it is done, also where nobody waits for it any more.
                let _turns = turns;
                let start = clock.now();
                let tokens = of_body(&model, body.as_ref())?;
                let now = clock.now();
                pace.learn(length, now.since(start), now);
                Ok(kv::Tokens { adapter, ..tokens })
            };
            tokio::task::spawn_blocking(read).await.unwrap_or(Err(Unread::Tokenizer))
        };
        tokio::time::timeout(self.timeout, work).await.unwrap_or(Err(Unread::Late))
    }
}

#[cfg(test)]
mod tests;
