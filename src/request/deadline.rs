//! How long a client waits, by its headers.
//!
//! What is left to do for a client that has gone is wasted, and a retry that ends after it gave up makes an outage worse. So the time
//! that a client gives bounds all attempts together.
//!
//! | header | says | holds for |
//! |---|---|---|
//! | `x-request-timeout-ms` | milliseconds | all requests |
//! | `x-envoy-expected-rq-timeout-ms` | milliseconds; an Envoy in front sets it | all |
//! | `grpc-timeout` | up to eight digits and a unit, as `10S` or `500m` | all |
//! | `x-stainless-timeout`, `x-stainless-read-timeout` | seconds; the libraries of OpenAI and Anthropic send them | what is no stream |
//! | `x-litellm-timeout` | seconds, as clients of LiteLLM's proxy send it | what is no stream |
//!
//! The libraries wait so long for the beginning of an answer or for its next bytes, not for its end: a stream may be longer.
//! Of several the shortest counts. What is no positive time is none, and so is one of more than a day.

use std::time::Duration;

/// Of which requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    All,
    NoStream,
}

type Read = fn(&str) -> Option<Duration>;

const HEADERS: [(&str, Of, Read); 6] = [
    ("x-request-timeout-ms", Of::All, milliseconds),
    ("x-envoy-expected-rq-timeout-ms", Of::All, milliseconds),
    ("grpc-timeout", Of::All, grpc),
    ("x-stainless-timeout", Of::NoStream, seconds),
    ("x-stainless-read-timeout", Of::NoStream, seconds),
    ("x-litellm-timeout", Of::NoStream, seconds),
];

/// What a client's headers say so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Patience {
    any: Option<u32>,
    no_stream: Option<u32>,
}

impl Patience {
    /// Takes a header into account, by its name in lower case.
    pub(super) fn note(&mut self, name: &str, value: &str) {
        const DAY: Duration = Duration::from_secs(86_400);
        let Some((_, of, read)) = HEADERS.iter().find(|(own, ..)| *own == name) else { return };
        let time = read(value).filter(|time| *time <= DAY && *time >= Duration::from_millis(1));
        let Some(millis) = time.and_then(|time| u32::try_from(time.as_millis()).ok()) else { return };
        let held = match of {
            Of::All => &mut self.any,
            Of::NoStream => &mut self.no_stream,
        };
        *held = Some(held.map_or(millis, |held| held.min(millis)));
    }

    /// Milliseconds that the request may take.
    pub(super) fn timeout_ms(self, stream: bool) -> Option<u32> {
        let no_stream = self.no_stream.filter(|_| !stream);
        self.any.into_iter().chain(no_stream).min()
    }
}

fn digits(text: &str) -> Option<u64> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

fn milliseconds(text: &str) -> Option<Duration> {
    digits(text).map(Duration::from_millis)
}

/// With a fraction, if there is one: Python's libraries write `600.0`.
fn seconds(text: &str) -> Option<Duration> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let seconds = text.parse().ok().filter(|_| plain)?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn grpc(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number = digits(number).filter(|_| number.len() <= 8)?;
    let in_nanos: u64 = match unit {
        "H" => 3_600_000_000_000,
        "M" => 60_000_000_000,
        "S" => 1_000_000_000,
        "m" => 1_000_000,
        "u" => 1_000,
        "n" => 1,
        _ => return None,
    };
    number.checked_mul(in_nanos).map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn timeout(headers: &[(&str, &str)], stream: bool) -> Option<u32> {
        let mut patience = Patience::default();
        headers.iter().for_each(|(name, value)| patience.note(name, value));
        patience.timeout_ms(stream)
    }

    #[test]
    fn every_header_is_read_in_its_own_unit() {
        for (name, value, millis) in [
            ("x-request-timeout-ms", "1500", 1_500),
            ("x-envoy-expected-rq-timeout-ms", "7", 7),
            ("grpc-timeout", "10S", 10_000),
            ("grpc-timeout", "250m", 250),
            ("grpc-timeout", "99999u", 99),
            ("grpc-timeout", "2H", 7_200_000),
            ("x-stainless-timeout", "600", 600_000),
            ("x-stainless-read-timeout", "0.5", 500),
            ("x-litellm-timeout", "30.0", 30_000),
        ] {
            assert_eq!(timeout(&[(name, value)], false), Some(millis), "{name}: {value}");
        }
    }

    #[test]
    fn the_shortest_counts_and_a_librarys_does_not_cut_a_stream() {
        let both = [("x-stainless-timeout", "2"), ("x-request-timeout-ms", "5000"), ("grpc-timeout", "9S")];
        assert_eq!(timeout(&both, false), Some(2_000));
        assert_eq!(timeout(&both, true), Some(5_000));
        assert_eq!(timeout(&[("x-stainless-timeout", "2")], true), None);
    }

    #[test]
    fn nonsense_is_no_deadline() {
        let wrong =
            ["", "0", "-1", "+1", "1e3", "nan", "inf", "0x10", "many", "1 s", "99999999999999999999999", "é"];
        for (name, ..) in HEADERS {
            for value in wrong {
                assert_eq!(timeout(&[(name, value)], false), None, "{name}: {value:?}");
            }
        }
        for value in ["S", "1", "123456789m", "1s", "25H", "1n", "99999999H", "1é"] {
            assert_eq!(timeout(&[("grpc-timeout", value)], false), None, "{value}");
        }
        assert_eq!(timeout(&[("x-request-timeout-ms", "86400001")], false), None);
    }
}
