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

#[test]
fn in_every_mode_the_choice_is_made_and_booked_and_the_body_is_the_same() {
    let desk = desk(|_| {});
    let long = [&CHAT[..CHAT.len() - 1], b",\"user\":\"", &[b'u'; 200_000], b"\"}"].concat();
    for bytes in [CHAT, &long] {
        for pieces in [1, 3, 40] {
            let pieces: Vec<&[u8]> = bytes.chunks(bytes.len().div_ceil(pieces)).collect();
            for trailers in [false, true] {
                let modes = [FullDuplexStreamed, NoBody];
                let mut exchange = desk.open();
                assert!(
                    say(&mut exchange, modes, None, post(&[])).is_empty(),
                    "nothing before the body is there"
                );
                let mut told = Vec::new();
                for (nth, piece) in pieces.iter().enumerate() {
                    assert!(told.is_empty());
                    let end = nth + 1 == pieces.len() && !trailers;
                    told = say(&mut exchange, modes, None, Asked::RequestBody(body(piece, end)));
                }
                if trailers {
                    assert!(told.is_empty());
                    told = say(&mut exchange, modes, None, Asked::RequestTrailers(HttpTrailers::default()));
                    assert!(matches!(told.last().unwrap().response, Some(Told::RequestTrailers(_))));
                }
                assert_eq!(chosen(&told[0]).len(), 3);
                assert_eq!(sent_back(&told[1..]), (bytes.to_vec(), !trailers));
                let length = header(common(&told[0]).header_mutation.as_ref(), "content-length");
                assert_eq!(length.map(|text| text.parse().unwrap()), (!trailers).then_some(bytes.len()));
                assert_eq!(desk.leases(), 1);
            }
        }
    }
    let mut exchange = desk.open();
    let told = ask(&mut exchange, Buffered, None, CHAT);
    assert_eq!((common(&told[0]).clone(), chosen(&told[1]).len()), (CommonResponse::default(), 3));

    let mut ahead = desk.open();
    let modes = [Streamed, NoBody];
    assert!(say(&mut ahead, modes, None, post(&[])).is_empty());
    assert!(say(&mut ahead, modes, None, Asked::RequestBody(body(&CHAT[..20], false))).is_empty());
    let told = say(&mut ahead, modes, None, Asked::RequestBody(body(&CHAT[20..], true)));
    assert!(matches!(told[0].response, Some(Told::RequestHeaders(_))) && chosen(&told[0]).len() == 3);
    assert_eq!(told.len(), 3, "an answer to each piece");
    assert_eq!(desk.leases(), 2);
    drop((exchange, ahead));
    assert_eq!(desk.leases(), 0);
}

#[test]
fn without_the_body_the_load_alone_decides_for_a_pool_that_is_known() {
    let named = |pool: &str| desk(|config| config["picker"]["pool"] = pool.into());
    for mode in [NoBody, BufferedPartial] {
        let desk = named("a");
        let mut exchanges = Vec::new();
        for _ in 0..12 {
            let mut exchange = desk.open();
            let told = match mode {
                NoBody => say(&mut exchange, [mode; 2], None, post(&[("content-length", "4000")])),
                _ => {
                    say(&mut exchange, [mode, NoBody], None, post(&[]));
                    say(&mut exchange, [mode, NoBody], None, Asked::RequestBody(body(&[b'x'; 4000], false)))
                }
            };
            chosen(&told[0]);
            exchanges.push(exchange);
        }
        let spread: Vec<_> =
            desk.pool(0).endpoints.iter().map(|own| (own.in_flight, own.queued_tokens)).collect();
        assert_eq!(spread, vec![(2, 2000); 6], "{mode:?}");
    }
    // Nobody knows whose it is.
    let desk = desk(|_| {});
    let mut exchange = desk.open();
    let told = say(&mut exchange, [NoBody; 2], None, post(&[]));
    assert_eq!((common(&told[0]).header_mutation.clone(), desk.leases()), (None, 0));
}

#[test]
fn a_get_is_chosen_for_and_counted_like_anything_else() {
    let desk = desk(|config| config["picker"]["pool"] = "b".into());
    let mut exchange = desk.open();
    let get = headers(&[(":method", "GET"), (":path", "/v1/models")], true);
    let told = say(&mut exchange, [FullDuplexStreamed; 2], None, Asked::RequestHeaders(get));
    assert_eq!(chosen(&told[0]), ["10.1.0.1:8000"]);
    assert_eq!(desk.pool(1).leases, 1);
    say(&mut exchange, [FullDuplexStreamed; 2], None, answered("200", "application/json", true));
    assert_eq!(desk.leases(), 0);
}

#[test]
fn a_hint_is_kept_to_by_address_and_port_as_string_or_list() {
    let desk = desk(|_| {});
    let mut exchanges = Vec::new();
    for (hint, allowed) in [
        (list(&["10.0.0.1:8001", "[fd00::1]:8001"]), vec!["10.0.0.1:8001", "[fd00::1]:8001"]),
        (text("10.0.0.1:8001,[fd00::1]:8001"), vec!["10.0.0.1:8001", "[fd00::1]:8001"]),
        (list(&["10.0.0.1:8001", "10.9.9.9:1"]), vec!["10.0.0.1:8001"]),
        (list(&["fd00::1"]), vec!["[fd00::1]:8000", "[fd00::1]:8001"]),
    ] {
        for _ in 0..8 {
            let mut exchange = desk.open();
            let told = ask(&mut exchange, Buffered, Some(&hint), CHAT);
            let chosen = chosen(&told[1]);
            assert_eq!(chosen.len(), allowed.len(), "fallbacks are of the hint too");
            assert!(chosen.iter().all(|own| allowed.contains(&own.as_str())), "{chosen:?} {allowed:?}");
            exchanges.push(exchange);
        }
    }
    for hint in [list(&[]), text(""), list(&["10.9.9.9:1"]), text("nonsense"), list(&["10.1.0.1:8000"])] {
        let told = ask(&mut desk.open(), Buffered, Some(&hint), CHAT);
        let none = refused(&told);
        assert_eq!(status(&told), 503, "{hint:?}");
        assert_eq!(
            header(none.headers.as_ref(), "x-llm-d-request-dropped-reason"),
            Some("rejected-no-endpoints")
        );
        assert_eq!(header(none.headers.as_ref(), "retry-after"), Some("1"));
    }
    // One that somebody else's request met does not stay.
    assert_eq!(chosen(&ask(&mut desk.open(), Buffered, None, CHAT)[1]).len(), 3);
}

#[test]
fn every_refusal_has_its_status_and_its_reason() {
    let full = desk(|config| {
        config["pools"][1]["attributes"] =
            json!({"10.1.0.1:8000": {"max_in_flight": 1, "max_input_tokens": 500}})
    });
    let to_n = |text: &str| format!(r#"{{"model":"n","messages":[{{"role":"user","content":"{text}"}}]}}"#);
    let mut first = full.open();
    chosen(&ask(&mut first, Buffered, None, to_n("hi").as_bytes())[1]);
    let told = ask(&mut full.open(), Buffered, None, to_n("hi").as_bytes());
    assert_eq!(status(&told), 429);
    assert_eq!(
        header(refused(&told).headers.as_ref(), "x-llm-d-request-dropped-reason"),
        Some("rejected-saturated")
    );
    assert!(header(refused(&told).headers.as_ref(), "retry-after").is_some());
    drop(first);
    assert_eq!(chosen(&ask(&mut full.open(), Buffered, None, to_n("hi").as_bytes())[1]), ["10.1.0.1:8000"]);

    for (bytes, code, says) in [
        (to_n(&"long ".repeat(5_000)).as_bytes(), 400, "context_length_exceeded"),
        (b"{\"model\":\"m\"", 400, "JSON"),
        (b"\xff\xfe garbage", 400, "UTF"),
        (b"", 400, "JSON"),
        (br#"{"messages":[]}"#, 400, "model: missing"),
        (br#"{"model":null,"messages":[]}"#, 400, "model: "),
        (br#"{"model":"zzz","messages":[]}"#, 404, "no pool serves the model"),
    ] {
        for mode in [Buffered, FullDuplexStreamed] {
            let told = ask(&mut full.open(), mode, None, bytes);
            let body = String::from_utf8_lossy(&refused(&told).body);
            assert_eq!(status(&told), code, "{body}");
            assert!(
                body.contains(says) && serde_json::from_str::<serde_json::Value>(&body).is_ok(),
                "{body}"
            );
        }
    }
    let small = desk(|config| config["picker"]["request"] = json!({"max_body_bytes": 50}));
    assert_eq!(status(&ask(&mut small.open(), FullDuplexStreamed, None, CHAT)), 413);
    assert_eq!(full.leases() + small.leases(), 0);
}

#[test]
fn the_gateways_word_for_the_pool_goes_before_the_models() {
    let desk = desk(|_| {});
    for (named, first) in [(None, "10.0.0"), (Some("b"), "10.1.0.1:8000")] {
        let mut exchange = Exchange::new(Arc::clone(&desk.picker), named);
        let told = ask(&mut exchange, Buffered, Some(&list(&["10.0.0.1", "10.1.0.1"])), CHAT);
        assert!(chosen(&told[1])[0].starts_with(first));
    }
    let mut exchange = Exchange::new(Arc::clone(&desk.picker), Some("nobody"));
    assert_eq!(status(&ask(&mut exchange, Buffered, None, CHAT)), 503);
    let only = self::desk(|config| drop(config["pools"].as_array_mut().unwrap().pop()));
    let told = ask(&mut only.open(), Buffered, None, br#"{"model":"whatever","messages":[]}"#);
    chosen(&told[1]);
}

#[test]
fn what_steers_the_gateway_is_not_the_clients_to_say() {
    let desk = desk(|_| {});
    let forged = [
        (DESTINATION, "169.254.169.254:80"),
        ("x-prefiller-host-port", "169.254.169.254:80"),
        ("x-gateway-model-name", "premium"),
        ("x-gateway-destination-endpoint-subset", "10.0.0.1:8000"),
        ("x-weir-pool", "b"),
        ("test-epp-endpoint-selection", "10.0.0.2"),
        ("x-harmless", "1"),
    ];
    // With the first answer, whichever that is; what is set takes the place of what was there.
    let names = ["x-prefiller-host-port", "x-gateway-destination-endpoint-subset", "x-weir-pool"];
    let mut exchange = desk.open();
    say(&mut exchange, [FullDuplexStreamed, NoBody], None, post(&forged));
    let told = say(&mut exchange, [FullDuplexStreamed, NoBody], None, Asked::RequestBody(body(CHAT, true)));
    let mutation = common(&told[0]).header_mutation.as_ref().unwrap();
    assert_eq!(mutation.remove_headers, names);
    let mut exchange = desk.open();
    let told = say(&mut exchange, [Buffered, NoBody], None, post(&forged));
    assert!(common(&told[0]).clear_route_cache);
    let removed = &common(&told[0]).header_mutation.as_ref().unwrap().remove_headers;
    assert!(
        removed.len() == 5 && names.iter().all(|name| removed.iter().any(|own| own == name)),
        "{removed:?}"
    );
    let told = say(&mut exchange, [Buffered, NoBody], None, Asked::RequestBody(body(CHAT, true)));
    let mutation = common(&told[0]).header_mutation.as_ref().unwrap();
    assert_eq!(header(Some(mutation), "x-gateway-model-name"), Some("m"));
    assert!(chosen(&told[0]).iter().all(|own| own.starts_with("10.0.0.") || own.starts_with("[fd00::")));
    // Also where nothing is chosen.
    let mut passing = desk.open();
    let get = headers(&[&[(":method", "GET"), (":path", "/v1/models")], &forged[..]].concat(), true);
    let told = say(&mut passing, [Buffered, NoBody], None, Asked::RequestHeaders(get));
    assert_eq!(common(&told[0]).header_mutation.as_ref().unwrap().remove_headers.len(), 5);
}

#[test]
fn the_prompt_is_where_it_was_before() {
    let desk = desk(|_| {});
    let prompt = "the river ".repeat(400);
    let long = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{prompt}"}}]}}"#);
    let first = chosen(&ask(&mut desk.open(), Buffered, None, long.as_bytes())[1]);
    for _ in 0..20 {
        let told = ask(&mut desk.open(), FullDuplexStreamed, None, long.as_bytes());
        assert_eq!(chosen(&told[0])[0], first[0]);
        assert!(field(&told[0], "weir", "pick").unwrap().contains("cached_tokens=9"), "{told:?}");
    }
}

#[test]
fn the_first_token_and_the_end_are_seen_wherever_the_answer_is_cut() {
    const SSE: &[u8] = b"data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"It\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":5}}\n\ndata: [DONE]\n\n";
    // Where the second event ends, the first that carries text.
    let token = SSE.windows(2).enumerate().filter(|(_, two)| *two == b"\n\n").nth(1).unwrap().0;
    let desk = desk(|_| {});
    for mode in [Streamed, FullDuplexStreamed] {
        for cut in 0..SSE.len() {
            let modes = [Buffered, mode];
            let mut exchange = desk.open();
            say(&mut exchange, modes, None, post(&[]));
            say(&mut exchange, modes, None, Asked::RequestBody(body(CHAT, true)));
            say(&mut exchange, modes, None, answered("200", "text/event-stream", false));
            let queued = || desk.pool(0).endpoints.iter().map(|own| own.queued_tokens).sum::<u64>();
            assert!(queued() > 0, "the headers are no token");
            let mut told = say(&mut exchange, modes, None, Asked::ResponseBody(body(&SSE[..cut], false)));
            assert!(cut >= token || queued() > 0, "{cut}");
            assert!(cut < token + 2 || queued() == 0, "{cut}");
            assert_eq!(desk.leases(), 1);
            told.extend(say(&mut exchange, modes, None, Asked::ResponseBody(body(&SSE[cut..], true))));
            assert_eq!((queued(), desk.leases()), (0, 0));
            let usage = field(told.last().unwrap(), "weir", "usage").unwrap();
            assert!(usage.starts_with("status=complete input=11 cached=0 output=5"), "{usage}");
            if mode == FullDuplexStreamed {
                assert_eq!(sent_back(&told), (SSE.to_vec(), true));
            }
        }
    }
}

#[test]
fn an_endpoint_that_served_instead_has_the_lease_and_the_one_before_it_a_failure() {
    let desk = desk(
        |config| config["choose"] = json!({"breaker": {"rules": [{"name": "one", "trip_duration_ms": 60000, "failure_condition": {"count": 1, "interval_ms": 60000, "error_reasons": ["reset"]}}]}}),
    );
    let mut exchange = desk.open();
    let told = ask(&mut exchange, Buffered, None, CHAT);
    let order = chosen(&told[1]);
    say(
        &mut exchange,
        [Buffered, NoBody],
        Some(&text(&order[1])),
        answered("200", "application/json", false),
    );
    let pool = desk.pool(0);
    let out: Vec<&str> = pool.out.iter().map(|out| out.address.as_str()).collect();
    assert_eq!(out, [&order[0]]);
    let busy: Vec<_> =
        pool.endpoints.iter().filter(|own| own.in_flight > 0).map(|own| own.address.clone()).collect();
    assert_eq!(busy, [order[1].clone()]);
    drop(exchange);
    assert_eq!(desk.leases(), 0);
}

#[test]
fn conformance_tests_may_name_endpoints_and_are_told_who_served() {
    let desk = desk(|config| config["picker"]["conformance"] = true.into());
    for (wanted, allowed) in
        [("10.0.0.2", &["10.0.0.2:8000"][..]), ("10.0.0.1:8001", &["10.0.0.1:8001"]), ("256.1.1.1", &[])]
    {
        let mut exchange = desk.open();
        say(&mut exchange, [Buffered, NoBody], None, post(&[("test-epp-endpoint-selection", wanted)]));
        let told = say(&mut exchange, [Buffered, NoBody], None, Asked::RequestBody(body(CHAT, true)));
        let order = chosen(&told[0]);
        assert!(allowed.is_empty() || order == allowed, "{order:?}");
        let served = text(&order[0]);
        let told =
            say(&mut exchange, [Buffered, NoBody], Some(&served), answered("200", "application/json", true));
        let told = header(common(&told[0]).header_mutation.as_ref(), "x-conformance-test-served-endpoint");
        assert_eq!(told, Some(order[0].as_str()));
    }
}

#[test]
fn whatever_comes_in_whatever_order_is_borne_and_leaves_no_lease() {
    let desk = desk(|_| {});
    let mut random = Random::new(5);
    let modes = [NoBody, Streamed, Buffered, BufferedPartial, FullDuplexStreamed];
    for _ in 0..3_000 {
        let mut exchange = desk.open();
        let own = [modes[random.below(5)], modes[random.below(5)]];
        for _ in 0..random.below(8) {
            let noise: Vec<u8> = (0..random.below(300)).map(|_| random.next() as u8).collect();
            let bytes = match random.below(3) {
                0 => &noise,
                1 => CHAT,
                _ => &CHAT[..random.below(CHAT.len())],
            };
            let end = random.below(2) == 0;
            let odd = HttpHeaders {
                headers: Some(HeaderMap {
                    headers: vec![HeaderValue { raw_value: noise.clone(), ..HeaderValue::default() }],
                }),
                end_of_stream: end,
                ..HttpHeaders::default()
            };
            let asked = match random.below(8) {
                0 | 1 => post(&[]),
                2 => Asked::RequestHeaders(odd),
                3 => Asked::RequestBody(body(bytes, end)),
                4 => Asked::RequestTrailers(HttpTrailers::default()),
                5 => answered(
                    ["200", "500", "x", ""][random.below(4)],
                    ["text/event-stream", "application/json", "\0"][random.below(3)],
                    end,
                ),
                6 => Asked::ResponseBody(body(bytes, end)),
                _ => Asked::ResponseTrailers(HttpTrailers::default()),
            };
            let config = ProtocolConfiguration {
                request_body_mode: own[0].into(),
                response_body_mode: own[1].into(),
                ..ProtocolConfiguration::default()
            };
            let asked = ProcessingRequest {
                request: Some(asked),
                protocol_config: Some(config),
                ..ProcessingRequest::default()
            };
            // An error ends the stream.
            if exchange.hear(asked, &mut Outbox::default()).is_err() {
                break;
            }
        }
        assert!(desk.leases() <= 1);
    }
    assert_eq!(desk.leases(), 0);
}

#[tokio::test]
async fn a_request_for_engines_that_say_what_they_hold_is_turned_into_tokens_first() {
    let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokens"));
    let files = json!({"tokenizer": folder.join("tokenizer.json"), "config": folder.join("tokenizer_config.json"),
                       "timeout_ms": 60_000});
    let desk = desk(|config| config["precise"] = json!({"a": {"tokens": files}}));
    let held = crate::tokens::Model::read(&serde_json::from_value(files.clone()).unwrap()).unwrap();
    let ids = crate::tokens::of_body(&held, CHAT).unwrap().ids;
    let blocks = ids.len() / 4;
    let say_of = |address: &str, news: kv::News| desk.scorer.told("a", address, 0, &news);
    for address in desk.scorer.addresses_of("a") {
        say_of(&address, kv::News::Linked(true));
        say_of(&address, kv::News::Anew { whole: true });
    }
    let stored = kv::Event::Stored(kv::Stored {
        blocks: (0..blocks as u64).collect(),
        tokens: ids[..blocks * 4].to_vec(),
        block_tokens: 4,
        whole: true,
        ..kv::Stored::default()
    });
    say_of("[fd00::2]:8000", kv::News::Batch(kv::Batch { events: vec![stored], ..kv::Batch::default() }));

    let mut exchange = desk.open();
    assert!(ask(&mut exchange, FullDuplexStreamed, None, CHAT).is_empty(), "it waits for its tokens");
    let mut told = Outbox::default();
    let wait = std::future::poll_fn(|context| exchange.poll(context, &mut told));
    tokio::time::timeout(std::time::Duration::from_secs(60), wait).await.unwrap();
    let told: Vec<_> = told.collect();
    assert_eq!(chosen(&told[0])[0], "[fd00::2]:8000");
    assert_eq!(sent_back(&told[1..]), (CHAT.to_vec(), true));
    let line = field(&told[0], "weir", "pick").unwrap();
    assert!(line.contains(&format!("cached_tokens={}", (ids.len() - 1) / 4 * 4)), "{line}");
    drop(exchange);
    assert_eq!(desk.leases(), 0);
}

#[test]
fn a_body_in_pieces_of_a_byte_or_none_is_answered_piece_by_piece_or_in_few_large_ones() {
    let desk = desk(|_| {});
    let long = [&CHAT[..CHAT.len() - 1], b",\"user\":\"", &[b'u'; 150_000], b"\"}"].concat();
    for mode in [FullDuplexStreamed, Streamed] {
        let modes = [mode, NoBody];
        let mut exchange = desk.open();
        say(&mut exchange, modes, None, post(&[]));
        for at in 0..long.len() - 1 {
            for piece in [&long[at..=at], b""] {
                assert!(say(&mut exchange, modes, None, Asked::RequestBody(body(piece, false))).is_empty());
            }
        }
        let last = Asked::RequestBody(body(&long[long.len() - 1..], true));
        let told = say(&mut exchange, modes, None, last);
        assert_eq!(chosen(&told[0]).len(), 3);
        match mode {
            Streamed => {
                assert_eq!(told.len(), 1 + 2 * long.len() - 1);
                assert!(told[1..].iter().all(|told| *common(told) == CommonResponse::default()));
            }
            _ => {
                assert_eq!(sent_back(&told[1..]), (long.clone(), true));
                assert_eq!(told.len(), 1 + long.len().div_ceil(62_000));
            }
        }
    }
}

#[test]
fn answers_are_made_when_they_are_taken() {
    let mut out = Outbox::default();
    out.unchanged(u64::MAX);
    assert_eq!(out.by_ref().take(3).count(), 3);
}

#[test]
fn a_header_that_is_no_text_is_removed_and_read_as_far_as_it_goes() {
    let odd = |name: &str, value: &[u8]| HeaderValue {
        key: name.to_owned(),
        raw_value: value.to_vec(),
        ..HeaderValue::default()
    };
    let with = |more: HeaderValue| {
        let Asked::RequestHeaders(mut asked) = post(&[]) else { panic!("headers") };
        asked.headers.as_mut().unwrap().headers.push(more);
        Asked::RequestHeaders(asked)
    };
    let desk = desk(|_| {});
    let modes = [Buffered, NoBody];
    let told = say(&mut desk.open(), modes, None, with(odd("x-prefiller-host-port", b"9.9.9.9:80\xff")));
    let removed = &common(&told[0]).header_mutation.as_ref().unwrap().remove_headers;
    assert_eq!(removed, &["x-prefiller-host-port"]);
    let told = say(&mut desk.open(), modes, None, with(odd("content-encoding", b"gzip\xff")));
    assert_eq!(status(&told), 415);
}

#[test]
fn bodies_that_never_end_are_stopped_and_leave_room_for_others() {
    let desk = desk(|config| {
        config["picker"] = json!({"request": {"max_body_bytes": 200_000}, "max_held_bytes": 400_000});
    });
    let modes = [FullDuplexStreamed, NoBody];
    let mut open = Vec::new();
    for _ in 0..20 {
        let mut exchange = desk.open();
        say(&mut exchange, modes, None, post(&[]));
        let told = (0..15).find_map(|_| {
            let told = say(&mut exchange, modes, None, Asked::RequestBody(body(&[b' '; 10_000], false)));
            (!told.is_empty()).then_some(told)
        });
        open.push((exchange, told));
    }
    let stopped: Vec<_> = open.iter().filter_map(|(_, told)| told.as_ref()).collect();
    assert!(!stopped.is_empty());
    for told in stopped {
        assert_eq!(status(told), 503);
        assert_eq!(header(refused(told).headers.as_ref(), "retry-after"), Some("1"));
    }
    chosen(&ask(&mut desk.open(), FullDuplexStreamed, None, CHAT)[0]);
    assert!(counted(&desk).iter().any(|(outcome, _)| outcome == "no_room"));
    drop(open);
    let long = [&CHAT[..CHAT.len() - 1], &[b' '; 190_000], b"}"].concat();
    for _ in 0..5 {
        chosen(&ask(&mut desk.open(), FullDuplexStreamed, None, &long)[0]);
    }
}

#[tokio::test]
async fn a_body_that_takes_too_long_is_answered_408() {
    let desk = desk(|config| config["picker"]["body_timeout_ms"] = 50.into());
    let modes = [FullDuplexStreamed, NoBody];
    let mut exchange = desk.open();
    say(&mut exchange, modes, None, post(&[]));
    say(&mut exchange, modes, None, Asked::RequestBody(body(&CHAT[..20], false)));
    let mut out = Outbox::default();
    let told = std::future::poll_fn(|context| {
        let _ = exchange.poll(context, &mut out);
        out.next().map_or(std::task::Poll::Pending, std::task::Poll::Ready)
    });
    let told = tokio::time::timeout(std::time::Duration::from_secs(60), told).await.unwrap();
    assert_eq!(status(&[told]), 408);
    assert_eq!(counted(&desk), [("too_slow".to_owned(), 1)]);
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

#[test]
fn each_request_counts_once_by_what_became_of_it() {
    let desk = desk(|config| {
        config["picker"]["request"] = json!({"max_body_bytes": 4_000});
        config["pools"][1]["attributes"] =
            json!({"10.1.0.1:8000": {"max_in_flight": 1, "max_input_tokens": 500}});
    });
    assert!(desk.scorer.metrics().unwrap().contains("weir_picker_requests_total{outcome=\"too_large\"} 0"));
    let to = |model: &str| format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"hi"}}]}}"#);
    let long = to("n").replace("hi", &"long ".repeat(700));
    let gzip = Asked::RequestHeaders(headers(
        &[(":method", "POST"), (":path", "/v1/chat/completions"), ("content-type", "text/plain")],
        false,
    ));
    let nobody = text("10.9.9.9:1");
    let mut open = desk.open();
    ask(&mut open, Buffered, None, to("n").as_bytes());
    say(&mut open, [Buffered, NoBody], None, answered("200", "application/json", false));
    for (outcome, told) in [
        ("saturated", ask(&mut desk.open(), Buffered, None, to("n").as_bytes())),
        ("no_endpoints", ask(&mut desk.open(), Buffered, Some(&nobody), to("m").as_bytes())),
        ("unknown_model", ask(&mut desk.open(), Buffered, None, to("zzz").as_bytes())),
        ("too_long", ask(&mut desk.open(), Buffered, None, long.as_bytes())),
        ("unreadable", ask(&mut desk.open(), Buffered, None, b"{")),
        ("too_large", ask(&mut desk.open(), Buffered, None, &[b' '; 5_000])),
        ("unsupported", say(&mut desk.open(), [Buffered, NoBody], None, gzip)),
    ] {
        assert!(counted(&desk).contains(&(outcome.to_owned(), 1)), "{outcome}: {told:?}");
    }
    let get = Asked::RequestHeaders(headers(&[(":method", "GET"), (":path", "/v1/models")], true));
    say(&mut desk.open(), [NoBody, NoBody], None, get);
    let mut leaves = desk.open();
    say(&mut leaves, [Buffered, NoBody], None, post(&[]));
    assert_eq!(streams(&desk), 2);
    drop((open, leaves));
    assert_eq!(streams(&desk), 0);
    let all =
        ["chosen", "left", "no_endpoints", "passed", "saturated", "too_large", "too_long", "unknown_model"];
    let all = all.iter().chain(&["unreadable", "unsupported"]);
    assert_eq!(counted(&desk), all.map(|outcome| ((*outcome).to_owned(), 1)).collect::<Vec<_>>());
}

#[test]
fn room_for_less_than_two_bodies_is_refused_at_load() {
    let own = |held: usize| {
        let config = json!({"pools": [{"name": "a", "models": ["m"], "endpoints": ["10.0.0.1:8000"]}],
            "picker": {"request": {"max_body_bytes": 1000}, "max_held_bytes": held}});
        scorer::Config::read(config.to_string().as_bytes())
    };
    assert!(own(2_000).is_ok());
    let why = format!("{:#}", own(1_999).unwrap_err());
    assert!(why.contains("picker.max_held_bytes: 1999"), "{why}");
}
