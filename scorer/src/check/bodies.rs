//! Bodies that `pick` is to send to a scorer and that `extract` does not leave for it.

use super::report::Report;
use serde_json::Value;
use weir::invalid::Invalid;

const WANTED: &str = "/scorer/max_body_bytes";
const LEFT: &str = "/publish_body_bytes";

pub(super) fn check(report: &mut Report) {
    let bytes = |config: &Value, field: &str| config.pointer(field).and_then(Value::as_u64).unwrap_or(0);
    let left = report.of("extract").iter().map(|(_, extract)| bytes(extract, LEFT)).max();
    // Without an `extract` in this file it is in another; `chain` has both and sees to it.
    let Some(left) = left else { return };
    for part in report.parts.iter().filter(|part| part.of == "pick") {
        let wanted = bytes(&part.effective, WANTED);
        if wanted > left {
            let why = format!(
                "{wanted}, but `extract` leaves bodies of up to {left} bytes: raise its `publish_body_bytes`"
            );
            report.warnings.push(Invalid::new("scorer.max_body_bytes", why).within(&part.at));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::check;

    const GOOD: &str = include_str!("../../tests/data/envoy.yaml");

    #[test]
    fn bodies_that_nobody_leaves_for_the_scorer_are_missed() {
        for (left, said) in [(0, 1), (99, 1), (100, 0)] {
            let text = GOOD
                .replacen("\"request\": {", &format!("\"publish_body_bytes\": {left}, \"request\": {{"), 1)
                .replacen(
                    "{\"pools\": [",
                    "{\"scorer\": {\"cluster\": \"s\", \"max_body_bytes\": 100}, \"pools\": [",
                    1,
                );
            let warnings = check::text(text.as_bytes()).warnings;
            let bodies = warnings
                .iter()
                .filter(|warning| warning.to_string().contains("scorer.max_body_bytes: 100, but"));
            assert_eq!(bodies.count(), said, "{left}: {warnings:?}");
        }
    }
}
