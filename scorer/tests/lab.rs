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
    assert_eq!(std::fs::read_to_string(svg).unwrap().matches("<polyline").count(), 2);
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
fn what_is_wrong_is_named() {
    for (args, named) in [
        (&["run", "--trace", "conversations"][..], "conversations: no such file, and none of conversation, "),
        (&["run", "--engine", "tpu"], "--engine tpu: expected one of "),
        (&["run", "--policy", "fastest"], "--policy fastest: unknown policy"),
        (&["run", "--policy", "{\"least_prefill\": {\"weight\": 1}}"], "least_prefill.weight"),
        (&["run", "--routing", "{\"proxys\": 2}"], "proxys"),
        (&["run", "--lost", "2"], "lost: 2"),
        (&["run", "--kill", "9@5"], "endpoint 9: there are 8"),
        (&["run", "--speed", "0"], "--speed: expected a number above 0"),
        (&["sweep", "--speeds", "1,-1"], "--speeds: expected numbers above 0"),
    ] {
        let small = ["--requests", "5"];
        let output = lab(&[args, &small].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(named), "{args:?}: {said}");
    }
}
