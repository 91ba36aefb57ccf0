//! What is chosen, and what is refused.

use super::*;

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
