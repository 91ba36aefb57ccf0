//! Asks Envoy itself, by `--mode validate`, and takes from its many words the ones that tell.
//!
//! It stops at the first mistake, so it says one thing at most; what is known already is not said again. Its
//! messages come in a few forms, each read here for a path; one that names no path but quotes a word is given the
//! path of that word in the document, where there is only one. Envoy spaces its messages at random (protobuf means
//! to keep programs from relying on them), so all space counts alike.

use super::report::{Report, join};
use crate::document;
use serde_json::Value;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use weir::invalid::Invalid;

/// Envoy has so long to make up its mind; compiling filters takes it a second.
const PATIENCE: Duration = Duration::from_secs(60);

/// Lets `envoy` validate `file`, whose text is `text`.
pub(super) fn validate(envoy: &Path, file: &Path, text: &[u8], report: &mut Report) {
    let name = envoy.display();
    let said = match ask(envoy, file) {
        Ok((true, _)) => return,
        Ok((false, said)) => said,
        Err(error) => return report.error("", format!("{name} cannot be asked: {error}")),
    };
    let documents = document::read_all(text).unwrap_or_default();
    let found = reason(&said, documents.first().unwrap_or(&Value::Null));
    if found.why.starts_with("Invalid path") {
        // The file that is missing here may well be there where the gateway runs.
        return report.warn(found.at, format!("Envoy got no further here: {}", found.why));
    }
    let told = |known: &Invalid| !found.at.is_empty() && known.at == found.at;
    let about_a_filter = found.why.contains("configuration refused") || found.why.contains("Wasm plugin");
    if !report.errors.iter().any(told) && (report.errors.is_empty() || !about_a_filter) {
        report.error(found.at, format!("Envoy: {}", found.why));
    }
}

/// Whether it accepts the file, and what it says.
fn ask(envoy: &Path, file: &Path) -> std::io::Result<(bool, String)> {
    let mut child = Command::new(envoy)
        .args(["--mode", "validate", "--disable-hot-restart", "-l", "error", "-c"])
        .arg(file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stderr = child.stderr.take();
    let reader = std::thread::spawn(move || {
        let mut said = Vec::new();
        // What was said until it broke off is worth having.
        let _ = stderr.as_mut().map(|stderr| stderr.read_to_end(&mut said));
        String::from_utf8_lossy(&said).into_owned()
    });
    let status = wait(&mut child)?;
    let said = reader.join().unwrap_or_default();
    Ok((status.success(), said))
}

fn wait(child: &mut Child) -> std::io::Result<ExitStatus> {
    const STEP: Duration = Duration::from_millis(20);
    let mut waited = Duration::ZERO;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if waited >= PATIENCE {
            child.kill()?;
        }
        std::thread::sleep(STEP);
        waited = waited.saturating_add(STEP);
    }
}

/// The reason in what Envoy said.
fn reason(said: &str, document: &Value) -> Invalid {
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((_, refused)) = said.split_once("configuration refused: ") {
        let why = refused.split(" [20").next().unwrap_or_default();
        return Invalid::new("", format!("a filter's configuration refused: {why}"));
    }
    let whole = match said.rsplit_once("error initializing configuration '") {
        Some((_, rest)) => rest.split_once("': ").map_or(rest, |(_, rest)| rest),
        None => &said,
    };
    if let Some((_, chain)) = whole.split_once("Proto constraint validation failed (") {
        return constraint(chain.strip_suffix(')').unwrap_or(chain));
    }
    if let Some((_, rest)) = whole.split_once(" @ ") {
        let (path, rest) = rest.split_once(": ").unwrap_or((rest, ""));
        let path = path.replace(".<any>", "");
        let rest = rest.split_once("): ").map_or(rest, |(_, rest)| rest);
        let why = rest.split("): {").next().unwrap_or(rest);
        let why = why.strip_suffix(" has unknown fields").unwrap_or(why).trim_end_matches(')');
        return match why.strip_prefix("no such field: '").and_then(|field| field.strip_suffix('\'')) {
            Some(field) => Invalid::new(join(&path, field), "unknown field"),
            None => Invalid::new(path, why),
        };
    }
    let why = whole.split_once("INVALID_ARGUMENT: ").map_or(whole, |(_, rest)| rest);
    let why = why.split("): {").next().unwrap_or(why);
    let why = why.strip_suffix(") has unknown fields").unwrap_or(why);
    let word = why.split('\'').nth(1).unwrap_or_default();
    let mut paths = Vec::new();
    holders(document, word, "", &mut paths);
    let at = if paths.len() == 1 { paths.pop().unwrap_or_default() } else { String::new() };
    Invalid::new(at, why.chars().take(400).collect::<String>())
}

/// `BootstrapValidationError.StaticResources: … | caused by … .Clusters[0]: …`, a link for each field of the path.
fn constraint(chain: &str) -> Invalid {
    let mut at = String::new();
    let mut why = chain;
    for link in chain.split(" | caused by ") {
        let Some((place, rest)) = link.split_once(": ") else { continue };
        let (message, field) = place.split_once("ValidationError.").unwrap_or(("", place));
        if at.is_empty() && message != "Bootstrap" {
            at = message.to_owned();
        }
        at = join_place(&at, field);
        why = rest;
    }
    Invalid::new(at, why)
}

/// `Clusters[0]` in snake case, behind a path.
fn join_place(at: &str, field: &str) -> String {
    let mut name = String::new();
    for letter in field.chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    if at.is_empty() { name } else { format!("{at}.{name}") }
}

/// The paths of all strings that are `word`.
fn holders(value: &Value, word: &str, at: &str, paths: &mut Vec<String>) {
    match value {
        Value::String(text) if text == word => paths.push(at.to_owned()),
        Value::Array(list) => {
            for (nth, value) in list.iter().enumerate() {
                holders(value, word, &format!("{at}[{nth}]"), paths);
            }
        }
        Value::Object(map) => map.iter().for_each(|(key, value)| holders(value, word, &join(at, key), paths)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const HEAD: &str = "[2026-11-30 01:44:32.402][3][critical][main] [source/server/config_validation/server.cc:76] \
                        error initializing configuration 'b.yaml': ";

    fn of(said: &str, document: Value) -> String {
        reason(&format!("{HEAD}{said}"), &document).to_string()
    }

    // All as Envoy 1.40.0 said them.
    #[test]
    fn each_form_is_read_for_its_path() {
        let unknown = "Protobuf message (type envoy.config.bootstrap.v3.Bootstrap reason INVALID_ARGUMENT: invalid \
                       JSON in   envoy.config.bootstrap.v3.Bootstrap @  static_resources.listeners[0].typed_config.\
                       <any>.route_config: message  envoy.config.route.v3.VirtualHost,   near  1:608 (offset  607):  \
                       no such   field: 'domins') has unknown fields";
        assert_eq!(
            of(unknown, json!({})),
            "static_resources.listeners[0].typed_config.route_config.domins: unknown field"
        );
        let number = "Unable to parse JSON as proto (INVALID_ARGUMENT: invalid JSON in envoy.config.bootstrap.v3.\
                      Bootstrap @ admin.address.port_value:  uint32, near 1:165  (offset 164): invalid number: 'x'): \
                      {\"static_resources\":{\"clusters\":[]}}";
        assert_eq!(of(number, json!({})), "admin.address.port_value: invalid number: 'x'");
        let enumerated = "Protobuf message (type envoy.config.bootstrap.v3.Bootstrap reason INVALID_ARGUMENT: unknown \
                          enum value: 'STATI') has unknown fields";
        let document = json!({"static_resources": {"clusters": [{"type": "STATI"}]}});
        assert_eq!(
            of(enumerated, document),
            "static_resources.clusters[0].type: unknown enum value: 'STATI'"
        );
        let chain = "goo.gle/debugstr\nadmin {\n}\n: Proto constraint validation failed \
                     (BootstrapValidationError.StaticResources: embedded message failed validation | caused by \
                     StaticResourcesValidationError.Clusters[0]: embedded message failed validation | caused by \
                     ClusterValidationError.Name: value length must be at least 1 characters)";
        assert_eq!(
            of(chain, json!({})),
            "static_resources.clusters[0].name: value length must be at least 1 characters"
        );
        assert_eq!(
            of("route: unknown cluster 'backend'", json!({"a": [{"cluster": "backend"}]})),
            "a[0].cluster: route: unknown cluster 'backend'"
        );
    }
}
