//! When an endpoint says it may be asked again, in the three ways in which that is said.
//!
//! `retry-after` is a number of seconds or an HTTP date (RFC 9110, section 10.2.3), `retry-after-ms` a number of
//! milliseconds (OpenAI and its clients). Where several are given, also by several headers of one name or by one into which somebody
//! has joined them, the latest end counts: to come too early costs a refusal and often a longer wait. What is no such value is no hint; a
//! date that has passed is a hint of no time.

use std::time::Duration;

/// For how long the endpoint wants to be left alone, of all the headers of its answer, by names in lower case. `wall`, the time
/// since 1970, is asked only for dates.
pub fn retry_after<'h>(
    headers: impl IntoIterator<Item = (&'h str, &'h str)>,
    wall: impl Fn() -> Duration,
) -> Option<Duration> {
    let wait = |(name, text): (&str, &'h str)| match name {
        "retry-after-ms" => latest(text, |text| number(text, 1e-3)),
        "retry-after" => latest(text, |text| number(text, 1.0).or_else(|| date(text, &wall))),
        _ => None,
    };
    headers.into_iter().filter_map(wait).max()
}

/// The latest of a list's values: `read` is offered each, and each together with the next, since dates have a comma of their own.
fn latest(list: &str, read: impl Fn(&str) -> Option<Duration>) -> Option<Duration> {
    let ends = || list.match_indices(',').map(|(at, _)| at).chain([list.len()]);
    let begins = [0].into_iter().chain(list.match_indices(',').map(|(at, _)| at + 1));
    let values = begins
        .enumerate()
        .flat_map(|(nth, begin)| ends().skip(nth).take(2).filter_map(move |end| list.get(begin..end)));
    values.filter_map(read).max()
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

fn date(text: &str, wall: impl Fn() -> Duration) -> Option<Duration> {
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
        let plain = plain.map(|value| ("retry-after", value));
        let millis = millis.map(|value| ("retry-after-ms", value));
        of(plain.into_iter().chain(millis))
    }

    fn of<'h>(headers: impl IntoIterator<Item = (&'h str, &'h str)>) -> Option<u128> {
        // Sun, 06 Nov 1994 08:49:37 GMT.
        retry_after(headers, || Duration::from_secs(784_111_777)).map(|wait| wait.as_millis())
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

    #[test]
    fn of_several_headers_of_one_name_the_latest_end_counts_also_when_they_were_joined() {
        let plain = |values: &[&'static str]| of(values.iter().map(|value| ("retry-after", *value)));
        let (date, later) = ("Sun, 06 Nov 1994 08:49:57 GMT", "Sunday, 06-Nov-94 08:50:37 GMT");
        for values in [&["1", "30"][..], &["30", "1"], &["soon", "30"], &["30", "Sun, 06 Nov 1994"]] {
            assert_eq!(plain(values), Some(30_000), "{values:?}");
            let joined = values.join(", ");
            assert_eq!(read(Some(joined.leak()), None), Some(30_000), "{values:?}");
        }
        for values in [[date, "1"], ["1", date]] {
            assert_eq!(plain(&values), Some(20_000));
            assert_eq!(read(Some(values.join(",").leak()), None), Some(20_000));
        }
        assert_eq!(read(Some([date, later].join(",").leak()), Some("1, 70000")), Some(70_000));
        assert_eq!(read(Some([date, later].join(",").leak()), None), Some(60_000));
        for nothing in [",", ",,", "Sun,", ",Sun", "é,è"] {
            assert_eq!(read(Some(nothing), Some(nothing)), None, "{nothing}");
        }
        assert_eq!(of([("retry-afte", "1"), ("x", "2")]), None);
    }
}
