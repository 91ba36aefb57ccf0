//! Public traces to requests: Mooncake's (JSON lines with block ids) and Azure's (CSV without).

use super::{Draw, Piece, Request};
use serde::Deserialize;
use weir::invalid::Invalid;

/// Tokens of a block in Mooncake's traces.
const MOONCAKE_BLOCK: u32 = 512;
const MS: f64 = 1e6;

/// Stamps that were rounded to clumps are spread evenly over `ms` milliseconds, at random by `seed`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clumps {
    /// The distance of clumps; 0 leaves the stamps as they are.
    pub ms: f64,
    /// Fixes the spread.
    pub seed: u64,
}

#[derive(Deserialize)]
struct MooncakeLine {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

/// Reads a Mooncake trace. The text of the last id of a prompt is as long as what the others leave.
pub fn mooncake(text: &str, clumps: Clumps) -> Result<Vec<Request>, Invalid> {
    let mut draw = Draw::new(clumps.seed, 1);
    let mut requests = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let at = |why: String| Invalid::new(format!("line {}", number + 1), why);
        let line: MooncakeLine = serde_json::from_str(line).map_err(|error| at(error.to_string()))?;
        let blocks = line.input_length.div_ceil(MOONCAKE_BLOCK) as usize;
        if line.hash_ids.len() != blocks || line.input_length == 0 {
            return Err(at(format!("{} hash_ids for {} tokens", line.hash_ids.len(), line.input_length)));
        }
        let mut left = line.input_length;
        let piece = |id: &u64| {
            let tokens = left.min(MOONCAKE_BLOCK);
            left -= tokens;
            Piece { id: *id, tokens }
        };
        requests.push(Request {
            at: ((line.timestamp.max(0.0) + clumps.ms * draw.unit()) * MS) as u64,
            prompt: line.hash_ids.iter().map(piece).collect(),
            answer: own(number),
            session: own(number),
            output: line.output_length.max(1),
            ..Request::default()
        });
    }
    requests.sort_by_key(|request| request.at);
    Ok(requests)
}

/// Reads a trace of Azure's: time, tokens in, tokens out. No two share anything.
pub fn azure(text: &str) -> Result<Vec<Request>, Invalid> {
    let mut requests: Vec<Request> = Vec::new();
    for (number, line) in text.lines().enumerate().skip(1).filter(|(_, line)| !line.trim().is_empty()) {
        let at = |why: &str| Invalid::new(format!("line {}", number + 1), format!("{why} in {line:?}"));
        let mut fields = line.trim().split(',');
        let mut field = || fields.next().unwrap_or("");
        let time = nanos(field()).ok_or_else(|| at("no date and time"))?;
        let prompt: u32 = field().parse().map_err(|_| at("no number of ContextTokens"))?;
        let output: u32 = field().parse().map_err(|_| at("no number of GeneratedTokens"))?;
        requests.push(Request {
            at: time,
            prompt: vec![Piece { id: own(number * 2 + 1), tokens: prompt.max(1) }],
            answer: own(number * 2),
            session: own(number),
            output: output.max(1),
            ..Request::default()
        });
    }
    requests.sort_by_key(|request| request.at);
    let start = requests.first().map_or(0, |request| request.at);
    requests.iter_mut().for_each(|request| request.at -= start);
    Ok(requests)
}

/// A text that nobody else has.
fn own(number: usize) -> u64 {
    (1 << 63) | number as u64
}

/// Nanoseconds since 1970 of `2023-11-16 18:17:03.9799600`.
fn nanos(stamp: &str) -> Option<u64> {
    let time: jiff::civil::DateTime = stamp.parse().ok()?;
    let since = time.duration_since(jiff::civil::date(1970, 1, 1).at(0, 0, 0, 0));
    u64::try_from(since.as_nanos()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mooncake_line_is_a_request_with_its_blocks() {
        let line = r#"{"timestamp": 1500, "input_length": 700, "output_length": 0, "hash_ids": [4, 9]}"#;
        let read = mooncake(line, Clumps::default()).unwrap();
        assert_eq!(read[0].prompt, [Piece { id: 4, tokens: 512 }, Piece { id: 9, tokens: 188 }]);
        assert_eq!((read[0].at, read[0].output), (1_500_000_000, 1));
        let spread = mooncake(line, Clumps { ms: 3_000.0, seed: 1 }).unwrap()[0].at;
        assert!((1_500_000_000..4_500_000_000).contains(&spread));
        let said =
            mooncake(&format!("{line}\n{{\"timestamp\": 1}}"), Clumps::default()).unwrap_err().to_string();
        assert!(said.starts_with("line 2: "), "{said}");
        let short = r#"{"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [4]}"#;
        assert!(mooncake(short, Clumps::default()).unwrap_err().why.contains("1 hash_ids for 513 tokens"));
    }

    #[test]
    fn an_azure_line_is_a_request_of_its_own() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 23:59:59.5000000,4808,10\r\n2023-11-17 00:00:01,0,0\r\n";
        let read = azure(text).unwrap();
        assert_eq!((read[0].at, read[1].at), (0, 1_500_000_000));
        assert_eq!((read[0].prompt_tokens(), read[1].prompt_tokens(), read[1].output), (4_808, 1, 1));
        assert_ne!(read[0].prompt[0].id, read[1].prompt[0].id);
        assert!(azure("h\n2023-11-16,5,5").is_err() || azure("h\nyesterday,5,5").is_err());
        assert!(
            azure("h\n2023-11-16 18:17:03,x,5").unwrap_err().to_string().starts_with("line 2: no number")
        );
    }
}
