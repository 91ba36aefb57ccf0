use super::*;

mod ambiguity;
mod facts;
mod head;
mod uploads;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn read_as(dialect: Dialect, body: &str) -> Result<Reading<'_>, Refusal> {
    read(dialect, body.as_bytes(), &Config::default())
}

fn prompt(dialect: Dialect, body: &str) -> Vec<String> {
    read_as(dialect, body).unwrap().prompt.iter().map(ToString::to_string).collect()
}

fn refused(body: &str) -> String {
    let refusal = read_as(Dialect::Chat, body).unwrap_err();
    assert_eq!(refusal.status, 400);
    refusal.message
}

#[test]
fn a_refusal_quotes_nothing_of_the_body() {
    let secret = "a word in confidence";
    for body in [
        format!("\"{secret}\""),
        format!("[\"{secret}\"]"),
        format!("{{\"model\":\"{secret}\\n\"}}"),
        format!("{{\"model\":\"m\",\"messages\":\"{secret}"),
        format!("{{\"model\":\"m\"}} {secret}"),
        format!("{{\"{secret}\":\"\\ud800{secret}\",\"messages\":\"\\ud800{secret}\",\"model\":\"m\"}}"),
        format!("{{\"{secret}\":nul}}"),
    ] {
        let message = refused(&body);
        assert!(!secret.split(' ').any(|word| word.len() > 4 && message.contains(word)), "{body}: {message}");
    }
    assert!(refused("7").ends_with("not a JSON object"));
}

#[test]
fn model_may_come_last_and_content_before_role() {
    let body = r#"{"messages":[{"content":"hi","role":"user"}],"max_tokens":3,"model":"m"}"#;
    let reading = read_as(Dialect::Chat, body).unwrap();
    assert_eq!(reading.facts.model.as_deref(), Some("m"));
    assert_eq!(reading.facts.max_output_tokens, Some(3));
    assert_eq!(prompt(Dialect::Chat, body), ["user: hi"]);
}

#[test]
fn prompt_is_in_the_order_of_the_template() {
    let body = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:x"}},{"type":"text","text":"b"}]}],
        "system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}],
        "tools":[{"name":"find"},{"type":"function","function":{"name":"get"}}],"model":"m"}"#;
    let expected = ["[tools: find, get]", "system: s", "user: a", "[image_url: 16 bytes]", "user: b"];
    assert_eq!(prompt(Dialect::Messages, body), expected);
}

#[test]
fn a_prompts_name_in_another_dialect_is_not_the_prompt() {
    let responses = r#"{"model":"m","input":"Plan.","text":{"format":{"type":"text"}},"prompt":{"id":"x"}}"#;
    assert_eq!(prompt(Dialect::Responses, responses), ["user: Plan."]);
    let chat = r#"{"model":"m","messages":[{"role":"user","content":"Hi."}],"prompt":null,"input":"x"}"#;
    assert_eq!(prompt(Dialect::Chat, chat), ["user: Hi."]);
}

#[test]
fn an_image_changes_the_blocks_and_a_cache_mark_does_not() {
    let long = "x".repeat(200);
    let body = |image: &str, mark: &str| {
        let part = format!(r#"{{"type":"image_url","image_url":{{"url":"data:{image}"}}}}"#);
        let body = format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":[{part},{{"type":"text","text":"{long}"{mark}}}]}}]}}"#
        );
        read_as(Dialect::Chat, &body).unwrap().blocks
    };
    assert_eq!(body("a", ""), body("a", r#","cache_control":{"type":"ephemeral"}"#));
    assert_ne!(body("a", "")[0], body("b", "")[0]);
}

#[test]
fn an_image_counts_by_its_number_and_not_by_its_bytes() {
    let read = |part: &str| {
        let body = format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":[{{"type":"text","text":"What is it?"}},{part}]}}]}}"#
        );
        let reading = read_as(Dialect::Chat, &body).unwrap();
        (reading.facts.prompt_tokens, reading.facts.prompt_units, reading.size.tokens)
    };
    let pixels = "A".repeat(100_000);
    let data = |kind: &str| format!(r#"{{"type":"{kind}","data":"{pixels}"}}"#);
    for part in [
        format!(r#"{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{pixels}"}}}}"#),
        r#"{"type":"image_url","image_url":{"url":"https://pictures/1"}}"#.into(),
        format!(r#"{{"type":"image","source":{}}}"#, data("base64")),
        format!(
            r#"{{"type":"tool_result","tool_use_id":"t","content":[{{"type":"image","source":{}}}]}}"#,
            data("base64")
        ),
    ] {
        let (tokens, units, known) = read(&part);
        assert!(
            (1_000..1_030).contains(&tokens) && (63..66).contains(&units),
            "{tokens}, {units}: {}",
            &part[..60]
        );
        assert_eq!(known, 1_000);
    }
    let (tokens, _, known) = read(&format!(r#"{{"type":"document","source":{}}}"#, data("text")));
    assert!((25_000..25_100).contains(&tokens), "a document of plain text: {tokens}");
    assert_eq!(known, 0);
    let many = r#"{"type":"image_url","image_url":"u"},"#.repeat(5_000);
    assert_eq!(read(&format!("{many}{{}}")).2, 1_000_000, "no more images than engines accept");
}

#[test]
fn token_ids_need_no_estimate() {
    let body = format!(r#"{{"model":"m","prompt":[{}1]}}"#, "7,".repeat(99));
    let config = Config { bytes_per_token: 2.try_into().unwrap(), ..Config::default() };
    let reading = read(Dialect::Completions, body.as_bytes(), &config).unwrap();
    assert_eq!((reading.facts.prompt_tokens, reading.size), (100, Size { tokens: 100, ..Size::default() }));
}

#[test]
fn fields_that_are_not_read_count_where_they_may_be_text_of_the_prompt() {
    let long = "x".repeat(4_000);
    let size = |more: &str| {
        let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}}]{more}}}"#);
        let reading = read(Dialect::Chat, body.as_bytes(), &Config::default()).unwrap();
        (reading.facts.prompt_tokens, reading.blocks.len(), reading.size.unread)
    };
    let (tokens, blocks, _) = size("");
    for field in [
        format!(r#","documents":[{{"text":"{long}"}}]"#),
        format!(r#","chat_template":"{long}""#),
        format!(r#","chat_template_kwargs":{{"notes":"{long}"}}"#),
        format!(r#","functions":[{{"name":"{long}"}}]"#),
        format!(r#","what nobody knows":{{"a":"{long}"}}"#),
    ] {
        let (counted, known, unread) = size(&field);
        assert!((tokens + 1_000..tokens + 1_020).contains(&counted), "{counted}: {}", &field[..20]);
        assert!(known == blocks && unread >= 4_000, "the blocks are of what is read");
    }
    for (field, more) in [
        (r#","temperature":0.7,"seed":7,"response_format":{"type":"json_object"}"#.to_owned(), 0),
        (r#","chat_template_kwargs":{"enable_thinking":false}"#.to_owned(), 0),
        (format!(r#","logit_bias":{{"{long}":1}}"#), 0),
        (format!(r#","guided_json":{{"{long}":1}}"#), 0),
        (format!(r#","request_id":"{long}""#), 0),
        (format!(r#","prompt_embeds":"{long}""#), 4),
    ] {
        assert_eq!(size(&field).0, tokens + more, "{}", &field[..20]);
    }
}

#[test]
fn the_model_the_salt_and_the_effort_seed_the_blocks() {
    let body = |model: &str, more: &str| {
        let text = "y".repeat(100);
        let body =
            format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"{text}"}}]{more}}}"#);
        read_as(Dialect::Chat, &body).unwrap().blocks[0]
    };
    let plain = body("m", "");
    assert_eq!(plain, body("m", r#","temperature":0.5"#));
    for other in [body("n", ""), body("m", r#","cache_salt":"s""#), body("m", r#","reasoning_effort":"low""#)]
    {
        assert_ne!(plain, other);
    }
}

#[test]
fn a_second_turn_extends_the_first() {
    let turn = |messages: &str| {
        let body = format!(r#"{{"model":"m","messages":[{messages}]}}"#);
        read_as(Dialect::Chat, &body).unwrap().blocks
    };
    let said = |role: &str, n: usize| format!(r#"{{"role":"{role}","content":"{}"}}"#, role.repeat(n));
    let first = turn(&[said("system", 50), said("user", 60)].join(","));
    let second =
        turn(&[said("system", 50), said("user", 60), said("assistant", 9), said("user", 20)].join(","));
    assert!(first.len() > 5 && second.len() > first.len());
    assert_eq!(second[..first.len()], first[..]);
}

#[test]
fn a_model_inside_something_else_is_not_the_model() {
    let body = r#"{"metadata":{"model":"x"},"messages":[{"role":"user","content":"\"model\":\"y\"","model":"z"}],"model":"m"}"#;
    assert_eq!(read_as(Dialect::Chat, body).unwrap().facts.model.as_deref(), Some("m"));
}

#[test]
fn odd_types_are_left_to_the_engine() {
    for body in [
        r#"{"model":"m","messages":7,"max_tokens":"x","stream":[],"n":{},"tools":null}"#,
        r#"{"model":"m","messages":{"role":1,"content":2}}"#,
        r#"{"model":"m","messages":[null,1,"x",[[1],[2]],{"content":[null,1,["a"],{"text":5}]}]}"#,
        r#"{"model":"m","prompt":[[1,2],[3],"x"],"max_tokens":1e400}"#,
    ] {
        // 1e400 is out of range for serde_json, and for most engines.
        let read = read_as(Dialect::Chat, body);
        assert!(read.is_ok() || body.contains("1e400"), "{body}: {:?}", read.err());
    }
}

#[test]
fn bounds_follow_each_dialect() {
    let bound = |dialect, more: &str| {
        let body = format!(r#"{{"model":"m"{more}}}"#);
        read_as(dialect, &body).unwrap().facts.max_output_tokens
    };
    assert_eq!(bound(Dialect::Chat, ""), None);
    assert_eq!(bound(Dialect::Chat, r#","max_tokens":5,"max_completion_tokens":9,"n":2"#), Some(18));
    assert_eq!(bound(Dialect::Chat, r#","max_tokens":"5""#), Some(5));
    assert_eq!(bound(Dialect::Completions, ""), Some(16));
    assert_eq!(bound(Dialect::Completions, r#","prompt":["a","b"],"best_of":3,"max_tokens":4"#), Some(24));
    assert_eq!(bound(Dialect::Completions, r#","prompt":[[1,2],[3]],"max_tokens":4"#), Some(8));
    assert_eq!(bound(Dialect::Completions, r#","prompt":[1,2,3],"max_tokens":4"#), Some(4));
    assert_eq!(bound(Dialect::Responses, r#","max_output_tokens":7"#), Some(7));
    assert_eq!(bound(Dialect::Embeddings, r#","input":"a""#), Some(0));
    assert_eq!(bound(Dialect::Messages, r#","max_tokens":7"#), Some(7));
    assert_eq!(bound(Dialect::Generate, r#","sampling_params":{"max_new_tokens":12}"#), Some(12));
    assert_eq!(bound(Dialect::Chat, r#","max_tokens":99999999999"#), Some(u32::MAX));
    assert_eq!(bound(Dialect::Transcriptions, r#","max_completion_tokens":7"#), Some(7));
    assert_eq!(
        bound(Dialect::Tokens, r#","token_ids":[1,2],"sampling_params":{"max_tokens":5,"n":2}"#),
        Some(10)
    );
    assert_eq!(bound(Dialect::Tokens, ""), Some(16));
    let batch = r#","text":["a","b"],"sampling_params":[{"max_new_tokens":3},{"max_new_tokens":5}]"#;
    assert_eq!(bound(Dialect::Generate, batch), Some(10));
    assert_eq!(bound(Dialect::Moderations, r#","input":"a""#), Some(0));
    assert_eq!(bound(Dialect::CountTokens, r#","max_tokens":7"#), Some(0));
    assert_eq!(bound(Dialect::Images, r#","n":2"#), None);
}

#[test]
fn what_the_engine_must_write_is_read_over_all_answers() {
    let least = |dialect, more: &str| {
        let body = format!(r#"{{"model":"m"{more}}}"#);
        read_as(dialect, &body).unwrap().facts.min_output_tokens
    };
    assert_eq!(least(Dialect::Chat, ""), 0);
    assert_eq!(least(Dialect::Chat, r#","min_tokens":300,"n":3"#), 900);
    assert_eq!(least(Dialect::Completions, r#","prompt":["a","b"],"min_tokens":4"#), 8);
    assert_eq!(least(Dialect::Tokens, r#","token_ids":[1],"sampling_params":{"min_tokens":5}"#), 5);
    let batch = r#","text":["a","b"],"sampling_params":[{"min_new_tokens":3},{"min_new_tokens":5}]"#;
    assert_eq!(least(Dialect::Generate, batch), 10);
    for odd in ["-1", "\"x\"", "null", "[]"] {
        assert_eq!(least(Dialect::Chat, &format!(r#","min_tokens":{odd}"#)), 0, "{odd}");
    }
    assert_eq!(least(Dialect::Chat, r#","min_tokens":99999999999,"n":99999999999"#), u32::MAX);
}

#[test]
fn answers_are_counted_where_the_dialect_has_several() {
    let choices = |dialect, more: &str| {
        let body = format!(r#"{{"model":"m"{more}}}"#);
        read_as(dialect, &body).unwrap().facts.choices
    };
    assert_eq!(choices(Dialect::Chat, ""), Some(1));
    assert_eq!(choices(Dialect::Chat, r#","n":128"#), Some(128));
    assert_eq!(choices(Dialect::Chat, r#","n":"many""#), None);
    assert_eq!(choices(Dialect::Completions, r#","prompt":["a","b"],"n":2,"best_of":3"#), Some(6));
    assert_eq!(choices(Dialect::Messages, r#","n":128"#), Some(1));
    assert_eq!(choices(Dialect::Chat, r#","n":99999999999"#), Some(u32::MAX));
}

#[test]
fn deep_nesting_and_long_lists_are_only_skipped() {
    let deep = format!(r#"{{"x":{}{},"model":"m"}}"#, "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(read_as(Dialect::Chat, &deep).unwrap().facts.model.as_deref(), Some("m"));
    for piece in ["[]", "[1]", "{\"content\":\"\"}", "{\"\":1}"] {
        let many = format!(r#"{{"model":"m","messages":[{}]}}"#, vec![piece; 70_000].join(","));
        assert!(refused(&many).contains("65536 pieces"), "{piece}");
    }
    let deep = format!(r#"{{"model":"m","messages":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    assert!(read_as(Dialect::Chat, &deep).is_ok());
}

#[test]
fn a_refusal_speaks_the_clients_dialect() {
    let body: serde_json::Value =
        serde_json::from_str(&Refusal::new(Dialect::Messages, 400, "no \"x\"").body()).unwrap();
    assert_eq!(body["type"], "error");
    assert_eq!(body["error"]["message"], "no \"x\"");
    let body: serde_json::Value =
        serde_json::from_str(&Refusal::new(Dialect::Chat, 400, "no").body()).unwrap();
    assert_eq!(body["error"]["type"], "invalid_request_error");
}
