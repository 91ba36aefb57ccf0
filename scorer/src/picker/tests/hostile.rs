//! What clients and gateways may do to it.

use super::*;

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
