//! When an endpoint says it may be asked again, in the three ways in which that is said.
//!
//! `retry-after` is a number of seconds or an HTTP date (RFC 9110, section 10.2.3), `retry-after-ms` a number of
//! milliseconds (OpenAI and its clients). Where two are given the later end counts: to come too early costs a refusal and
//! often a longer wait. What is no such value is no hint; a date that has passed is a hint of no time.

use std::time::Duration;

/// For how long the endpoint wants to be left alone. `header` gives a header's value by its name; `wall`, the time since
/// 1970, is asked only for dates.
pub fn retry_after<'h>(
    header: impl Fn(&str) -> Option<&'h str>,
    wall: impl FnOnce() -> Duration,
) -> Option<Duration> {
    let millis = header("retry-after-ms").and_then(|text| number(text, 1e-3));
    let plain = header("retry-after").and_then(|text| number(text, 1.0).or_else(|| date(text, wall)));
    millis.max(plain)
}

/// A number that is not negative, in units of so many seconds; at most some 31 years.
fn number(text: &str, unit_s: f64) -> Option<Duration> {
    const MOST_S: f64 = 1e9;
    let text = text.trim();
    // `parse` also reads words, as "inf", and exponents.
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f64 = text.parse().ok().filter(|_| plain)?;
    Some(Duration::from_secs_f64((number * unit_s).clamp(0.0, MOST_S)))
}

fn date(text: &str, wall: impl FnOnce() -> Duration) -> Option<Duration> {
    let time = httpdate::parse_http_date(text.trim()).ok()?;
    let time = time.duration_since(std::time::SystemTime::UNIX_EPOCH).ok()?;
    Some(time.saturating_sub(wall()))
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn read(plain: Option<&'static str>, millis: Option<&'static str>) -> Option<u128> {
        let header = |name: &str| if name == "retry-after" { plain } else { millis };
        // Sun, 06 Nov 1994 08:49:37 GMT.
        retry_after(header, || Duration::from_secs(784_111_777)).map(|wait| wait.as_millis())
    }

    #[test]
    fn every_form_is_read_in_its_own_unit() {
        assert_eq!(read(Some("30"), None), Some(30_000));
        assert_eq!(read(Some(" 0.5 "), None), Some(500));
        assert_eq!(read(None, Some("1500")), Some(1_500));
        assert_eq!(read(None, Some("1500.4")), Some(1_500));
        assert_eq!(read(Some("Sun, 06 Nov 1994 08:49:57 GMT"), None), Some(20_000));
        assert_eq!(read(Some("Sunday, 06-Nov-94 08:49:57 GMT"), None), Some(20_000), "RFC 850");
        assert_eq!(read(Some("Sun Nov  6 08:49:57 1994"), None), Some(20_000), "asctime");
        assert_eq!(read(Some("Sun, 06 Nov 1994 08:49:07 GMT"), None), Some(0), "it has passed");
    }

    #[test]
    fn the_later_end_counts_and_nonsense_does_not() {
        assert_eq!(read(Some("30"), Some("29500")), Some(30_000));
        assert_eq!(read(Some("1"), Some("29500")), Some(29_500));
        assert_eq!(read(Some("soon"), Some("100")), Some(100));
        for text in ["", "-1", "inf", "NaN", "1e9", "1 s", "0x10", "1.2.3", "Sun, 31 Feb 1994 08:49:57 GMT"] {
            assert_eq!(read(Some(text), None), None, "{text}");
        }
        assert_eq!(read(None, None), None);
        assert_eq!(
            read(Some("99999999999999999999999"), None),
            Some(1_000_000_000_000),
            "capped by the caller"
        );
    }
}
