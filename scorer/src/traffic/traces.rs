//! Workloads by name or file: the public traces, which are built in, and generated traffic.

use anyhow::{Context, bail};
use flate2::read::GzDecoder;
use std::io::Read;
use std::path::Path;
use weir_lab::workload::{Clumps, Request, WORKLOADS, azure, generate, mooncake};

/// A trace that is built in.
struct Trace {
    name: &'static str,
    about: &'static str,
    gz: &'static [u8],
    /// Milliseconds between the clumps that its stamps were rounded to.
    clumps_ms: f64,
    read: fn(&str, Clumps) -> Result<Vec<Request>, weir::invalid::Invalid>,
}

const TRACES: &[Trace] = &[
    Trace {
        name: "conversation",
        about: "Mooncake's conversations: prompts of 12,035 tokens, 3.4 a second, clumps of 3 s spread out",
        gz: include_bytes!("../../../lab/traces/conversation_trace.jsonl.gz"),
        clumps_ms: 3_000.0,
        read: mooncake,
    },
    Trace {
        name: "synthetic",
        about: "Mooncake's synthetic requests: prompts of 15,325 tokens, 3.9 a second",
        gz: include_bytes!("../../../lab/traces/synthetic_trace.jsonl.gz"),
        clumps_ms: 0.0,
        read: mooncake,
    },
    Trace {
        name: "azure-code",
        about: "Azure's code completions, 2023: prompts of 2,048 tokens, 2.6 a second in bursts, nothing shared",
        gz: include_bytes!("../../../lab/traces/AzureLLMInferenceTrace_code.csv.gz"),
        clumps_ms: 0.0,
        read: |text, _| azure(text),
    },
    Trace {
        name: "azure-conv",
        about: "Azure's conversations, 2023: prompts of 1,155 tokens, 5.5 a second, nothing known to be shared",
        gz: include_bytes!("../../../lab/traces/AzureLLMInferenceTrace_conv.csv.gz"),
        clumps_ms: 0.0,
        read: |text, _| azure(text),
    },
];

/// Names of workloads and what they are like.
pub fn names() -> Vec<(&'static str, &'static str)> {
    let traces = TRACES.iter().map(|trace| (trace.name, trace.about));
    traces.chain(WORKLOADS.iter().map(|kind| (kind.name, kind.about))).collect()
}

/// The first `requests` of a workload, all of a trace or `generated` for 0.
pub fn read(name: &str, requests: usize, generated: usize, seed: u64) -> anyhow::Result<Vec<Request>> {
    let count = if requests == 0 { generated } else { requests };
    let mut all = match TRACES.iter().find(|trace| trace.name == name) {
        Some(trace) => {
            let clumps = Clumps { ms: trace.clumps_ms, seed };
            (trace.read)(&text_of(name, trace.gz)?, clumps).with_context(|| name.to_owned())?
        }
        None => match generate(name, count, seed) {
            Some(requests) => requests,
            None => file(Path::new(name))?,
        },
    };
    if requests > 0 {
        all.truncate(requests);
    }
    Ok(all)
}

fn file(file: &Path) -> anyhow::Result<Vec<Request>> {
    if !file.exists() {
        let known: Vec<&str> = names().iter().map(|(name, _)| *name).collect();
        bail!("{}: no such file, and none of {}", file.display(), known.join(", "));
    }
    let name = file.display().to_string();
    let bytes = std::fs::read(file).with_context(|| name.clone())?;
    let text = text_of(&name, &bytes)?;
    let is_json = text.trim_start().starts_with('{');
    if is_json { mooncake(&text, Clumps::default()) } else { azure(&text) }.context(name)
}

/// Text that may be compressed.
fn text_of(name: &str, bytes: &[u8]) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = match bytes.starts_with(&[0x1f, 0x8b]) {
        true => GzDecoder::new(bytes).read_to_string(&mut text),
        false => (&mut &*bytes).read_to_string(&mut text),
    };
    read.with_context(|| name.to_owned())?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_lab::workload::Workload;

    #[test]
    fn the_traces_are_as_their_readme_says() {
        for (name, count, seconds, ceiling) in [
            ("conversation", 12_031, 3_537.0, 0.36..0.38),
            ("synthetic", 3_993, 1_022.0, 0.63..0.66),
            ("azure-code", 8_819, 3_436.0, 0.0..0.001),
            ("azure-conv", 19_366, 3_502.0, 0.0..0.001),
        ] {
            let workload = Workload::new(name, read(name, 0, 0, 1).unwrap(), 512);
            assert_eq!(workload.requests.len(), count, "{name}");
            let last = workload.requests.last().unwrap().at as f64 / 1e9;
            assert!((last - seconds).abs() < 4.0, "{name}: {last} s");
            assert!(ceiling.contains(&workload.ceiling), "{name}: {}", workload.ceiling);
        }
    }

    #[test]
    fn an_unknown_name_is_told_the_known_ones() {
        let said = read("chats", 0, 10, 1).unwrap_err().to_string();
        assert!(said.contains("conversation") && said.contains("hot-prefix"), "{said}");
    }
}
