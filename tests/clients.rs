//! The clients that people use, unmodified.
#![allow(clippy::unwrap_used, reason = "a test")]

use rig::{Gateway, Setup, repository};
use std::path::PathBuf;
use std::process::Command;

#[tokio::test(flavor = "multi_thread")]
async fn the_python_clients_of_openai_and_anthropic_work_unmodified() {
    let python = std::env::var_os("WEIR_PYTHON")
        .map_or_else(|| repository().join(".tools/venv/bin/python"), PathBuf::from);
    assert!(
        python.exists(),
        "no Python at {}: make a venv there with `pip install openai anthropic`, or name one in WEIR_PYTHON",
        python.display()
    );
    let gateway = Gateway::start(Setup::default()).await.unwrap();
    let mut clients = Command::new(python);
    clients.arg(repository().join("tests/clients/clients.py")).arg(&gateway.url);
    let output = tokio::task::spawn_blocking(move || clients.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(said.ends_with("all well\n"), "{said}");
    assert_eq!((gateway.received(0).len(), gateway.received(1).len()), (6, 3));
}
