//! One request as Envoy tells it, message by message, and what it is told.

use super::exchange::Exchange;
use super::outbox::Outbox;
use super::{Config, Picker};
use crate::scorer::{self, PoolLoad, Scorer};
use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue, Metadata};
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use envoy_types::pb::envoy::service::ext_proc::v3::body_mutation::Mutation;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Asked;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Told;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    BodyResponse, CommonResponse, HeaderMutation, HttpBody, HttpHeaders, HttpTrailers, ImmediateResponse,
    ProcessingRequest, ProcessingResponse, ProtocolConfiguration,
};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{ListValue, Struct, Value};
use serde_json::json;
use std::sync::Arc;
use weir::kv;
use weir::random::Random;

mod choosing;
mod counted;
mod hostile;
mod served;

use BodySendMode::{Buffered, BufferedPartial, FullDuplexStreamed, None as NoBody, Streamed};

const CHAT: &[u8] =
    br#"{"model":"m","messages":[{"role":"user","content":"Where does the river go?"}],"max_tokens":9}"#;
const DESTINATION: &str = "x-gateway-destination-endpoint";

struct Desk {
    picker: Arc<Picker>,
    scorer: Arc<Scorer>,
}

/// Pool `a` serves `m` at six addresses, pool `b` serves `n` at one.
fn desk(change: impl Fn(&mut serde_json::Value)) -> Desk {
    let mut config = json!({
        "pools": [
            {"name": "a", "models": ["m"], "endpoints":
                ["10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000", "[fd00::1]:8000", "[fd00::1]:8001", "[fd00::2]:8000"]},
            {"name": "b", "models": ["n"], "endpoints": ["10.1.0.1:8000"]},
        ],
        "picker": {},
    });
    change(&mut config);
    let config = scorer::Config::read(config.to_string().as_bytes()).unwrap();
    let scorer = Arc::new(Scorer::new(&config).unwrap());
    let own: &Config = config.picker.as_ref().unwrap();
    Desk { picker: Arc::new(Picker::new(Arc::clone(&scorer), &config.pools, own)), scorer }
}

impl Desk {
    fn open(&self) -> Exchange {
        Exchange::new(Arc::clone(&self.picker), None)
    }

    fn pool(&self, at: usize) -> PoolLoad {
        self.scorer.loads().swap_remove(at)
    }

    fn leases(&self) -> usize {
        self.scorer.loads().iter().map(|pool| pool.leases).sum()
    }
}

fn say(
    exchange: &mut Exchange,
    modes: [BodySendMode; 2],
    hint: Option<&Value>,
    asked: Asked,
) -> Vec<ProcessingResponse> {
    let fields = |namespace: &str, key: &str, value: &Value| {
        (namespace.to_owned(), Struct { fields: [(key.to_owned(), value.clone())].into() })
    };
    let filter_metadata = match (&asked, hint) {
        (_, None) => [].into(),
        (Asked::ResponseHeaders(_), Some(served)) => {
            [fields("envoy.lb", "x-gateway-destination-endpoint-served", served)].into()
        }
        (_, Some(hint)) => {
            [fields("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", hint)].into()
        }
    };
    let [request, response] = modes;
    let config = ProtocolConfiguration {
        request_body_mode: request.into(),
        response_body_mode: response.into(),
        send_body_without_waiting_for_header_response: request == Streamed,
    };
    let mut out = Outbox::default();
    let asked = ProcessingRequest {
        request: Some(asked),
        protocol_config: Some(config),
        metadata_context: Some(Metadata { filter_metadata, ..Metadata::default() }),
        ..ProcessingRequest::default()
    };
    exchange.hear(asked, &mut out).unwrap();
    out.collect()
}

fn headers(list: &[(&str, &str)], end_of_stream: bool) -> HttpHeaders {
    let one = |(key, value): &(&str, &str)| HeaderValue {
        key: (*key).to_owned(),
        raw_value: value.as_bytes().to_vec(),
        ..HeaderValue::default()
    };
    HttpHeaders {
        headers: Some(HeaderMap { headers: list.iter().map(one).collect() }),
        end_of_stream,
        ..HttpHeaders::default()
    }
}

fn post(more: &[(&str, &str)]) -> Asked {
    let own = [(":method", "POST"), (":path", "/v1/chat/completions"), ("content-type", "application/json")];
    Asked::RequestHeaders(headers(&[&own, more].concat(), false))
}

fn body(bytes: &[u8], end_of_stream: bool) -> HttpBody {
    HttpBody { body: bytes.to_vec(), end_of_stream, ..HttpBody::default() }
}

fn answered(status: &str, kind: &str, end: bool) -> Asked {
    Asked::ResponseHeaders(headers(&[(":status", status), ("content-type", kind)], end))
}

fn text(text: &str) -> Value {
    Value { kind: Some(Kind::StringValue(text.to_owned())) }
}

fn list(texts: &[&str]) -> Value {
    Value { kind: Some(Kind::ListValue(ListValue { values: texts.iter().map(|one| text(one)).collect() })) }
}

fn field<'s>(of: &'s ProcessingResponse, namespace: &str, key: &str) -> Option<&'s str> {
    let Some(Kind::StructValue(inner)) = &of.dynamic_metadata.as_ref()?.fields.get(namespace)?.kind else {
        return None;
    };
    match inner.fields.get(key)?.kind.as_ref()? {
        Kind::StringValue(text) => Some(text),
        _ => None,
    }
}

fn common(told: &ProcessingResponse) -> &CommonResponse {
    match told.response.as_ref().unwrap() {
        Told::RequestHeaders(told) | Told::ResponseHeaders(told) => told.response.as_ref().unwrap(),
        Told::RequestBody(told) | Told::ResponseBody(told) => told.response.as_ref().unwrap(),
        other => panic!("{other:?}"),
    }
}

fn header<'m>(mutation: Option<&'m HeaderMutation>, name: &str) -> Option<&'m str> {
    let set = mutation?.set_headers.iter().filter_map(|one| one.header.as_ref());
    set.filter(|one| one.key == name).map(|one| std::str::from_utf8(&one.raw_value).unwrap()).next()
}

/// The list that was set: the same in the header and the metadata.
fn chosen(told: &ProcessingResponse) -> Vec<String> {
    let list = header(common(told).header_mutation.as_ref(), DESTINATION).unwrap();
    assert_eq!(field(told, "envoy.lb", DESTINATION), Some(list));
    assert!(common(told).clear_route_cache);
    list.split(',').map(str::to_owned).collect()
}

fn refused(told: &[ProcessingResponse]) -> &ImmediateResponse {
    match told.last().and_then(|told| told.response.as_ref()) {
        Some(Told::ImmediateResponse(refused)) => refused,
        other => panic!("{other:?}"),
    }
}

fn status(told: &[ProcessingResponse]) -> i32 {
    refused(told).status.as_ref().unwrap().code
}

/// A body sent back in pieces, and whether its last says that it is.
fn sent_back(told: &[ProcessingResponse]) -> (Vec<u8>, bool) {
    let (mut bytes, mut ended) = (Vec::new(), false);
    for told in told {
        if let Some(
            Told::RequestBody(BodyResponse { response: Some(common) })
            | Told::ResponseBody(BodyResponse { response: Some(common) }),
        ) = &told.response
        {
            let Some(Mutation::StreamedResponse(piece)) =
                common.body_mutation.as_ref().and_then(|one| one.mutation.as_ref())
            else {
                panic!("{common:?}")
            };
            assert!(!ended && piece.body.len() <= 62_000);
            bytes.extend_from_slice(&piece.body);
            ended = piece.end_of_stream;
        }
    }
    (bytes, ended)
}

/// A whole chat request; what was said at its end.
fn ask(
    exchange: &mut Exchange,
    request: BodySendMode,
    hint: Option<&Value>,
    bytes: &[u8],
) -> Vec<ProcessingResponse> {
    let modes = [request, NoBody];
    let mut told = say(exchange, modes, hint, post(&[]));
    told.extend(say(exchange, modes, hint, Asked::RequestBody(body(bytes, true))));
    told
}

/// What the picker of a desk has counted that is not 0.
fn counted(desk: &Desk) -> Vec<(String, u64)> {
    let text = desk.scorer.metrics().unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("weir_picker_requests_total{outcome=\""));
    let counts = lines.map(|line| line.split_once("\"} ").unwrap());
    let counts = counts.map(|(outcome, count)| (outcome.to_owned(), count.parse().unwrap()));
    counts.filter(|(_, count)| *count > 0).collect()
}

fn streams(desk: &Desk) -> u64 {
    let text = desk.scorer.metrics().unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("weir_picker_streams "));
    line.unwrap().parse().unwrap()
}
