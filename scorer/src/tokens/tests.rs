use super::*;
use std::num::NonZeroUsize;
use std::path::PathBuf;

fn file(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokens")).join(name)
}

fn config(more: serde_json::Value) -> Config {
    let mut config =
        serde_json::json!({"tokenizer": file("tokenizer.json"), "config": file("tokenizer_config.json")});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(config).unwrap()
}

fn model() -> Model {
    Model::read(&config(serde_json::json!({}))).unwrap()
}

/// The text of the tokens of a body.
fn text(body: &str) -> String {
    let model = model();
    let tokens = of_body(&model, body.as_bytes()).unwrap();
    model.tokenizer.decode(&tokens.ids, false).unwrap()
}

fn unread(body: &str) -> Unread {
    of_body(&model(), body.as_bytes()).unwrap_err()
}

#[test]
fn a_chat_becomes_what_the_template_makes_of_it() {
    let body = r#"{"model":"m","messages":[{"role":"system","content":"Say é"},{"role":"user","content":[
        {"type":"text","text":"one"},{"type":"text","text":"two"}]}]}"#;
    assert_eq!(
        text(body),
        "<|im_start|>system\nSay é<|im_end|>\n<|im_start|>user\none\ntwo<|im_end|>\n<|im_start|>assistant\n"
    );
    let tokens = of_body(&model(), br#"{"messages":[{"role":"user","content":"Say hello"}]}"#).unwrap();
    assert_eq!(tokens.ids[0], 1, "a special token is one token");
    assert!(tokens.ids.len() > 8, "what the tokenizer would cut off is there");
}

#[test]
fn tools_and_calls_are_written_in_the_order_in_which_the_engine_writes_them() {
    let body = r#"{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":
        {"name":"f","arguments":"{\"z\":1,\"a\":[\"<\"]}"}}]}],"tools":[{"function":{"parameters":{"z":{},"a":1},"name":"f","strict":true},
        "type":"function"}],"chat_template_kwargs":{"add_generation_prompt":false}}"#;
    let tool = r#"{"type": "function", "function": {"name": "f", "description": null, "parameters": {"z": {}, "a": 1}, "strict": true}}"#;
    assert_eq!(
        text(body),
        format!(
            "<|im_start|>system\n{tool}\n<|im_end|>\n<|im_start|>assistant\nf {{\"z\": 1, \"a\": [\"<\"]}}<|im_end|>\n"
        )
    );
}

#[test]
fn completions_have_special_tokens_and_tokens_are_taken_as_they_are() {
    assert_eq!(text(r#"{"prompt":"Say hello"}"#), "<|endoftext|>Say hello");
    assert_eq!(text(r#"{"prompt":["Say hello"],"add_special_tokens":false}"#), "Say hello");
    for body in [
        r#"{"prompt":[5,6,7]}"#,
        r#"{"prompt":[[5,6,7]]}"#,
        r#"{"token_ids":[5,6,7]}"#,
        r#"{"input_ids":[5,6,7]}"#,
    ] {
        assert_eq!(of_body(&model(), body.as_bytes()).unwrap().ids, [5, 6, 7], "{body}");
    }
}

#[test]
fn an_anthropic_system_prompt_comes_first_and_a_salt_is_taken_along() {
    let body = r#"{"system":[{"type":"text","text":"Say"}],"cache_salt":"t","messages":[{"role":"user","content":"a"}]}"#;
    assert!(text(body).starts_with("<|im_start|>system\nSay<|im_end|>\n<|im_start|>user\na"));
    assert_eq!(of_body(&model(), body.as_bytes()).unwrap().salt, kv::salt("t"));
}

#[test]
fn what_cannot_be_known_is_not_guessed() {
    let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    for (body, why) in [
        ("", Unread::Body),
        ("[]", Unread::Body),
        (&deep, Unread::Body),
        (r#"{"messages":7}"#, Unread::Body),
        (
            r#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}"#,
            Unread::Media,
        ),
        (r#"{"messages":[],"continue_final_message":true}"#, Unread::Unsupported),
        (r#"{"prompt":["a","b"]}"#, Unread::Unsupported),
        (r#"{"prompt":[-1,2]}"#, Unread::Unsupported),
        (r#"{"input":"x"}"#, Unread::Unsupported),
        (
            r#"{"messages":[{"role":"user","content":"a","tool_calls":[{"function":{"arguments":"{"}}]}]}"#,
            Unread::Body,
        ),
        (r#"{"messages":[{"role":1,"content":"a"}]}"#, Unread::Template),
    ] {
        assert_eq!(unread(body), why, "{body:.80}");
    }
    let without: Config =
        serde_json::from_value(serde_json::json!({"tokenizer": file("tokenizer.json")})).unwrap();
    let model = Model::read(&without).unwrap();
    let chat = br#"{"messages":[]}"#;
    assert_eq!(of_body(&model, chat), Err(Unread::NoTemplate));
}

#[test]
fn files_that_are_none_are_named() {
    for (more, why) in [
        (serde_json::json!({"tokenizer": file("nowhere.json")}), "nowhere.json: cannot be read"),
        (
            serde_json::json!({"tokenizer": file("tokenizer_config.json")}),
            "tokenizer_config.json: no tokenizer: ",
        ),
        (serde_json::json!({"template": file("broken.jinja")}), "broken.jinja"),
    ] {
        let error = Model::read(&config(more)).unwrap_err();
        assert!(format!("{error:#}").contains(why), "{error:#}");
    }
}

#[tokio::test]
async fn a_reader_gives_up_what_is_too_long_or_takes_too_long() {
    let body = br#"{"prompt":"Say hello"}"#.to_vec();
    let reader = Reader::new(&config(serde_json::json!({"timeout_ms": 60_000}))).unwrap();
    assert_eq!(reader.read(body.clone(), None).await.map(|tokens| tokens.ids.len()), Ok(3));
    assert_eq!(reader.read(Vec::new(), None).await, Err(Unread::Absent));
    let short = Reader { most: NonZeroUsize::MIN.get(), ..reader.clone() };
    assert_eq!(short.read(body.clone(), None).await, Err(Unread::TooLong));
    let busy = Reader { timeout: Duration::from_millis(1), ..reader.clone() };
    let _all = busy.turns.acquire_many(2).await.unwrap();
    assert_eq!(busy.read(body, None).await, Err(Unread::Late));
}

#[tokio::test]
async fn what_cannot_be_done_in_time_is_not_begun_and_short_ones_have_a_thread_to_themselves() {
    let reader = Reader::new(&config(serde_json::json!({"timeout_ms": 60_000}))).unwrap();
    let prompt = |words: usize| format!(r#"{{"prompt":"{}"}}"#, "Say hello ".repeat(words)).into_bytes();
    let (short, long) = (prompt(2), prompt(5_000));
    reader.read(long.clone(), None).await.unwrap();
    // All turns of long ones are taken.
    let turns = reader.long.acquire_many(1).await.unwrap();
    assert_eq!(reader.long.available_permits(), 0);
    assert!(reader.turns.available_permits() > 0);
    let hasty = Reader { timeout: Duration::from_millis(200), pace: Arc::default(), ..reader.clone() };
    assert_eq!(hasty.read(long.clone(), None).await, Err(Unread::Late));
    reader.read(short.clone(), None).await.unwrap();
    drop(turns);
    reader.pace.learn(1 << 20, Duration::from_secs(6_000), reader.clock.now());
    assert_eq!(reader.read(long, None).await, Err(Unread::TooLong));
    reader.read(short, None).await.unwrap();
}
