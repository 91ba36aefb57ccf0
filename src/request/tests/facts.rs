use super::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn facts(headers: &[(&str, &str)], more: &str, config: &Config) -> Facts {
    let path = [(":method", "POST"), (":path", "/v1/responses")];
    let Plan::Read(incoming) = plan(&Head::new(path.iter().chain(headers).copied(), config), false, config)
    else {
        panic!("not read")
    };
    incoming.read(format!(r#"{{"model":"m"{more}}}"#).as_bytes(), config).unwrap().facts
}

fn plain(more: &str) -> Facts {
    facts(&[], more, &Config::default())
}

#[test]
fn effort_thinking_priority_and_tier_are_read_in_each_apis_words() {
    for more in [
        r#","reasoning_effort":"high""#,
        r#","reasoning":{"summary":"auto","effort":"high"}"#,
        r#","output_config":{"effort":"high"}"#,
    ] {
        assert_eq!(plain(more).effort.as_deref(), Some("high"), "{more}");
    }
    for more in
        [r#","reasoning_effort":"a b""#, r#","reasoning":{"x":{"effort":"high"}}"#, r#","reasoning":null"#]
    {
        assert_eq!(plain(more).effort, None, "{more}");
    }
    assert_eq!(plain(r#","thinking":{"type":"enabled","budget_tokens":1024}"#).thinking_tokens, Some(1024));
    assert_eq!(plain(r#","thinking":{"type":"disabled"}"#).thinking_tokens, None);
    for (value, priority) in
        [("-3", Some(-3)), ("7", Some(7)), ("99999999999", Some(i32::MAX)), ("\"x\"", None)]
    {
        assert_eq!(plain(&format!(r#","priority":{value}"#)).priority, priority);
    }
    assert_eq!(plain(r#","service_tier":"flex""#).tier.as_deref(), Some("flex"));
    let objective = facts(&[("x-llm-d-inference-objective", "batch")], "", &Config::default()).objective;
    assert_eq!(objective.as_deref(), Some("batch"));
    assert_eq!(facts(&[("x-llm-d-inference-objective", "a b=c")], "", &Config::default()).objective, None);
}

#[test]
fn objectives_in_milliseconds_are_read_under_both_names_and_nonsense_is_none() {
    let slo = |headers: &[(&str, &str)]| {
        let facts = facts(headers, "", &Config::default());
        (facts.slo_ttft_ms, facts.slo_tpot_ms)
    };
    assert_eq!(slo(&[("x-slo-ttft-ms", "200"), ("x-llm-d-slo-tpot-ms", "40")]), (Some(200), Some(40)));
    assert_eq!(slo(&[("x-llm-d-slo-ttft-ms", "3"), ("x-slo-ttft-ms", "200")]), (Some(3), None));
    assert_eq!(slo(&[("x-slo-ttft-ms", "200"), ("x-llm-d-slo-ttft-ms", "3")]), (Some(3), None));
    for wrong in ["9223372036854775807", "-1", "+1", "0", "abc", "", "1.5"] {
        assert_eq!(slo(&[("x-llm-d-slo-ttft-ms", wrong)]), (None, None), "{wrong}");
    }
}

#[test]
fn what_was_tried_before_says_so() {
    let retries = |headers: &[(&str, &str)]| facts(headers, "", &Config::default()).retries;
    assert_eq!(retries(&[]), 0);
    assert_eq!(retries(&[("x-stainless-retry-count", "0"), ("x-envoy-attempt-count", "1")]), 0);
    assert_eq!(retries(&[("x-stainless-retry-count", "2")]), 2);
    assert_eq!(retries(&[("x-envoy-attempt-count", "3"), ("x-stainless-retry-count", "1")]), 3);
    for wrong in ["", "-1", "many", "99999999999999999999"] {
        assert_eq!(retries(&[("x-stainless-retry-count", wrong)]), 0, "{wrong}");
    }
    assert_eq!(
        retries(&[("x-stainless-retry-count", "4294967295"), ("x-envoy-attempt-count", "9")]),
        u32::MAX
    );
}

#[test]
fn tenants_sessions_and_users_are_told_apart_and_not_told() {
    let config = Config::default();
    let session = |headers: &[(&str, &str)], more: &str| facts(headers, more, &config).session;
    let a = Some(config.id(Kind::Session, "a"));
    assert_eq!(session(&[("x-session-id", "a")], ""), a);
    assert_eq!(session(&[("session_id", "b"), ("x-session-id", "a")], r#","prompt_cache_key":"c""#), a);
    for more in [r#","prompt_cache_key":"a""#, r#","conversation":"a""#, r#","conversation":{"id":"a"}"#] {
        assert_eq!(session(&[], more), a, "{more}");
    }
    assert_eq!(session(&[("x-session-id", "")], r#","prompt_cache_key":"""#), None);
    for more in [r#","user":"a""#, r#","safety_identifier":"a","user":"b""#, r#","metadata":{"user_id":"a"}"#]
    {
        assert_eq!(plain(more).user, Some(config.id(Kind::User, "a")), "{more}");
    }
    let tenant = facts(&[("x-llm-d-inference-fairness-id", "a")], "", &config).tenant;
    assert_eq!(tenant, Some(config.id(Kind::Tenant, "a")));
    assert!(tenant != a && plain(r#","user":"a""#).user != a, "kinds differ");
    let own = Config { id_seed: 9, tenant_headers: Names::of(&["x-team"]), ..Config::default() };
    let other = facts(&[("x-team", "a"), ("x-llm-d-inference-fairness-id", "b")], "", &own).tenant;
    assert!(other.is_some() && other != tenant, "seeds differ");
    let line =
        crate::wire::write_facts(&facts(&[("x-session-id", "my-secret")], r#","user":"my-secret""#, &config));
    assert!(!line.contains("my-secret") && line.contains(" session="), "{line}");
}

#[test]
fn an_adapter_names_its_base_and_keeps_its_own_blocks() {
    let config = Config { adapters: [("m".to_owned(), "base".to_owned())].into(), ..Config::default() };
    let text = "x".repeat(100);
    let body = format!(r#"{{"model":"m","input":"{text}"}}"#);
    let with = read(Dialect::Responses, body.as_bytes(), &config).unwrap();
    let without = read_as(Dialect::Responses, &body).unwrap();
    assert_eq!((with.facts.base_model.as_deref(), without.facts.base_model), (Some("base"), None));
    assert_eq!(with.blocks, without.blocks);
    let base = format!(r#"{{"model":"base","input":"{text}"}}"#);
    assert_ne!(read_as(Dialect::Responses, &base).unwrap().blocks, with.blocks);
}
