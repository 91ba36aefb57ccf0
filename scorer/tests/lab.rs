//! `weir lab` from outside: the same seed is the same output, byte for byte; what is wrong is named.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use std::process::{Command, Output};

fn lab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir")).arg("lab").args(args).output().unwrap()
}

fn printed(args: &[&str]) -> String {
    let output = lab(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

const SMALL: [&str; 8] = ["--trace", "chat", "--requests", "300", "--endpoints", "3", "--speed", "0.5"];

#[test]
fn the_same_seed_prints_the_same_bytes_and_writes_the_same_files() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).display().to_string();
    let once = |n: &str| {
        let (csv, json) = (file(&format!("{n}.csv")), file(&format!("{n}.json")));
        let policies = [
            "--policy",
            "p2c",
            "--policy",
            "mine={\"least_prefill\": {\"batch_weight\": 1}}",
            "--proxies",
            "3",
        ];
        let args = [&["compare", "--csv", &csv, "--json", &json], &SMALL[..], &policies].concat();
        let printed = printed(&args);
        (printed, std::fs::read(csv).unwrap(), std::fs::read(json).unwrap())
    };
    let (table, csv, json) = once("one");
    assert_eq!((table.clone(), csv.clone(), json.clone()), once("two"));
    assert!(table.contains("\np2c ") && table.contains("\nmine "), "{table}");
    assert_eq!(String::from_utf8(csv).unwrap().lines().count(), 3);
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!((json[1]["policy"].as_str(), json[1]["failed"].as_u64()), (Some("mine"), Some(0)));
}

#[test]
fn a_sweep_draws_one_curve_a_policy() {
    let directory = tempfile::tempdir().unwrap();
    let svg = directory.path().join("knee.svg").display().to_string();
    let args = [
        "sweep",
        "--trace",
        "bursts",
        "--requests",
        "200",
        "--speeds",
        "1,8",
        "--policy",
        "random",
        "--policy",
        "p2c",
    ];
    let table = printed(&[&args[..], &["--svg", &svg]].concat());
    assert!(table.contains("at speed 1\n") && table.contains("at speed 8\n"), "{table}");
    let knees = table.split_once("90 % good up to speed\n").unwrap().1;
    assert!(knees.lines().zip(["random  ", "p2c  "]).all(|(line, name)| line.starts_with(name)), "{knees}");
    assert_eq!(std::fs::read_to_string(svg).unwrap().matches("<polyline").count(), 2);
}

#[test]
fn a_pool_that_splits_prompts_from_answers_is_compared_with_one_that_does_not() {
    let table = printed(&[&["compare", "--prefillers", "1"], &SMALL[..]].concat());
    let split = |policy: &str| {
        let line = table.lines().find(|line| line.starts_with(&format!("{policy} "))).unwrap();
        line.split_whitespace().last().unwrap().parse::<u32>().unwrap()
    };
    assert_eq!((split("split-always"), split("least_prefill")), (300, 0), "{table}");
    let some = split("split-uncached-512");
    assert!(some > split("split-uncached-4096") && some < 300, "{table}");
}

#[test]
fn a_trace_file_of_ones_own_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mine.csv");
    std::fs::write(
        &file,
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-01 10:00:00,100,5\n2024-05-01 10:00:01,50,5\n",
    )
    .unwrap();
    let table = printed(&["run", "--trace", file.to_str().unwrap(), "--policy", "random"]);
    assert!(table.contains("2 requests"), "{table}");
}

#[test]
fn an_engine_is_made_of_what_was_measured_and_can_be_run() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).display().to_string();
    let mut log = String::from(
        "speed,request,due_ms,sent_ms,first_ms,end_ms,status,prompt_tokens,cached_tokens,output_tokens,endpoint,problem\n",
    );
    for n in 0..30 {
        // 10 ms a step, 0.2 ms a token of the prompt; the last one is not alone.
        let (due, prompt, output) = (f64::from(n) * 10_000.0, f64::from(100 + 60 * n), 21.0);
        let first = due + 10.0 + 0.2 * prompt;
        let end = first + 10.0 * (output - 1.0);
        log += &format!("1,{n},{due},{due},{first},{end},200,{prompt},0,{output},a:1,\n");
    }
    log += "1,30,290001,290001,299000,299500,200,100,0,21,a:1,\n";
    std::fs::write(file("log.csv"), &log).unwrap();
    let engines = printed(&["calibrate", "--log", &file("log.csv"), "--name", "found"]);
    let found = &serde_json::from_str::<serde_json::Value>(&engines).unwrap()["found"];
    let near = |name: &str, value: f64| (found[name].as_f64().unwrap() / value - 1.0).abs() < 0.02;
    assert!(near("prefill_us", 200.0), "{engines}");
    assert!((found["read_us"].as_f64().unwrap() + found["decode_us"].as_f64().unwrap() - 1e4).abs() < 200.0);
    std::fs::write(file("engines.json"), engines).unwrap();
    let more = ["--engines", &file("engines.json"), "--engine", "found", "--policy", "p2c"];
    assert!(printed(&[&["run"], &SMALL[..], &more].concat()).contains("3 x found"));
}

#[test]
fn the_example_of_a_calibration_is_what_its_log_gives() {
    let log = concat!(env!("CARGO_MANIFEST_DIR"), "/../lab/calibration/vllm-cpu.csv");
    let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap()["cpu-llama-13m"].clone();
    let found = read(&printed(&["calibrate", "--log", log, "--name", "cpu-llama-13m"]));
    let kept = read(include_str!("../../lab/engines.json"));
    for cost in ["overhead_us", "prefill_us", "decode_us", "pair_ns", "read_us", "kv_ns"] {
        let (found, kept) = (found[cost].as_f64().unwrap(), kept[cost].as_f64().unwrap());
        assert!((found - kept).abs() <= 0.01 * kept, "{cost}: {found} from the log, {kept} kept");
    }
}

#[test]
fn the_papers_table_is_the_same_each_time_and_bad_weights_are_named() {
    let table = || printed(&["paper", "--episodes", "1"]);
    let once = table();
    assert_eq!(once, table());
    assert!(
        once.contains("| workload guided RL | 11.43 |") && once.contains("| double DQN (ours) |"),
        "{once}"
    );
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("weights.json");
    std::fs::write(&file, r#"{"shape": [3, 1], "weights": [0, 0, 0, 0]}"#).unwrap();
    let output = lab(&["paper", "--weights", file.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("weights.json: shape: [3, 1]"), "{said}");
}

/// `weir load` with what makes no sense.
#[test]
fn what_cannot_be_loaded_is_named() {
    for (args, named) in [
        (&["--url", "https://a"][..], "--url https://a: expected http://"),
        (&["--url", "nowhere"], "--url nowhere"),
        (&["--url", "http://a/v1"], "--url http://a/v1: expected no path"),
        (&["--url", "http://a", "--speed", "0"], "--speed: expected a number above 0"),
        (&["--url", "http://a", "--speeds", "1,-1"], "--speeds: expected numbers above 0"),
        (&["--url", "http://a", "--rate", "0"], "--rate: expected a number above 0"),
        (&["--url", "http://a", "--ramp", "0"], "--ramp: expected a number above 0"),
        (&["--url", "http://a", "--duration", "0"], "--duration: expected a number above 0"),
        (&["--url", "http://a", "--concurrency", "0"], "--concurrency 0: expected 1 or more"),
        (&["--url", "http://a", "--timeout", "0"], "--timeout: expected a number above 0"),
        (&["--url", "http://a", "--header", "x"], "expected NAME: VALUE"),
        (&["--url", "http://a", "--endpoint-header", "a b"], "--endpoint-header a b"),
        (&["--url", "http://a", "--key-env", "WEIR_NO_SUCH"], "--key-env WEIR_NO_SUCH"),
        (&["--url", "http://a", "--body", "{\"a\": "], "--body"),
        (&["--url", "http://a", "--trace", "chats"], "chats: no such file, and none of conversation, "),
    ] {
        let fixed = ["load", "--model", "m", "--requests", "5"];
        let output = Command::new(env!("CARGO_BIN_EXE_weir")).args(fixed).args(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(named), "{args:?}: {said}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    for (args, named) in [
        (&["run", "--trace", "conversations"][..], "conversations: no such file, and none of conversation, "),
        (&["run", "--engine", "tpu"], "--engine tpu: expected one of "),
        (&["run", "--policy", "fastest"], "--policy fastest: unknown policy"),
        (&["run", "--policy", "{\"least_prefill\": {\"weight\": 1}}"], "least_prefill.weight"),
        (&["run", "--routing", "{\"proxys\": 2}"], "proxys"),
        (&["run", "--lost", "2"], "lost: 2"),
        (&["run", "--kill", "9@5"], "endpoint 9: there are 8"),
        (&["run", "--prefillers", "8"], "--prefillers 8: expected fewer than there are endpoints"),
        (&["run", "--kv-ms=-1"], "--kv-ms -1: expected 0 to 1e9"),
        (&["run", "--speed", "0"], "--speed: expected a number above 0"),
        (&["sweep", "--speeds", "1,-1"], "--speeds: expected numbers above 0"),
    ] {
        let small = ["--requests", "5"];
        let output = lab(&[args, &small].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(named), "{args:?}: {said}");
    }
}

/// What is written of the lab is what it prints: a row of the suite and a column of the two traces, near enough that another
/// mathematics library makes no difference.
#[test]
fn the_tables_in_the_results_are_what_the_lab_prints() {
    let results = include_str!("../../bench/RESULTS.md");
    let row = |after: &str, policy: &str| -> Vec<String> {
        let (_, text) = results.split_once(after).unwrap();
        let line = text.lines().find(|line| line.starts_with(&format!("| {policy} |"))).unwrap();
        line.trim_matches('|').split('|').map(|cell| cell.replace('*', "").trim().to_owned()).collect()
    };
    let number =
        |text: &str| text.trim_matches(|c| c != '.' && !char::is_ascii_digit(&c)).parse::<f64>().unwrap();
    let near = |kept: f64, found: f64| (kept - found).abs() <= 0.011_f64.max(0.01 * found);

    let args = [
        "compare",
        "--trace",
        "synthetic",
        "--speed",
        "1.4",
        "--policy",
        "lmetric",
        "--policy",
        "least_prefill",
    ];
    let table = printed(&args);
    for policy in ["lmetric", "least_prefill"] {
        let found: Vec<&str> =
            table.lines().find(|line| line.starts_with(policy)).unwrap().split_whitespace().collect();
        let kept = row("| synthetic x1.4 |", policy);
        let kept: Vec<&str> =
            kept[2].split([' ', ',']).filter(|word| word.starts_with(char::is_numeric)).collect();
        let found = [found[1], found[2], found[3], found[9], found[10]];
        assert_eq!(kept.len(), found.len(), "{kept:?}");
        for (kept, found) in kept.iter().zip(found) {
            assert!(near(number(kept), number(found)), "{policy}: {kept} is written, {found} was printed");
        }
    }

    // The whole suite takes minutes: the best of it and the default on one workload.
    let heading = row("<!-- suite -->", "TTFT p90 x best, good - best");
    let column = heading.iter().position(|cell| cell == "hot-prefix a100 x1.5").unwrap();
    let best = row("<!-- suite -->", "best")[column].clone();
    let behind = row("<!-- suite -->", "least_prefill")[column].clone();
    let (best, behind) = (number(best.split(' ').next().unwrap()), number(behind.split(' ').next().unwrap()));
    let args = [
        "run",
        "--trace",
        "hot-prefix",
        "--engine",
        "a100-llama3-8b",
        "--speed",
        "1.5",
        "--requests",
        "8000",
    ];
    let table = printed(&args);
    let ours =
        table.lines().find(|line| line.starts_with("least_prefill")).unwrap().split_whitespace().nth(2);
    assert!(
        near(best * behind, number(ours.unwrap())),
        "{best} x {behind} is written, {ours:?} s was printed"
    );
}
