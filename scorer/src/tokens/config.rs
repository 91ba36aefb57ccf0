//! Which tokenizer and which chat template the engines of a pool use.

use serde::{Deserialize, Serialize};
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

/// The files of a model, and what turning a request into tokens may cost.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// `tokenizer.json`, as Hugging Face has it.
    pub tokenizer: PathBuf,
    /// `tokenizer_config.json`: special tokens, and in most models the chat template. Without it, and without
    /// `template`, chats have no tokens here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<PathBuf>,
    /// The chat template, as text, in the place of the one in `config`: `chat_template.jinja`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PathBuf>,
    /// Milliseconds that a prompt may take. One that takes longer is sent by what was sent before.
    #[serde(default = "timeout")]
    pub timeout_ms: NonZeroU64,
    /// The longest body that is turned into tokens, in bytes.
    #[serde(default = "most")]
    pub max_bytes: NonZeroUsize,
    /// The most prompts that are turned into tokens at the same time: threads. Those that come meanwhile wait, within
    /// their time.
    #[serde(default = "threads")]
    pub threads: NonZeroUsize,
}

fn timeout() -> NonZeroU64 {
    const TIMEOUT: NonZeroU64 = NonZeroU64::new(30).unwrap();
    TIMEOUT
}

fn most() -> NonZeroUsize {
    const MOST: NonZeroUsize = NonZeroUsize::new(1 << 20).unwrap();
    MOST
}

fn threads() -> NonZeroUsize {
    const THREADS: NonZeroUsize = NonZeroUsize::new(2).unwrap();
    THREADS
}

impl Config {
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms.get())
    }
}
