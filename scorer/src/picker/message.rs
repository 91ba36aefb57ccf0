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
use std::borrow::Cow;
use weir::request::Refusal;

/// gRPC metadata by which a gateway names the pool.
pub(super) const POOL: &str = "x-weir-pool";
/// The namespace of Envoy's load balancing, where the choice goes and where the endpoint that served stands.
pub(super) const LB: &str = "envoy.lb";
/// The endpoint that served, as the gateway says.
pub(super) const SERVED: &str = "x-gateway-destination-endpoint-served";
/// The namespace of what is for the access log.
pub(super) const LOG: &str = "weir";

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

    /// With a route found anew where something changes, since routes match on headers.
    pub(super) fn of_request(self) -> CommonResponse {
        let header_mutation = self.mutation();
        CommonResponse {
            clear_route_cache: header_mutation.is_some(),
            header_mutation,
            ..CommonResponse::default()
        }
    }

    pub(super) fn of_response(self) -> CommonResponse {
        CommonResponse { header_mutation: self.mutation(), ..CommonResponse::default() }
    }
}

/// The headers of a message, names in lower case. What is no text is read all the same, as far as it goes: a header that is
/// left out here would be one that nobody removes.
pub(super) fn headers(map: Option<&HeaderMap>) -> Vec<(&str, Cow<'_, str>)> {
    let all = map.into_iter().flat_map(|map| &map.headers);
    let read = all.map(|header| match header.raw_value.is_empty() {
        true => (header.key.as_str(), Cow::Borrowed(header.value.as_str())),
        false => (header.key.as_str(), String::from_utf8_lossy(&header.raw_value)),
    });
    read.collect()
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

pub(super) fn request_trailers() -> ProcessingResponse {
    told(Told::RequestTrailers(TrailersResponse::default()))
}

pub(super) fn response_trailers() -> ProcessingResponse {
    told(Told::ResponseTrailers(TrailersResponse::default()))
}

/// Of which message a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    Request,
    Response,
}

fn body(whose: Whose, response: BodyResponse) -> ProcessingResponse {
    told(match whose {
        Whose::Request => Told::RequestBody(response),
        Whose::Response => Told::ResponseBody(response),
    })
}

/// Nothing changes in a piece of a body.
pub(super) fn unchanged(whose: Whose) -> ProcessingResponse {
    body(whose, BodyResponse { response: Some(CommonResponse::default()) })
}

/// A piece of a body, sent back as it came.
pub(super) fn streamed(whose: Whose, bytes: Vec<u8>, end_of_stream: bool) -> ProcessingResponse {
    let streamed = StreamedBodyResponse { body: bytes, end_of_stream, ..StreamedBodyResponse::default() };
    let body_mutation = Some(BodyMutation { mutation: Some(Mutation::StreamedResponse(streamed)) });
    let common = CommonResponse { body_mutation, ..CommonResponse::default() };
    body(whose, BodyResponse { response: Some(common) })
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

/// The same for a request that is refused for what it is; `more` headers go with it.
pub(super) fn refused(refusal: &Refusal, more: &[(&str, &str)]) -> ProcessingResponse {
    immediate(refusal.status, more, refusal.body(), "weir_request_refused")
}

/// Dynamic metadata of one string.
pub(super) fn metadata(namespace: &str, key: &str, value: String) -> (String, Value) {
    let value = Value { kind: Some(Kind::StringValue(value)) };
    let fields = [(key.to_owned(), value)].into();
    (namespace.to_owned(), Value { kind: Some(Kind::StructValue(Struct { fields })) })
}
