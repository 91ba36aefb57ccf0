//! Why a choice was made, as a header.

use std::fmt::Write;

/// An explanation as a header: in ASCII, and of the candidates, of which the best come first, as many as make it no longer
/// than clients take; `left_off` says how many more there are.
pub fn explanation(why: &str) -> String {
    const MOST: usize = 8 << 10;
    let Ok(mut why) = serde_json::from_str::<serde_json::Value>(why) else { return String::new() };
    let mut left_off = 0_usize;
    loop {
        let text = ascii(&why.to_string());
        let candidates = why.get_mut("candidates").and_then(serde_json::Value::as_array_mut);
        let Some(candidates) = candidates.filter(|all| text.len() > MOST && !all.is_empty()) else {
            return text;
        };
        // In proportion, and one less, so that this ends.
        let keep = (candidates.len().saturating_mul(MOST) / text.len()).min(candidates.len() - 1);
        left_off = left_off.saturating_add(candidates.len() - keep);
        candidates.truncate(keep);
        if let Some(map) = why.as_object_mut() {
            map.insert("left_off".into(), left_off.into());
        }
    }
}

/// JSON without anything that is not visible ASCII or a space.
fn ascii(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for unit in json.chars() {
        match unit {
            ' '..='~' => text.push(unit),
            _ => unit.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                let _ = write!(text, "\\u{unit:04x}");
            }),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn an_explanation_fits_into_a_header_and_keeps_the_best() {
        let why = |n: usize| {
            let one = |n: usize| serde_json::json!({"endpoint": format!("10.0.0.{n}:8000"), "total": n});
            let candidates: Vec<_> = (0..n).map(one).collect();
            serde_json::json!({"because": "größer \u{1f600}\n", "candidates": candidates}).to_string()
        };
        for n in [0, 3, 1_000] {
            let header = explanation(&why(n));
            assert!(header.len() <= 8 << 10 && header.bytes().all(|byte| (32..127).contains(&byte)));
            let read: serde_json::Value = serde_json::from_str(&header).unwrap();
            assert_eq!(read["because"], "größer \u{1f600}\n");
            let kept = read["candidates"].as_array().unwrap();
            assert_eq!(kept.len() + read["left_off"].as_u64().unwrap_or(0) as usize, n);
            assert!(kept.iter().enumerate().all(|(at, one)| one["total"] == at), "the first");
            assert!(n < 1_000 || kept.len() > 100, "{}", kept.len());
        }
        assert_eq!(explanation("nonsense"), "");
    }
}
