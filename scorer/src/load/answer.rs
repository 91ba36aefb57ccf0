//! One request and its answer, with the times of both.

use super::{Api, Target};
use reqwest::Response;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE};
use serde_json::{Value, json};
use tokio::time::Instant;
use weir::response::{Progress, Reader, Report, Usage};
use weir_lab::workload::{Message, Request};

/// What came back.
#[derive(Debug, Default)]
pub(super) struct Answer {
    /// None when no answer began.
    pub(super) status: Option<u16>,
    pub(super) endpoint: Option<String>,
    pub(super) first: Option<Instant>,
    pub(super) usage: Option<Usage>,
    /// Events of the stream that carried output.
    pub(super) deltas: u64,
    /// What the engine said, if that was asked for.
    pub(super) text: String,
    /// Why it is no whole answer.
    pub(super) problem: Option<String>,
}

impl Target {
    /// The body of a request.
    pub(super) fn body(&self, request: &Request, messages: &[Message]) -> Vec<u8> {
        let adapter = request.adapter.and_then(|adapter| {
            let place = (adapter as usize).checked_rem(self.adapters.len())?;
            self.adapters.get(place)
        });
        let mut body = self.more.clone();
        let mut set = |name: &str, value: Value| body.insert(name.to_owned(), value);
        set("model", adapter.unwrap_or(&self.model).as_str().into());
        set("max_tokens", request.output.into());
        set("stream", true.into());
        set("stream_options", json!({"include_usage": true}));
        match self.api {
            Api::Chat => {
                let said = messages.iter().map(|said| json!({"role": said.role, "content": said.text}));
                set("messages", said.collect());
            }
            Api::Completions => {
                set("prompt", messages.iter().map(|said| said.text.as_str()).collect::<String>().into());
            }
        }
        Value::Object(body).to_string().into_bytes()
    }

    /// Sends a body and reads the answer to its end; its text as well if `wanted`.
    pub(super) async fn ask(&self, request: &Request, body: Vec<u8>, wanted: bool) -> Answer {
        let mut sent = self.http.post(self.url()).header(CONTENT_TYPE, "application/json").body(body);
        if let Some(name) = &self.tenant {
            sent = sent.header(name, format!("tenant-{}", request.tenant));
        }
        if let Some(name) = &self.session {
            sent = sent.header(name, format!("session-{}", request.session));
        }
        match sent.send().await {
            Ok(response) => self.read(response, wanted).await,
            Err(error) => {
                let why = if error.is_connect() { "no connection" } else { "broke off before an answer" };
                Answer { problem: Some(why.to_owned()), ..Answer::default() }
            }
        }
    }

    async fn read(&self, mut response: Response, wanted: bool) -> Answer {
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        let mut reader = Reader::new(
            header(&CONTENT_TYPE).unwrap_or_default(),
            header(&CONTENT_ENCODING).unwrap_or_default(),
        );
        let status = response.status().as_u16();
        let endpoint = header(&self.endpoint).map(str::to_owned);
        let mut answer = Answer { status: Some(status), endpoint, ..Answer::default() };
        let mut words = Words::default();
        let whole = loop {
            match response.chunk().await {
                Ok(Some(piece)) => {
                    if reader.feed(&piece) == Progress::FirstToken {
                        answer.first = Some(Instant::now());
                    }
                    if wanted {
                        words.feed(&piece, &mut answer.text);
                    }
                }
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        let Report { usage, finish, error, deltas, .. } = reader.end(whole);
        answer.usage = usage;
        answer.deltas = deltas;
        answer.problem = match (status, error) {
            (200, Some(error)) => Some(format!("an error in the answer: {error}")),
            (200, None) if !whole => Some("the answer broke off".to_owned()),
            (200, None) if answer.first.is_none() => Some("an answer without a token".to_owned()),
            (200, None) if finish.is_none() => Some("the answer ended early".to_owned()),
            (200, None) => None,
            _ => Some(format!("status {status}")),
        };
        answer
    }
}

/// Finds what the engine said in the events of a stream.
#[derive(Debug, Default)]
struct Words {
    unread: Vec<u8>,
}

impl Words {
    fn feed(&mut self, piece: &[u8], text: &mut String) {
        self.unread.extend_from_slice(piece);
        while let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.unread.drain(..=end).collect();
            let Some(data) = line.strip_prefix(b"data:") else { continue };
            let Ok(event) = serde_json::from_slice::<Value>(data) else { continue };
            let said = ["/choices/0/delta/content", "/choices/0/text"].map(|path| event.pointer(path));
            text.extend(said.into_iter().flatten().filter_map(Value::as_str));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_however_the_stream_is_cut() {
        let stream = "data: {\"choices\":[{\"delta\":{\"content\":\" for\"}}]}\n\ndata:{\"choices\":[{\"text\":\" you\"}]}\r\n\r\ndata: [DONE]\n\n";
        for cut in 1..stream.len() {
            let (mut words, mut text) = (Words::default(), String::new());
            stream.as_bytes().chunks(cut).for_each(|piece| words.feed(piece, &mut text));
            assert_eq!(text, " for you");
        }
    }
}
