//! The acceptance inputs: what requests and answers of the APIs that are spoken here mean, with the expected values
//! beside them in `acceptance/expected.json`. Each goes through `weir explain` and through a real Envoy.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use rig::backend::Saying;
use rig::{Backend, Gateway, Raw, Setup, fields, repository};
use serde_json::Value;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use weir::wire;

const CHAT: &str = "/v1/chat/completions";
/// The model of the second endpoint; all others are the first's.
const LORA: &str = "fin-notes-lora";

/// A row of `expected.json`, with its file's bytes.
struct Case {
    row: Value,
    bytes: Vec<u8>,
}

impl Case {
    fn name(&self) -> &str {
        self.row["file"].as_str().unwrap()
    }

    fn path(&self) -> &str {
        self.row["path"].as_str().unwrap_or(CHAT)
    }

    fn headers(&self) -> Vec<(String, String)> {
        let headers = self.row["headers"].as_object().unwrap();
        headers.iter().map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())).collect()
    }

    /// What `weir explain` says of it, with further arguments.
    fn explained(&self, kind: &str, arguments: &[String]) -> Value {
        let mut command = Command::new(repository().join("dist/weir"));
        command.args(["explain", kind]).arg(folder().join(self.name())).args(arguments);
        if !self.name().ends_with(".http") {
            command.args(["--path", self.path()]);
            self.headers().iter().for_each(|(name, value)| {
                command.args(["--header", &format!("{name}: {value}")]);
            });
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}: {}", self.name(), String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The status with which it is refused.
    fn refused(&self) -> Option<u16> {
        self.row["verdict"].as_str().unwrap().split(' ').next().unwrap().parse().ok().filter(|n| *n >= 400)
    }

    fn max_output(&self) -> Option<u64> {
        self.row["max_out"].as_u64()
    }

    /// The ways to cut an answer: whole, at the worst places, by seven bytes, by one.
    fn cuts(&self) -> Vec<Vec<Vec<u8>>> {
        let offsets = self.row["chunk_offsets"].as_array().unwrap();
        let ends: Vec<usize> = offsets.iter().map(|at| at.as_u64().unwrap() as usize).collect();
        let mut start = 0;
        let at_offsets = ends.into_iter().chain([self.bytes.len()]).map(|end| {
            let piece = self.bytes[start..end].to_vec();
            start = end;
            piece
        });
        let by = |size| self.bytes.chunks(size).map(<[u8]>::to_vec).collect();
        vec![vec![self.bytes.clone()], at_offsets.collect(), by(7), by(1)]
    }
}

fn folder() -> std::path::PathBuf {
    repository().join("tests/acceptance")
}

fn cases(kind: &str) -> Vec<Case> {
    let rows = std::fs::read(folder().join("expected.json")).unwrap();
    let rows: Vec<Value> = serde_json::from_slice(&rows).unwrap();
    let case = |row: Value| {
        let bytes = std::fs::read(folder().join(row["file"].as_str().unwrap())).unwrap();
        Case { row, bytes }
    };
    rows.into_iter().filter(|row| row["kind"] == kind).map(case).collect()
}

fn case(name: &str) -> Case {
    let kind = name.split('/').next().unwrap().trim_end_matches('s');
    cases(kind).into_iter().find(|case| case.name() == name).unwrap()
}

/// `system: S x900` stands for nine hundred of the letter.
fn spelled_out(piece: &str) -> String {
    let repeated = piece.rsplit_once(" x").and_then(|(before, times)| Some((before, times.parse().ok()?)));
    match repeated {
        Some((before, times)) => {
            let letter = before.chars().last().unwrap().to_string();
            format!("{}{}", before.strip_suffix(&letter).unwrap(), letter.repeat(times))
        }
        None => piece.to_owned(),
    }
}

#[test]
fn explain_says_of_every_request_what_is_expected() {
    let cases = cases("request");
    assert_eq!(cases.len(), 20);
    for case in &cases {
        let told = case.explained("request", &[]);
        let name = case.name();
        if let Some(status) = case.refused() {
            assert_eq!(told["verdict"], status.to_string(), "{name}");
            assert!(told["reason"].is_string(), "{name}");
            continue;
        }
        if name.ends_with(".http") {
            assert_eq!((&told["verdict"], &told["model"]), (&"pass".into(), &Value::Null), "{name}");
            continue;
        }
        assert_eq!(told["verdict"], "forward", "{name}: {told}");
        for field in ["model", "stream"] {
            assert_eq!(told[field], case.row[field], "{name}: {field}");
        }
        assert_eq!(told["max_output_tokens"].as_u64(), case.max_output(), "{name}");
        let prompt: Vec<String> = case.row["prompt"]
            .as_array()
            .unwrap()
            .iter()
            .map(|piece| spelled_out(piece.as_str().unwrap()))
            .collect();
        assert_eq!(told["prompt"], serde_json::json!(prompt), "{name}");
    }
}

#[test]
fn the_blocks_of_a_first_turn_are_the_beginning_of_the_second_turns() {
    let blocks = |name: &str| case(name).explained("request", &[])["blocks"].as_array().unwrap().clone();
    let (first, second) =
        (blocks("requests/chat_prefix_turn1.json"), blocks("requests/chat_prefix_turn2.json"));
    assert!(first.len() > 20 && second.len() > first.len());
    assert_eq!(second[..first.len()], first);
    let adapter = blocks("requests/chat_lora_by_name.json");
    assert!(adapter.iter().all(|block| !second.contains(block)));
}

#[test]
fn explain_says_of_every_answer_what_is_expected_however_it_is_cut() {
    let cases = cases("response");
    assert_eq!(cases.len(), 30);
    for case in &cases {
        let whole = case.explained("response", &[]);
        expect_usage(
            case,
            |field| whole["usage"][field].as_u64(),
            whole["usage"]["status"].as_str().unwrap(),
        );
        for size in [1, 7] {
            let cut = case.explained("response", &["--cut".to_owned(), size.to_string()]);
            assert_eq!(cut, whole, "{} in pieces of {size}", case.name());
        }
        let is_error = case.row["status"].as_u64().unwrap() >= 400 && case.name().ends_with(".json");
        // FastAPI's own errors have no type.
        let named = is_error && !case.name().contains("422");
        assert_eq!(whole["error"].is_string(), named, "{}: {whole}", case.name());
    }
}

#[test]
fn explain_says_of_every_engines_metrics_what_is_expected() {
    let cases = cases("metrics");
    assert_eq!(cases.len(), 12);
    for case in &cases {
        let (name, row) = (case.name(), &case.row);
        let file = folder().join(name);
        let told = explain(&["metrics".as_ref(), file.as_os_str()]);
        for (field, expected) in [("engine", "engine"), ("waiting", "queue"), ("running", "running")] {
            assert_eq!(told[field], row[expected], "{name}: {field}");
        }
        assert_eq!(told["kv_usage"].as_f64(), row["kv_usage"].as_f64(), "{name}");
        assert_eq!(told["usable"], row["usable"], "{name}");
        let adapters = &told["adapters"];
        let fields = [("running", "lora_running"), ("waiting", "lora_waiting"), ("max", "lora_max")];
        for (field, expected) in fields {
            assert_eq!(adapters.get(field).unwrap_or(&Value::Null), &row[expected], "{name}: {field}");
        }
        assert_eq!(adapters.is_null(), row["lora_running"].is_null(), "{name}");
        let rank = |rank: &Value| [&rank["waiting"], &rank["running"], &rank["kv_usage"]].map(Value::as_f64);
        let expected = |of: &Value| [&of[0], &of[1], &of[2]].map(Value::as_f64);
        match row["per_rank"].as_object() {
            None => assert!(told["ranks"].is_null(), "{name}"),
            Some(ranks) => {
                assert_eq!(told["ranks"].as_object().unwrap().len(), ranks.len(), "{name}");
                for (number, of) in ranks {
                    assert_eq!(rank(&told["ranks"][number]), expected(of), "{name}: rank {number}");
                }
            }
        }
    }
}

fn explain(arguments: &[&std::ffi::OsStr]) -> Value {
    let mut command = Command::new(repository().join("dist/weir"));
    let output = command.arg("explain").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The numbers of a row's usage are those that `said` gives.
fn expect_usage(case: &Case, said: impl Fn(&str) -> Option<u64>, status: &str) {
    for field in ["input", "cached", "output", "reasoning"] {
        let expected = case.row["usage"].get(field).and_then(Value::as_u64);
        assert_eq!(said(field), expected, "{}: {field}", case.name());
    }
    let expected = if case.row["usage"].is_null() { "missing" } else { "complete" };
    assert_eq!(status, expected, "{}", case.name());
}

/// A gateway with two endpoints by script: the second serves the adapter, the first all else.
async fn gateway() -> (Gateway, Arc<[Backend; 2]>) {
    let backends = Arc::new([Backend::start().await.unwrap(), Backend::start().await.unwrap()]);
    let placed = backends.clone();
    let models: Vec<String> = cases("request")
        .iter()
        .filter_map(|case| case.row["model"].as_str())
        .filter(|model| !model.contains(' ') && *model != LORA)
        .map(str::to_owned)
        .collect();
    let edit = move |envoy: &mut Value| {
        let mut models: Vec<&str> = models.iter().map(String::as_str).collect();
        models.sort_unstable();
        models.dedup();
        placed[1].place(envoy, 1, &[LORA], &[]);
        placed[0].place(envoy, 0, &models, &["/generate", "/v1/models", "/v1/realtime"]);
        // Of the answers that an endpoint gives here, many say that it is busy or broken.
        rig::no_breaker()(envoy);
    };
    let setup = Setup { engines: [0, 0], edit: Some(Box::new(edit)), ..Setup::default() };
    (Gateway::start(setup).await.unwrap(), backends)
}

/// Sends a request by hand, its body in one piece with its length, or in chunks of this size.
async fn send(connection: &mut Raw, case: &Case, chunks: Option<usize>) {
    let mut head = format!("POST {} HTTP/1.1\r\nhost: weir\r\n", case.path());
    case.headers().iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    match chunks {
        None => {
            head += &format!("content-length: {}\r\n\r\n", case.bytes.len());
            connection.send([head.as_bytes(), &case.bytes].concat()).await.unwrap();
        }
        Some(size) => {
            connection.send(head + "transfer-encoding: chunked\r\n\r\n").await.unwrap();
            for piece in case.bytes.chunks(size).chain([&[][..]]) {
                connection.send_chunk(piece).await.unwrap();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_passes_envoy_byte_for_byte_with_its_model_and_its_facts() {
    let (gateway, backends) = gateway().await;
    let requests: Vec<Case> =
        cases("request").into_iter().filter(|case| !case.name().ends_with(".http")).collect();
    assert_eq!(requests.len(), 17);
    for case in &requests {
        let name = case.name();
        for chunks in [None, Some(11), Some(1000)] {
            // After a refusal Envoy closes.
            let mut connection = Raw::connect(&gateway.url).await.unwrap();
            send(&mut connection, case, chunks).await;
            let answer = connection.answer().await.unwrap();
            let [first, second] = [0, 1].map(|place: usize| backends[place].heard());
            if let Some(status) = case.refused() {
                assert_eq!(answer.status, status, "{name}");
                let error = answer.json().unwrap();
                assert!(
                    error["error"]["message"].is_string() && error["error"]["type"].is_string(),
                    "{error}"
                );
                assert_eq!(first.len() + second.len(), 0, "{name} reached an endpoint");
                continue;
            }
            assert_eq!((answer.status, &*answer.body), (200, &b"{}"[..]), "{name}");
            let model = case.row["model"].as_str();
            let (heard, other) = if model == Some(LORA) { (second, first) } else { (first, second) };
            assert_eq!((heard.len(), other.len()), (1, 0), "{name}");
            assert!(heard[0].body == case.bytes, "{name}: not the bytes that were sent");
            assert_eq!(heard[0].line, format!("POST {} HTTP/1.1", case.path()));
            assert_eq!(heard[0].values(wire::MODEL), Vec::from_iter(model), "{name}");
            for (header, value) in case.headers() {
                assert_eq!(heard[0].values(&header), [value], "{name}: {header}");
            }
            let line = gateway.logged(answer.header("x-request-id").unwrap()).await.unwrap();
            let facts = fields(&line, "facts");
            let stream = if case.row["stream"].as_bool().unwrap() { "1" } else { "0" };
            assert_eq!(facts["stream"], stream, "{name}");
            assert_eq!(facts.get("model").map(String::as_str), model, "{name}");
            let most = facts.get("max_output_tokens").map(|most| most.parse().unwrap());
            assert_eq!(most, case.max_output(), "{name}");
            assert!(facts["prompt_tokens"].parse::<u32>().unwrap() > 0, "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_request_in_chunks_leaves_before_its_model_is_known() {
    let (gateway, backends) = gateway().await;
    let case = case("requests/chat_model_last_key.json");
    let mut connection = Raw::connect(&gateway.url).await.unwrap();
    connection.send(rig::raw::post(CHAT, &["transfer-encoding: chunked"])).await.unwrap();
    for piece in case.bytes.chunks(case.bytes.len() / 3 + 1) {
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(backends.iter().all(|backend| backend.connections() == 0), "it went on without its model");
        connection.send_chunk(piece).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(backends.iter().all(|backend| backend.connections() == 0), "it went on before its end");
    connection.send_chunk("").await.unwrap();
    assert_eq!(connection.answer().await.unwrap().status, 200);
    let heard = backends[0].heard();
    assert_eq!((heard.len(), backends[1].heard().len()), (1, 0));
    assert!(heard[0].body == case.bytes);
    assert_eq!(heard[0].values(wire::MODEL), ["demo-chat-8b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_passes_envoy_byte_for_byte_and_its_usage_is_logged() {
    let (gateway, backends) = gateway().await;
    let request = case("requests/chat_string_min.json");
    let answers = cases("response");
    for case in &answers {
        let status = u16::try_from(case.row["status"].as_u64().unwrap()).unwrap();
        for pieces in case.cuts() {
            let cut = format!("{} in {} pieces", case.name(), pieces.len());
            // Pauses only where they are few: without them Envoy may join what was cut.
            let pause = Duration::from_millis(if pieces.len() < 10 { 5 } else { 0 });
            backends[0].says(Saying { status, headers: case.headers(), pieces, pause });
            let mut connection = Raw::connect(&gateway.url).await.unwrap();
            send(&mut connection, &request, None).await;
            let answer = connection.answer().await.unwrap();
            assert_eq!(answer.status, status, "{cut}");
            assert!(answer.body == case.bytes, "{cut}: not the bytes that the endpoint sent");
            for (name, value) in case.headers() {
                assert_eq!(answer.header(&name), Some(&*value), "{cut}: {name}");
            }
            let line = gateway.logged(answer.header("x-request-id").unwrap()).await.unwrap();
            let usage = fields(&line, "usage");
            expect_usage(case, |field| usage.get(field)?.parse().ok(), &usage["status"]);
            assert_eq!(backends[0].heard().len(), 1, "{cut}: asked once");
        }
    }
}
