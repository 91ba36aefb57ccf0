//! An endpoint picker for any gateway: the scorer behind Envoy's `ext_proc` and the protocol of the Gateway API
//! Inference Extension (GIE).
//!
//! A gateway that runs none of our filters sends each request here, headers and body, and is told where it goes. What the
//! body says is read by the code that `extract` runs, the choice is made and booked in the book that the filters' gateways
//! share, and the answer is read as `meter` reads it. So a pool may be behind both kinds of gateways at once.
//!
//! One gRPC stream is one request, and its exchange is the whole of what is known of that. The stream ends with the
//! request, however that ends: a client that leaves, an Envoy that is killed. The lease is in the exchange and ends with it.
//!
//! It has threads of its own, since reading bodies of a megabyte must not hold up a filter that asks for an endpoint.
//!
//! `docs/picker.md` has the table of the protocol: what is the same, what differs, what is not carried.

mod answer;
mod choose;
mod config;
mod exchange;
mod held;
mod hint;
mod lease;
mod message;
mod modes;
mod outbox;
mod outcome;
mod room;
#[cfg(test)]
mod tests;

pub use choose::Picker;
pub use config::Config;
pub(crate) use outcome::Counters;

use crate::scorer::Scorer;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::{
    ExternalProcessor, ExternalProcessorServer,
};
use envoy_types::pb::envoy::service::ext_proc::v3::{ProcessingRequest, ProcessingResponse};
use exchange::Exchange;
use outbox::Outbox;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_stream::Stream;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// Bytes of one request that may be under way to here: most prompts whole, so that few wait for a window.
const STREAM_WINDOW: u32 = 256 << 10;
/// The same of one connection, on which an Envoy's worker sends all its requests. HTTP/2's implementation takes half of it as
/// the most that small frames which nobody has read yet may cost, at 256 bytes each, and closes the connection beyond. A client
/// says how its body is cut, so this is far above what one can bring there: some 6 MiB a request, by the window above.
const CONNECTION_WINDOW: u32 = 1 << 30;
/// Requests on one connection. A stream stays open as long as its request, so there are many.
const MOST_STREAMS: u32 = 100_000;
/// Messages that one request is heard in before others have their turn: a body may come in a million pieces.
const TURN: usize = 256;
/// Of a message, what is not body: Envoy takes heads of up to 8 MiB. What is longer is not read at all.
const OVERHEAD: usize = 9 << 20;
/// An Envoy that is silent for so long is asked whether it is still there: a host that was cut off says no goodbye, and
/// what it held would stay booked.
const ASK_AFTER: Duration = Duration::from_secs(20);
/// How often it is looked whether there are endpoints.
const LOOK: Duration = Duration::from_secs(1);
/// What health is asked about: as EPP names it. The protocol's own name and none stand for readiness.
const READINESS: [&str; 3] = ["", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"];
const LIVENESS: &str = "liveness";

/// Serves until `stop`; then accepts nothing more, and gives what is under way as long as the configuration says.
pub async fn serve(
    listener: TcpListener,
    picker: Arc<Picker>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    let (reporter, health) = tonic_health::server::health_reporter();
    let looking = tokio::spawn(look(Arc::clone(&picker.scorer), reporter.clone()));
    let most = picker.config.request.max_body_bytes.saturating_add(OVERHEAD);
    let drain = Duration::from_millis(picker.config.drain_ms);
    let processor = ExternalProcessorServer::new(Processor(picker)).max_decoding_message_size(most);
    let (say, heard) = tokio::sync::oneshot::channel();
    let stop = async move {
        stop.await;
        looking.abort();
        for name in READINESS {
            reporter.set_service_status(name, ServingStatus::NotServing).await;
        }
        let _ = say.send(());
    };
    let patience = async {
        match heard.await {
            Ok(()) => tokio::time::sleep(drain).await,
            Err(_) => std::future::pending().await,
        }
    };
    let server = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(MOST_STREAMS)
        // Clients that reset what they have just sent are Envoy's to stop. Here all its clients share one connection: to close
        // it, as is usual from 20 such streams on, would cut off everybody.
        .http2_max_pending_accept_reset_streams(Some(MOST_STREAMS as usize))
        .http2_keepalive_interval(Some(ASK_AFTER))
        .add_service(processor)
        .add_service(health)
        .serve_with_incoming_shutdown(TcpIncoming::from(listener).with_nodelay(Some(true)), stop);
    tokio::select! {
        result = server => Ok(result?),
        () = patience => Ok(()),
    }
}

/// Keeps health in step with whether there is anything to choose from.
async fn look(scorer: Arc<Scorer>, reporter: HealthReporter) {
    reporter.set_service_status(LIVENESS, ServingStatus::Serving).await;
    let (mut every, mut last) = (tokio::time::interval(LOOK), None);
    loop {
        every.tick().await;
        let now = match scorer.addresses().is_empty() {
            true => ServingStatus::NotServing,
            false => ServingStatus::Serving,
        };
        if last != Some(now) {
            last = Some(now);
            for name in READINESS {
                reporter.set_service_status(name, now).await;
            }
        }
    }
}

/// The gRPC side of it.
struct Processor(Arc<Picker>);

#[tonic::async_trait]
impl ExternalProcessor for Processor {
    type ProcessStream = Dialogue;

    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<Dialogue>, Status> {
        let named = request.metadata().get(message::POOL).and_then(|name| name.to_str().ok());
        let exchange = Exchange::new(Arc::clone(&self.0), named);
        Ok(Response::new(Dialogue { inbound: request.into_inner(), exchange, outbox: Outbox::default() }))
    }
}

/// One request: what Envoy says of it, and what it is told. No task of its own and no queue between the two: it is dropped,
/// and its lease with it, as soon as Envoy closes the stream.
struct Dialogue {
    inbound: Streaming<ProcessingRequest>,
    exchange: Exchange,
    outbox: Outbox,
}

impl Stream for Dialogue {
    type Item = Result<ProcessingResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { inbound, exchange, outbox } = self.get_mut();
        for _ in 0..TURN {
            if let Some(answer) = outbox.next() {
                return Poll::Ready(Some(Ok(answer)));
            }
            ready!(exchange.poll(context, outbox));
            if let Some(answer) = outbox.next() {
                return Poll::Ready(Some(Ok(answer)));
            }
            let heard = match ready!(Pin::new(&mut *inbound).poll_next(context)) {
                Some(Ok(asked)) => exchange.hear(asked, outbox),
                // As tonic says of a message above the limit.
                Some(Err(status)) if status.code() == Code::OutOfRange => exchange.overflowed(status, outbox),
                // The gateway's failure mode applies. An end without an error would be leave to go on.
                Some(Err(status)) => Err(status),
                None => return Poll::Ready(None),
            };
            if let Err(status) = heard {
                exchange.failed(&status);
                return Poll::Ready(Some(Err(status)));
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
