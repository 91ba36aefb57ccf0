//! An external processor that looks at nothing: the floor of any endpoint picker that is handed the whole body.
//!
//! Envoy buffers the body and sends it here; the answer sets one header, as a picker would. A real one adds the
//! parsing of the body and the choice to that. Its windows hold a whole body, so that flow control adds no round
//! trip that a careful picker would not have.

use anyhow::Result;
use envoy_types::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::{
    ExternalProcessor, ExternalProcessorServer,
};
use envoy_types::pb::envoy::service::ext_proc::v3::{
    BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, ProcessingRequest, ProcessingResponse,
    processing_request::Request as Asked, processing_response::Response as Answer,
};
use std::pin::Pin;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming, transport::Server};

const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 64 << 20;

pub(crate) async fn serve(port: u16) -> Result<()> {
    let service = ExternalProcessorServer::new(Picker).max_decoding_message_size(64 << 20);
    Ok(Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .add_service(service)
        .serve(([127, 0, 0, 1], port).into())
        .await?)
}

struct Picker;

#[tonic::async_trait]
impl ExternalProcessor for Picker {
    type ProcessStream = Pin<Box<dyn Stream<Item = Result<ProcessingResponse, Status>> + Send>>;

    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<Self::ProcessStream>, Status> {
        Ok(Response::new(Box::pin(request.into_inner().map(|asked| answer(asked?)))))
    }
}

fn answer(asked: ProcessingRequest) -> Result<ProcessingResponse, Status> {
    let answer = match asked.request {
        Some(Asked::RequestHeaders(_)) => Answer::RequestHeaders(HeadersResponse::default()),
        Some(Asked::RequestBody(_)) => Answer::RequestBody(BodyResponse { response: Some(one_header()) }),
        _ => return Err(Status::invalid_argument("only request headers and body are expected")),
    };
    Ok(ProcessingResponse { response: Some(answer), ..ProcessingResponse::default() })
}

fn one_header() -> CommonResponse {
    let header = HeaderValue {
        key: "x-gateway-destination-endpoint".into(),
        raw_value: b"127.0.0.1:8000".to_vec(),
        ..HeaderValue::default()
    };
    let set = HeaderValueOption { header: Some(header), ..HeaderValueOption::default() };
    let header_mutation = Some(HeaderMutation { set_headers: vec![set], ..HeaderMutation::default() });
    CommonResponse { header_mutation, ..CommonResponse::default() }
}
