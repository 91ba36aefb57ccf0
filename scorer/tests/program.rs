//! `weir scorer` as a process: how it starts, refuses and ends.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

const GOOD: &str = "{pools: [{name: a, models: [m], endpoints: ['10.0.0.1:80']}]}";

#[test]
fn the_program_serves_and_ends_well_on_sigterm() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scorer.json");
    std::fs::write(&file, GOOD).unwrap();
    let program = |file: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["scorer", "--listen", "127.0.0.1:0", "--config"]).arg(file);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut scorer = program(&file);
    let mut line = String::new();
    BufReader::new(scorer.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("weir scorer listening on 127.0.0.1:"), "{line}");
    assert!(Command::new("kill").arg(scorer.id().to_string()).status().unwrap().success());
    assert!(scorer.wait().unwrap().success());

    std::fs::write(&file, "pools: []").unwrap();
    let refused = program(&file).wait_with_output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("scorer.json: pools: empty"), "{said}");
}
