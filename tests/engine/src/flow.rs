//! The flow of an answer to its client: generation, form, and the fault that may break it off.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::time::sleep;

use crate::compute::Generation;
use crate::fault::{Fault, Kind};
use crate::form::Form;
use crate::record::{Entry, Outcome};
use crate::routes::App;

/// Time for what was already written to reach the socket before the connection is cut.
const FLUSH: Duration = Duration::from_millis(20);

/// The answer is to break off here.
struct Cut;

enum Phase {
    Head,
    Tokens,
    End,
}

pub(crate) struct Flow {
    app: Arc<App>,
    generation: Generation,
    form: Form,
    entry: Entry,
    fault: Fault,
    phase: Phase,
}

impl Flow {
    pub(crate) fn new(app: Arc<App>, generation: Generation, form: Form, entry: Entry, fault: Fault) -> Self {
        Self { app, generation, form, entry, fault, phase: Phase::Head }
    }

    /// Answers when everything is there.
    pub(crate) async fn whole(mut self) -> Response {
        self.prefill().await;
        let mut text = String::new();
        let cut = loop {
            match self.token().await {
                Ok(Some(token)) => text += token,
                Ok(None) => break false,
                Err(Cut) => break true,
            }
        };
        let body = self.form.whole(&text, self.generation.usage());
        let json = [(CONTENT_TYPE, "application/json")];
        if cut {
            return (json, [(CONTENT_LENGTH, body.len())], half(&body)).into_response();
        }
        self.entry.end(Outcome::Done);
        (json, body).into_response()
    }

    /// Answers at once, with a body that gives each token when it is there.
    pub(crate) fn stream(self) -> Response {
        let pieces = stream::unfold(self, |mut flow| async {
            let piece = flow.piece().await?;
            Some((piece, flow))
        });
        ([(CONTENT_TYPE, "text/event-stream; charset=utf-8")], Body::from_stream(pieces)).into_response()
    }

    async fn piece(&mut self) -> Option<io::Result<String>> {
        match self.phase {
            Phase::Head => {
                self.prefill().await;
                self.phase = Phase::Tokens;
                Some(Ok(self.form.head(self.generation.usage())))
            }
            Phase::Tokens => match self.token().await {
                Ok(Some(token)) => Some(Ok(self.form.token(token))),
                Ok(None) => {
                    self.phase = Phase::End;
                    self.entry.end(Outcome::Done);
                    Some(Ok(self.form.tail(self.generation.usage())))
                }
                Err(Cut) => {
                    sleep(FLUSH).await;
                    Some(Err(io::ErrorKind::ConnectionReset.into()))
                }
            },
            Phase::End => None,
        }
    }

    async fn prefill(&mut self) {
        self.generation.prefill().await;
        let cached = self.generation.usage().cached;
        self.entry.update(|record| record.cached_tokens = cached);
    }

    /// The next token, unless the fault comes first.
    async fn token(&mut self) -> Result<Option<&'static str>, Cut> {
        let at = self.fault.after_tokens.unwrap_or(0);
        if self.generation.usage().output >= at {
            match self.fault.kind {
                Kind::CutStream => return Err(Cut),
                Kind::Die => {
                    self.app.die();
                    pending::<Infallible>().await;
                }
                Kind::Hang => {
                    pending::<Infallible>().await;
                }
                Kind::None | Kind::Http503 | Kind::Http429 | Kind::Garbage | Kind::Slow => {}
            }
        }
        Ok(self.generation.token().await)
    }
}

/// A body that breaks off in the middle.
fn half(body: &str) -> Body {
    let half = Bytes::copy_from_slice(body.as_bytes().split_at(body.len() / 2).0);
    Body::from_stream(stream::unfold(Some(half), |left| async {
        match left {
            Some(half) => Some((Ok(half), None)),
            None => {
                sleep(FLUSH).await;
                Some((Err(io::Error::from(io::ErrorKind::ConnectionReset)), None))
            }
        }
    }))
}
