//! The client: sends a turn, reads the stream, looks at its watch.

use anyhow::Result;
use serde_json::{Value, json};
use std::time::Instant;

/// Tokens of each answer.
const ANSWER_TOKENS: u32 = 32;

/// Talks to one gateway.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) http: reqwest::Client,
    pub(crate) url: String,
}

/// What came back.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) request_id: String,
    /// The words of the stream, or the body of an error.
    pub(crate) text: String,
    pub(crate) usage: Option<Usage>,
    /// From sending the request to the first word.
    pub(crate) ttft_ms: Option<f64>,
    /// The stream ended as it should.
    pub(crate) done: bool,
}

/// The engine's own count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
}

impl Client {
    /// Asks for the next message of a conversation. An error is one of the connection.
    pub(crate) async fn ask(&self, model: &str, messages: &[Value]) -> Result<Answer> {
        let body = json!({"model": model, "messages": messages, "max_tokens": ANSWER_TOKENS, "stream": true,
            "stream_options": {"include_usage": true}});
        let sent = Instant::now();
        let mut response =
            self.http.post(format!("{}/v1/chat/completions", self.url)).json(&body).send().await?;
        let id = response.headers().get("x-request-id").and_then(|id| id.to_str().ok());
        let status = response.status().as_u16();
        let mut answer = Answer { status, request_id: id.unwrap_or_default().into(), ..Answer::default() };
        if status != 200 {
            answer.text = response.text().await?;
            return Ok(answer);
        }
        let mut unread = Vec::new();
        while let Some(piece) = response.chunk().await? {
            unread.extend_from_slice(&piece);
            while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = unread.drain(..=end).collect();
                answer.read(&String::from_utf8_lossy(&line), sent);
            }
        }
        Ok(answer)
    }
}

impl Answer {
    /// Reads one line of the stream.
    fn read(&mut self, line: &str, sent: Instant) {
        let Some(data) = line.trim_end().strip_prefix("data: ") else { return };
        self.done |= data == "[DONE]";
        let Ok(event) = serde_json::from_str::<Value>(data) else { return };
        if let Some(words) =
            event["choices"][0]["delta"]["content"].as_str().filter(|words| !words.is_empty())
        {
            self.ttft_ms.get_or_insert_with(|| sent.elapsed().as_secs_f64() * 1000.0);
            self.text += words;
        }
        if let Some(prompt_tokens) = event["usage"]["prompt_tokens"].as_u64() {
            let cached_tokens =
                event["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
            self.usage = Some(Usage { prompt_tokens, cached_tokens });
        }
    }

    /// What is wrong with it, if anything is.
    pub(crate) fn problem(&self) -> Option<String> {
        let words: String = self.text.chars().take(200).collect();
        match self {
            Self { status, .. } if *status != 200 => Some(format!("answered {status}: {words}")),
            Self { done: false, .. } => Some("the stream broke off".into()),
            Self { usage: None, .. } => Some("the answer has no usage".into()),
            Self { ttft_ms: None, .. } => Some("the answer has no words".into()),
            _ => None,
        }
    }
}
