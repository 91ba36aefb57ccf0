//! What Envoy is told, in its messages.

use envoy_types::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue, HeaderValueOption};
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Told;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, ImmediateResponse,
    ProcessingResponse, StreamedBodyResponse, TrailersResponse, body_mutation::Mutation,
};
use envoy_types::pb::envoy::r#type::v3::HttpStatus;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, Value};
use weir::request::Refusal;

/// gRPC metadata by which a gateway names the pool.
pub(super) const POOL: &str = "x-weir-pool";
/// The namespace of Envoy's load balancing, where the choice goes and where the endpoint that served stands.
pub(super) const LB: &str = "envoy.lb";
/// The endpoint that served, as the gateway says.
pub(super) const SERVED: &str = "x-gateway-destination-endpoint-served";
/// The namespace of what is for the access log.
pub(super) const LOG: &str = "weir";
/// A piece of a body that is sent back: Envoy advises against more than 64 KiB.
const PIECE: usize = 62_000;

/// A change of a message's headers.
#[derive(Debug, Default)]
pub(super) struct Headers {
    set: Vec<HeaderValueOption>,
    remove: Vec<String>,
}

impl Headers {
    /// Puts a value in the place of whatever is there.
    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.remove.retain(|own| own != name);
        let header = HeaderValue { key: name.to_owned(), raw_value: value.into(), ..HeaderValue::default() };
        let append_action = HeaderAppendAction::OverwriteIfExistsOrAdd.into();
        self.set.push(HeaderValueOption {
            header: Some(header),
            append_action,
            ..HeaderValueOption::default()
        });
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.remove.push(name.to_owned());
    }

    fn mutation(self) -> Option<HeaderMutation> {
        let any = !self.set.is_empty() || !self.remove.is_empty();
        any.then_some(HeaderMutation { set_headers: self.set, remove_headers: self.remove })
    }

    /// With a route found anew, since what routes match on has changed.
    pub(super) fn of_request(self) -> CommonResponse {
        CommonResponse {
            header_mutation: self.mutation(),
            clear_route_cache: true,
            ..CommonResponse::default()
        }
    }

    pub(super) fn of_response(self) -> CommonResponse {
        CommonResponse { header_mutation: self.mutation(), ..CommonResponse::default() }
    }
}

/// The headers of a message, names in lower case; what is no text is left out.
pub(super) fn headers(map: Option<&HeaderMap>) -> impl Iterator<Item = (&str, &str)> {
    map.into_iter().flat_map(|map| &map.headers).filter_map(|header| {
        let raw = std::str::from_utf8(&header.raw_value).ok()?;
        Some((header.key.as_str(), if raw.is_empty() { &header.value } else { raw }))
    })
}

fn told(response: Told) -> ProcessingResponse {
    ProcessingResponse { response: Some(response), ..ProcessingResponse::default() }
}

pub(super) fn request_headers(common: CommonResponse) -> ProcessingResponse {
    told(Told::RequestHeaders(HeadersResponse { response: Some(common) }))
}

pub(super) fn response_headers(common: CommonResponse) -> ProcessingResponse {
    told(Told::ResponseHeaders(HeadersResponse { response: Some(common) }))
}

pub(super) fn request_body(common: CommonResponse) -> ProcessingResponse {
    told(Told::RequestBody(BodyResponse { response: Some(common) }))
}

pub(super) fn response_body() -> ProcessingResponse {
    told(Told::ResponseBody(BodyResponse::default()))
}

pub(super) fn request_trailers() -> ProcessingResponse {
    told(Told::RequestTrailers(TrailersResponse::default()))
}

pub(super) fn response_trailers() -> ProcessingResponse {
    told(Told::ResponseTrailers(TrailersResponse::default()))
}

/// A piece of a body, as it came.
fn streamed(body: Vec<u8>, end_of_stream: bool) -> BodyResponse {
    let streamed = StreamedBodyResponse { body, end_of_stream, ..StreamedBodyResponse::default() };
    let body_mutation = Some(BodyMutation { mutation: Some(Mutation::StreamedResponse(streamed)) });
    BodyResponse { response: Some(CommonResponse { body_mutation, ..CommonResponse::default() }) }
}

/// A piece of a request's body, sent back as it came, in pieces that Envoy likes.
pub(super) fn streamed_request(body: Vec<u8>, end: bool, mut say: impl FnMut(ProcessingResponse)) {
    cut(body, end, |body, end| say(told(Told::RequestBody(streamed(body, end)))));
}

/// The same of a response's.
pub(super) fn streamed_response(body: Vec<u8>, end: bool, mut say: impl FnMut(ProcessingResponse)) {
    cut(body, end, |body, end| say(told(Told::ResponseBody(streamed(body, end)))));
}

fn cut(body: Vec<u8>, end: bool, mut say: impl FnMut(Vec<u8>, bool)) {
    if body.len() <= PIECE {
        return say(body, end);
    }
    let last = body.len().div_ceil(PIECE) - 1;
    body.chunks(PIECE).enumerate().for_each(|(nth, piece)| say(piece.to_vec(), end && nth == last));
}

/// An answer in the place of an endpoint's: JSON.
pub(super) fn immediate(
    status: u16,
    more: &[(&str, &str)],
    body: String,
    details: &str,
) -> ProcessingResponse {
    let mut headers = Headers::default();
    headers.set("content-type", "application/json");
    more.iter().for_each(|(name, value)| headers.set(name, value));
    told(Told::ImmediateResponse(ImmediateResponse {
        status: Some(HttpStatus { code: status.into() }),
        headers: headers.mutation(),
        body: body.into_bytes(),
        details: details.to_owned(),
        ..ImmediateResponse::default()
    }))
}

/// The same for a request that is refused for what it is.
pub(super) fn refused(refusal: &Refusal) -> ProcessingResponse {
    immediate(refusal.status, &[], refusal.body(), "weir_request_refused")
}

/// Dynamic metadata of one string.
pub(super) fn metadata(namespace: &str, key: &str, value: String) -> (String, Value) {
    let value = Value { kind: Some(Kind::StringValue(value)) };
    let fields = [(key.to_owned(), value)].into();
    (namespace.to_owned(), Value { kind: Some(Kind::StructValue(Struct { fields })) })
}
