//! `weir explain` as it is called: one line of JSON, and what the command line decides.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use serde_json::{Value, json};
use std::io::Write;
use std::process::{Command, Output, Stdio};

fn run(arguments: &[&str], input: &[u8]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_weir"));
    program
        .arg("explain")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = program.spawn().unwrap();
    // A program that refuses its arguments does not read.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn told(arguments: &[&str], input: &[u8]) -> Value {
    let output = run(arguments, input);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_request_is_told_in_one_line() {
    let body = br#"{"model":"m","messages":[{"role":"user","content":"One\ntwo?"}]}"#;
    let told = told(&["request", "-", "--path", "/v1/chat/completions"], body);
    let expected = json!({
        "verdict": "forward", "model": "m", "stream": false, "max_output_tokens": null,
        "prompt": ["user: One\ntwo?"], "blocks": [], "prompt_tokens": 4, "dialect": "chat", "reason": null,
    });
    assert_eq!(told, expected);
}

#[test]
fn headers_methods_and_configuration_count() {
    let path = ["request", "-", "--path", "/v1/completions"];
    let body = br#"{"model":"m","prompt":"0123456789"}"#;
    let with = |more: &[&str]| told(&[&path, more].concat(), body);
    assert_eq!(with(&["--method", "GET"])["verdict"], "pass");
    assert_eq!(with(&["--header", "Content-Encoding: gzip"])["verdict"], "415");
    assert_eq!(with(&["--header", "content-type: multipart/form-data"])["verdict"], "415");
    assert_eq!(with(&["--config", r#"{"request":{"max_body_bytes":3}}"#])["verdict"], "413");
    let rules = r#"{"rewrite":{"rules":[{"models":["m*"],"targets":[{"model":"n"}]}]}}"#;
    let renamed = with(&["--config", rules]);
    assert_eq!((&renamed["model"], &renamed["rewritten_from"]), (&"n".into(), &"m".into()));
    let small = r#"{"request":{"block_tokens":1,"bytes_per_token":5}}"#;
    assert_eq!(with(&["--config", small])["blocks"].as_array().unwrap().len(), 2);
    assert_eq!(told(&path, b"")["verdict"], "400");
    let refused = run(&[&path[..], &["--config", r#"{"request":{"max":3}}"#]].concat(), body);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--config: request.max: unknown field"));
    assert_eq!(run(&["request", "-"], body).status.code(), Some(2), "no path");
    assert_eq!(run(&[&path[..], &["--header", "nonsense"]].concat(), body).status.code(), Some(2));
}

#[test]
fn a_whole_request_says_its_own_line_and_headers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("r.http");
    let name = file.to_str().unwrap();
    std::fs::write(&file, "GET /v1/models HTTP/1.1\r\nContent-Length: 0\r\n\r\n").unwrap();
    assert_eq!(told(&["request", name], b"")["verdict"], "pass");
    let body = r#"{"input":"tide","model":"e"}"#;
    let text = format!("POST /v1/embeddings HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}\n", body.len());
    std::fs::write(&file, text).unwrap();
    assert_eq!(told(&["request", name], b"")["dialect"], "embeddings");
    assert_eq!(told(&["request", name, "--path", "/x"], b"")["verdict"], "pass");
    std::fs::write(&file, "nonsense").unwrap();
    assert_eq!(run(&["request", name], b"").status.code(), Some(1));
}

#[test]
fn an_answer_is_told_in_one_line() {
    let body = br#"{"usage":{"input_tokens":3,"cache_read_input_tokens":7,"output_tokens":2},"stop_reason":"end_turn"}"#;
    let expected = json!({
        "usage": {"input": 10, "cached": 7, "output": 2, "reasoning": 0, "status": "complete"},
        "finish": "end_turn", "error": null, "deltas": 0, "stream": false,
    });
    assert_eq!(told(&["response", "-", "--path", "/v1/messages"], body), expected);
    let events = b"event: error\ndata: {\"error\":{\"type\":\"overloaded\"}}\n\n";
    let nothing = json!({
        "usage": {"input": null, "cached": null, "output": null, "reasoning": null, "status": "missing"},
        "finish": null, "error": "overloaded", "deltas": 0, "stream": true,
    });
    for cut in ["1", "7", "1000"] {
        assert_eq!(told(&["response", "-", "--cut", cut], events), nothing);
    }
}

#[test]
fn an_engines_metrics_are_told_in_one_line_and_what_is_missing_is_null() {
    let text = b"vllm:num_requests_running{engine=\"0\"} 4.0\nvllm:gpu_cache_usage_perc 0.25\n";
    let expected = json!({
        "engine": "vllm", "waiting": null, "running": 4, "kv_usage": 0.25, "kv_tokens": null, "adapters": null,
        "ranks": null, "usable": true,
    });
    assert_eq!(told(&["metrics", "-"], text), expected);
    assert_eq!(told(&["metrics", "-"], b"<html>")["usable"], false);
}
