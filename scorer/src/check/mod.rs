//! `weir check`: would this file be accepted, and where not?
//!
//! A mistake in a gateway's configuration shows late and badly: Envoy starts, a filter does not, and every request
//! is answered 500, or none is looked at. So each file is read here as it will be read there: the configuration of
//! a filter by the filter's own `Config`, the rest of an Envoy document by the fields of Envoy's messages, and where
//! an Envoy is at hand by that too. Every message is `FILE: path: why`, and all of them are given.

mod bodies;
mod clusters;
mod envoy;
mod fields;
mod filters;
mod istio;
mod needs;
mod plugin;
mod policy;
mod report;
mod waits;
mod walk;

pub use report::{Part, Report};

use crate::document;
use crate::scorer;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use weir::invalid::Invalid;

/// What a part of a file that configures a scorer is called.
const SCORER: &str = "scorer";
/// What a policy in a file of its own is called.
const POLICY: &str = "policy";

/// What was made of one file.
pub fn file(file: &Path, envoy: Option<&Path>) -> Report {
    let text = match document::bytes_of(file) {
        Ok(text) => text,
        Err(error) => {
            let mut report = Report::default();
            report.error("", format!("cannot be read: {error}"));
            return report;
        }
    };
    let mut report = self::text(&text);
    if let Some(envoy) = envoy.filter(|_| report.is_bootstrap && file != Path::new("-")) {
        envoy::validate(envoy, file, &text, &mut report);
    }
    report
}

/// The Envoy to ask when none was named: one in `PATH`, or the one that `build.sh setup` laid down.
pub fn envoy_at_hand() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|folder| folder.join("envoy"));
    in_path.chain([PathBuf::from(".tools/envoy")]).find(|file| file.is_file())
}

/// What was made of the text of a file, without asking an Envoy.
pub fn text(text: &[u8]) -> Report {
    let mut report = Report::default();
    match document::read_all(text) {
        Err(invalid) => report.errors.push(invalid),
        Ok(documents) if documents.is_empty() => report.error("", "empty"),
        Ok(documents) => {
            let alone = documents.len() == 1;
            for (at, document) in documents.iter().enumerate() {
                let at = if alone { String::new() } else { format!("documents[{at}]") };
                self::document(document, &at, &mut report);
            }
            bodies::check(&mut report);
            needs::check(&mut report);
        }
    }
    report
}

/// One document, of whatever kind it is.
fn document(document: &Value, at: &str, report: &mut Report) {
    let Some(map) = document.as_object() else {
        return report.error(at, "not an object");
    };
    if map.get("kind").is_some_and(|kind| kind == "EndpointPickerConfig") {
        return policy::document(document, at, report);
    }
    if let Some(kind) = map.get("kind").and_then(Value::as_str).filter(|_| map.contains_key("apiVersion")) {
        return istio::manifest(kind, map, at, report);
    }
    let bootstrap = fields::message(walk::BOOTSTRAP);
    let is_scorers = |key: &&String| ["listen", "pools", "choose"].contains(&key.as_str());
    let is_bootstraps = |key: &&String| bootstrap.is_some_and(|known| known.field(key).is_some());
    let near_scorers = |key: &&String| fields::nearest(key, ["pools", "choose"].into_iter()).is_some();
    let near_bootstraps = |key: &&String| bootstrap.is_some_and(|known| known.nearest(key).is_some());
    if map.keys().any(|key| is_scorers(&key)) {
        scorer(document, at, report);
    } else if map.keys().any(|key| is_bootstraps(&key)) {
        report.is_bootstrap = true;
        walk::Walk::new(report).value(document, bootstrap, at);
        clusters::check(map, report);
        waits::check(map, report);
    } else if ["resources", "@type", "typed_config"].iter().any(|field| map.contains_key(*field)) {
        walk::Walk::new(report).value(document, None, at);
    } else if map.keys().any(|key| near_scorers(&key)) {
        scorer(document, at, report);
    } else if map.keys().any(|key| near_bootstraps(&key)) {
        walk::Walk::new(report).value(document, bootstrap, at);
    } else {
        let why = "no Envoy bootstrap, Istio manifest or scorer configuration: none of its fields is known";
        report.error(at, format!("{why} ({})", some_keys(map)));
    }
}

fn some_keys(map: &Map<String, Value>) -> String {
    map.keys().take(5).map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn scorer(document: &Value, at: &str, report: &mut Report) {
    match scorer::Config::read_document(document.clone()) {
        Ok(config) => {
            policy::notes(document, at, report);
            if let Some(admin) = config.admin.as_ref().filter(|admin| !admin.listen.ip().is_loopback()) {
                let at = if at.is_empty() { "admin.listen".to_owned() } else { format!("{at}.admin.listen") };
                let why = format!("whoever reaches {} sees endpoints, models and load", admin.listen);
                report.warn(at, why);
            }
            let effective = serde_json::to_value(config).unwrap_or_default();
            report.parts.push(Part { of: SCORER, at: at.to_owned(), effective });
        }
        Err(invalid) => report.errors.push(hinted(invalid).within(at)),
    }
}

/// The same error, with the name that was likely meant: serde lists what it expected, and policies and plugins are said the same
/// way ([`Invalid::unknown`]).
fn hinted(mut invalid: Invalid) -> Invalid {
    let mut quoted = invalid.why.split('`').skip(1).step_by(2);
    let is_name = ["field", "variant", "policy", "plugin"];
    let is_name = is_name.iter().any(|what| invalid.why.starts_with(&format!("unknown {what} `")));
    if let (true, Some(word)) = (is_name, quoted.next())
        && let Some(near) = fields::nearest(word, quoted)
    {
        invalid.why = format!("{}; did you mean {near}?", invalid.why);
    }
    invalid
}
