//! What the rows come to, and whether the demo shows what it should.

use crate::play::{Row, Run};
use std::collections::{BTreeMap, HashMap};

/// The least share of later turns that has to stay at its endpoint.
const AFFINITY: f64 = 0.95;
/// Problems that are told one by one.
const TOLD: usize = 5;

/// Both runs.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) shipped: Figures,
    pub(crate) round_robin: Figures,
    /// What failed; nothing when all is well.
    pub(crate) failures: Vec<String>,
}

/// One run in numbers.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) requests: usize,
    /// Requests that were answered in full, with status 200.
    pub(crate) answered: usize,
    /// Requests that had a turn before them.
    pub(crate) later: usize,
    /// Those of them that the endpoint of the turn before served.
    pub(crate) stayed: usize,
    pub(crate) prompt_tokens: u64,
    /// Prompt tokens that no cache held.
    pub(crate) prefill_tokens: u64,
    pub(crate) median_ttft_ms: Option<f64>,
    /// Answered requests by model and endpoint.
    pub(crate) spread: BTreeMap<&'static str, BTreeMap<String, usize>>,
}

impl Summary {
    pub(crate) fn new(shipped: &Run, round_robin: &Run) -> Self {
        let mut failures = problems(&shipped.rows);
        failures.extend(problems(&round_robin.rows));
        let (shipped, round_robin) = (Figures::new(shipped), Figures::new(round_robin));
        if shipped.affinity().is_some_and(|share| share < AFFINITY) {
            let (stayed, later, least) = (shipped.stayed, shipped.later, AFFINITY * 100.0);
            failures.push(format!(
                "affinity: only {stayed} of {later} later turns stayed, less than {least} percent"
            ));
        }
        let mut summary = Self { shipped, round_robin, failures };
        if !summary.comparable() {
            summary.failures.push("the runs had different prompts: their numbers cannot be compared".into());
        }
        summary
    }

    /// Prefill tokens saved against round robin, in percent; `None` when the runs cannot be compared.
    pub(crate) fn saved_percent(&self) -> Option<f64> {
        let [ours, theirs] = [&self.shipped, &self.round_robin].map(|figures| figures.prefill_tokens as f64);
        (self.comparable() && theirs > 0.0).then(|| 100.0 * (1.0 - ours / theirs))
    }

    /// Whether both runs computed answers to the same prompts.
    fn comparable(&self) -> bool {
        self.shipped.prompt_tokens == self.round_robin.prompt_tokens
    }
}

impl Figures {
    fn new(run: &Run) -> Self {
        let mut figures = Self::default();
        for (model, endpoints) in rig::MODELS.into_iter().zip(&run.endpoints) {
            figures.spread.insert(model, endpoints.iter().map(|endpoint| (endpoint.clone(), 0)).collect());
        }
        let mut before: HashMap<usize, Option<&str>> = HashMap::new();
        for row in &run.rows {
            // A turn that failed was nowhere: neither it nor the next one stayed.
            let served = row.problem.is_none().then_some(row.endpoint.as_str());
            figures.requests += 1;
            figures.prompt_tokens += row.prompt_tokens;
            figures.prefill_tokens += row.prompt_tokens.saturating_sub(row.cached_tokens);
            if let Some(endpoint) = served {
                figures.answered += 1;
                *figures.spread.entry(row.model).or_default().entry(endpoint.into()).or_default() += 1;
            }
            if let Some(before) = before.insert(row.conversation, served) {
                figures.later += 1;
                figures.stayed += usize::from(served.is_some() && before == served);
            }
        }
        figures.median_ttft_ms = median(run.rows.iter().filter_map(|row| row.ttft_ms).collect());
        figures
    }

    /// The share of later turns that stayed; `None` when there were none.
    pub(crate) fn affinity(&self) -> Option<f64> {
        (self.later > 0).then(|| self.stayed as f64 / self.later as f64)
    }
}

fn problems(rows: &[Row]) -> Vec<String> {
    let all: Vec<_> = rows.iter().filter_map(|row| Some((row, row.problem.as_ref()?))).collect();
    let tell = |(row, problem): &(&Row, &String)| {
        format!("{}, conversation {}, turn {}: {problem}", row.run, row.conversation, row.turn)
    };
    let mut told: Vec<String> = all.iter().take(TOLD).map(tell).collect();
    if all.len() > TOLD {
        told.push(format!("and {} more like these", all.len() - TOLD));
    }
    told
}

fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    let upper = *numbers.get(numbers.len() / 2)?;
    let lower = *numbers.get((numbers.len() - 1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::why::Why;

    fn run(name: &'static str, endpoints: &[&str]) -> Run {
        let row = |(at, endpoint): (usize, &&str)| Row {
            run: name,
            conversation: 1,
            turn: at + 1,
            model: "demo-small",
            endpoint: (*endpoint).into(),
            why: Why { by: "local".into(), words: String::new() },
            prompt_tokens: 100,
            cached_tokens: 60,
            ttft_ms: Some(at as f64),
            status: 200,
            problem: None,
        };
        Run {
            rows: endpoints.iter().enumerate().map(row).collect(),
            endpoints: [vec!["a".into(), "b".into()], vec![]],
        }
    }

    #[test]
    fn a_conversation_that_moves_fails_the_demo() {
        let moved = Summary::new(&run("shipped", &["a", "a", "b"]), &run("round_robin", &["a", "b", "a"]));
        assert_eq!((moved.shipped.stayed, moved.shipped.later, moved.failures.len()), (1, 2, 1));
        assert_eq!(moved.shipped.spread["demo-small"]["a"], 2);
        let stayed = Summary::new(&run("shipped", &["a", "a", "a"]), &run("round_robin", &["a", "b", "a"]));
        assert!(stayed.failures.is_empty());
        assert_eq!((stayed.shipped.spread["demo-small"]["b"], stayed.shipped.median_ttft_ms), (0, Some(1.0)));
    }

    #[test]
    fn one_bad_answer_fails_the_demo() {
        let mut bad = run("shipped", &["a"]);
        bad.rows[0].problem = Some("answered 503: ".into());
        assert_eq!(Summary::new(&bad, &run("round_robin", &["a"])).failures.len(), 1);
    }

    #[test]
    fn turns_that_failed_did_not_stay_and_save_nothing() {
        let mut dead = run("shipped", &["-", "-"]);
        for row in &mut dead.rows {
            (row.problem, row.prompt_tokens, row.cached_tokens) = (Some("gone".into()), 0, 0);
        }
        let summary = Summary::new(&dead, &run("round_robin", &["a", "b"]));
        assert_eq!((summary.shipped.later, summary.shipped.stayed, summary.saved_percent()), (1, 0, None));
    }
}
