//! The requests: chat completions of an exact size that look like real ones.
//!
//! A system message shared by eight of them, then turns of random words with the newlines, quotes and accents that
//! make a JSON parser work; `model` comes first, as client libraries write it. One repeated body would flatter
//! every cache on the way, so there is a pool; the seed is fixed, so each system and each run sees the same one.

use anyhow::{Result, ensure};
use serde::Serialize;

/// How many different bodies there are of each size.
pub(crate) const POOL: usize = 32;
const SHARERS: usize = 8;
const WORDS: &[&str] = &[
    "the",
    "river",
    "of",
    "a",
    "gate",
    "holds",
    "water",
    "when",
    "engine",
    "and",
    "prompt",
    "to",
    "answer",
    "with",
    "small",
    "cache",
    "stone",
    "under",
    "which",
    "token",
    "reading",
    "is",
    "slower",
    "than",
    "before",
    "café",
    "naïve",
    "function",
    "return",
    "value",
    "every",
    "question",
    "schema",
    "between",
    "two",
    "lists",
    "\"quoted\"",
    "it's",
    "x = y[0];",
    "1024",
    "3.14",
    "path/to",
    "—",
    "because",
];

#[derive(Serialize)]
struct Chat {
    model: &'static str,
    messages: Vec<Message>,
    temperature: f32,
    max_tokens: u32,
    stream: bool,
}

#[derive(Serialize)]
struct Message {
    role: &'static str,
    content: String,
}

/// The pool of bodies, each of exactly `size` bytes.
pub(crate) fn pool(size: usize) -> Result<Vec<String>> {
    ensure!(size >= 1024, "a body of {size} bytes does not hold a conversation: 1024 at least");
    (0..POOL).map(|number| body(size, number)).collect()
}

fn body(size: usize, number: usize) -> Result<String> {
    let group = u64::try_from(number / SHARERS)?;
    let mut words = fastrand::Rng::with_seed(u64::try_from(number)? + 1000);
    let turns = if size < 8192 { 3 } else { 7 };
    let mut messages =
        vec![Message { role: "system", content: text(&mut fastrand::Rng::with_seed(group), size / 5) }];
    for turn in 0..turns {
        let role = if turn % 2 == 0 { "user" } else { "assistant" };
        messages.push(Message { role, content: text(&mut words, size / 3 / turns) });
    }
    let mut chat = Chat { model: "bench", messages, temperature: 0.7, max_tokens: 16, stream: false };
    // The last question fills up what is left, which the escapes of the text so far have made uncertain.
    let short = size.saturating_sub(serde_json::to_string(&chat)?.len());
    if let Some(last) = chat.messages.last_mut() {
        last.content.push(' ');
        last.content.push_str(&text(&mut words, short * 3 / 4));
    }
    let short = size.saturating_sub(serde_json::to_string(&chat)?.len());
    if let Some(last) = chat.messages.last_mut() {
        last.content.extend("river gate ".chars().cycle().take(short));
    }
    let body = serde_json::to_string(&chat)?;
    ensure!(body.len() == size, "a body came out {} bytes long instead of {size}", body.len());
    Ok(body)
}

/// Random words, about `length` bytes once they are JSON.
fn text(random: &mut fastrand::Rng, length: usize) -> String {
    let mut text = String::with_capacity(length + 16);
    while text.len() < length {
        text.push_str(random.choice(WORDS).copied().unwrap_or_default());
        text.push_str(match random.u8(0..20) {
            0 => ".\n",
            1 => ", ",
            _ => " ",
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn bodies_are_distinct_of_exact_size_and_start_with_the_model() {
        for size in [1024, 1500, 16 * 1024, 128 * 1024] {
            let pool = pool(size).unwrap();
            assert_eq!(pool.iter().collect::<HashSet<_>>().len(), POOL);
            for body in pool {
                assert_eq!(body.len(), size);
                assert!(body.starts_with(r#"{"model":"bench","messages":[{"role":"system""#));
            }
        }
    }
}
