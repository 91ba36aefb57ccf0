//! What was read of a request, as one line of fields.

use super::{decode, encode, name_hash};
use crate::policy::Demand;
use crate::pool::Ask;
use crate::request::{Dialect, Facts, word};
use std::fmt::Write;

/// Facts as filter state: fields with a value, as one line.
pub fn write_facts(facts: &Facts) -> String {
    let mut line = format!(
        "dialect={} stream={} prompt_tokens={} prompt_units={}",
        facts.dialect.name(),
        u8::from(facts.stream),
        facts.prompt_tokens,
        facts.prompt_units
    );
    for (key, number) in [
        ("firm_prompt_tokens", facts.firm_prompt_tokens),
        ("max_output_tokens", facts.max_output_tokens),
        ("min_output_tokens", Some(facts.min_output_tokens).filter(|least| *least > 0)),
        ("thinking_tokens", facts.thinking_tokens),
        ("slo_ttft_ms", facts.slo_ttft_ms),
        ("slo_tpot_ms", facts.slo_tpot_ms),
        ("retries", Some(facts.retries).filter(|retries| *retries > 0)),
        ("timeout_ms", facts.timeout_ms),
    ] {
        if let Some(number) = number {
            let _ = write!(line, " {key}={number}");
        }
    }
    match facts.choices {
        Some(1) => {}
        // Nobody knows how many.
        None => line += " choices=0",
        Some(choices) => {
            let _ = write!(line, " choices={choices}");
        }
    }
    if facts.explain {
        line += " explain=1";
    }
    if let Some(priority) = facts.priority {
        let _ = write!(line, " priority={priority}");
    }
    for (key, hash) in [("tenant", facts.tenant), ("session", facts.session), ("user", facts.user)] {
        if let Some(hash) = hash {
            let _ = write!(line, " {key}={hash:016x}");
        }
    }
    let words = [("effort", &facts.effort), ("objective", &facts.objective), ("tier", &facts.tier)];
    for (key, word) in words.into_iter().chain([
        ("base_model", &facts.base_model),
        ("model", &facts.model),
        ("rewritten_from", &facts.rewritten_from),
    ]) {
        if let Some(word) = word {
            let _ = write!(line, " {key}={}", encode(word));
        }
    }
    line
}

/// Facts from filter state. `None` for a line that [`write_facts`] would not write; fields it does not know are passed
/// over, so that filters of two versions can work together.
pub fn read_facts(line: &str) -> Option<Facts> {
    let mut facts = Facts::of(Dialect::Chat);
    let mut fields = line.split(' ').map(|field| field.split_once('='));
    let ("dialect", name) = fields.next()?? else { return None };
    facts.dialect = Dialect::of_name(name)?;
    for field in fields {
        match field? {
            ("stream", "0") => facts.stream = false,
            ("stream", "1") => facts.stream = true,
            ("prompt_tokens", n) => facts.prompt_tokens = number(n)?,
            ("firm_prompt_tokens", n) => facts.firm_prompt_tokens = Some(number(n)?),
            ("prompt_units", n) => facts.prompt_units = number(n)?,
            ("max_output_tokens", n) => facts.max_output_tokens = Some(number(n)?),
            ("min_output_tokens", n) => facts.min_output_tokens = number(n)?,
            ("choices", n) => facts.choices = Some(number(n)?).filter(|n| *n > 0),
            ("thinking_tokens", n) => facts.thinking_tokens = Some(number(n)?),
            ("slo_ttft_ms", n) => facts.slo_ttft_ms = Some(number(n)?),
            ("slo_tpot_ms", n) => facts.slo_tpot_ms = Some(number(n)?),
            ("retries", n) => facts.retries = number(n)?,
            ("timeout_ms", n) => facts.timeout_ms = Some(number(n)?),
            ("explain", "1") => facts.explain = true,
            ("priority", n) => facts.priority = Some(n.parse().ok().filter(|i: &i32| i.to_string() == n)?),
            ("tenant", hash) => facts.tenant = Some(read_hash(hash)?),
            ("session", hash) => facts.session = Some(read_hash(hash)?),
            ("user", hash) => facts.user = Some(read_hash(hash)?),
            ("effort", text) => facts.effort = Some(word(text)?),
            ("objective", text) => facts.objective = Some(word(text)?),
            ("tier", text) => facts.tier = Some(word(text)?),
            ("base_model", text) => facts.base_model = Some(decode(text)?),
            ("model", text) => facts.model = Some(decode(text)?),
            ("rewritten_from", text) => facts.rewritten_from = Some(decode(text)?),
            ("dialect" | "stream" | "explain", _) => return None,
            _ => {}
        }
    }
    Some(facts)
}

fn number(digits: &str) -> Option<u32> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

fn read_hash(digits: &str) -> Option<u64> {
    let fits = digits.len() == 16 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    fits.then(|| u64::from_str_radix(digits, 16).ok())?
}

impl Facts {
    /// What the request asks of a pool.
    pub fn ask<'a>(&self, blocks: &'a [u64]) -> Ask<'a> {
        let demand = Demand {
            prompt_tokens: self.prompt_tokens,
            prompt_units: self.prompt_units,
            output_tokens: self.max_output_tokens.unwrap_or(0),
            stream: self.stream,
            session: self.session,
            tenant: self.tenant,
            adapter: self.base_model.as_ref().and(self.model.as_deref()).map(name_hash),
            slo_ttft_ms: self.slo_ttft_ms,
            slo_tpot_ms: self.slo_tpot_ms,
            retried: self.retries > 0,
        };
        Ask { blocks, demand, prompt: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{read_blocks, write_blocks};
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn facts_survive_the_way() {
        let full = Facts {
            model: Some("org/m-7b:x=y".into()),
            base_model: Some("Größe 7%".into()),
            rewritten_from: Some("m = alias".into()),
            stream: true,
            prompt_tokens: 12,
            firm_prompt_tokens: Some(9),
            prompt_units: 1,
            max_output_tokens: Some(7),
            min_output_tokens: 2,
            choices: Some(3),
            effort: Some("low".into()),
            thinking_tokens: Some(3),
            slo_ttft_ms: Some(250),
            slo_tpot_ms: Some(u32::MAX),
            retries: 2,
            timeout_ms: Some(20_000),
            explain: true,
            priority: Some(-4),
            objective: Some("batch".into()),
            tier: Some("flex".into()),
            tenant: Some(0),
            session: Some(1),
            user: Some(u64::MAX),
            ..Facts::of(Dialect::Messages)
        };
        let unknown = Facts { choices: None, ..Facts::of(Dialect::Chat) };
        for facts in [Facts::of(Dialect::Tokens), unknown, full] {
            let line = write_facts(&facts);
            assert_eq!(read_blocks(&write_blocks(&line, &[3, 10])), Some((facts.clone(), vec![3, 10])));
            assert_eq!(read_facts(&line), Some(facts));
        }
        for line in [
            "",
            "stream=1 dialect=chat",
            "stream=2",
            "prompt_tokens=+1",
            "tenant=1",
            "effort=a%20b",
            "model=%6D",
        ] {
            let line =
                if line.contains("dialect") { line.to_owned() } else { format!("dialect=chat {line}") };
            assert_eq!(read_facts(&line), None, "{line}");
        }
        assert_eq!(read_facts("nonsense"), None);
        assert_eq!(read_blocks(b"dialect=chat"), None);
    }
}
