//! The last decisions, for who looks at the admin page.
//!
//! An explanation of a choice among a thousand endpoints takes longer than the choice. So decisions are kept only while
//! somebody looks, and then a sample of them: nobody reads a hundred a second. What is kept holds no text of a prompt and
//! nothing that a client sent but numbers.

use serde::Serialize;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weir::instant::Instant;
use weir::pool::Why;
use weir::wire::Reserve;

/// For so long after a look they are kept.
const WATCHED: Duration = Duration::from_secs(10);
/// At most one in this time.
const EVERY: Duration = Duration::from_millis(100);
/// Most that are kept.
const MOST: usize = 64;
/// Most candidates of one; the best come first.
const MOST_CANDIDATES: usize = 16;

/// One decision.
#[derive(Clone, Debug, Serialize)]
pub struct Decision {
    /// Counts up.
    pub number: u64,
    /// Milliseconds since the scorer started.
    pub at_ms: u64,
    /// The pool.
    pub pool: String,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// The answer comes as a stream.
    pub stream: bool,
    /// Why nobody was chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turned_away: Option<&'static str>,
    /// Why who was chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<Why>,
    /// Candidates that are not listed.
    pub left_off: usize,
}

/// The last ones.
#[derive(Debug, Default)]
pub(super) struct Decisions {
    /// In nanoseconds.
    watched_until: AtomicU64,
    next: AtomicU64,
    kept: Mutex<VecDeque<Decision>>,
}

impl Decisions {
    /// Whether the next one is to be kept.
    pub(super) fn wants(&self, now: Instant) -> bool {
        now.nanos() < self.watched_until.load(Ordering::Relaxed)
            && now.nanos() >= self.next.load(Ordering::Relaxed)
    }

    /// Keeps one.
    pub(super) fn keep(&self, pool: &str, ask: &Reserve, decided: Result<Why, &'static str>, now: Instant) {
        self.next.store((now + EVERY).nanos(), Ordering::Relaxed);
        let (mut why, turned_away) = match decided {
            Ok(why) => (Some(why), None),
            Err(reason) => (None, Some(reason)),
        };
        let left_off = why.as_ref().map_or(0, |why| why.candidates.len().saturating_sub(MOST_CANDIDATES));
        if let Some(why) = &mut why {
            why.candidates.truncate(MOST_CANDIDATES);
        }
        let mut kept = self.kept();
        let number = kept.back().map_or(1, |last| last.number + 1);
        if kept.len() >= MOST {
            kept.pop_front();
        }
        kept.push_back(Decision {
            number,
            at_ms: now.nanos() / 1_000_000,
            pool: pool.to_owned(),
            prompt_tokens: ask.demand.prompt_tokens,
            stream: ask.demand.stream,
            turned_away,
            why,
            left_off,
        });
    }

    /// Those after a number, and for a while more will be kept. A number that is still to come is from before a restart.
    pub(super) fn look(&self, after: u64, now: Instant) -> Vec<Decision> {
        self.watched_until.store((now + WATCHED).nanos(), Ordering::Relaxed);
        let kept = self.kept();
        let is_known = kept.back().is_some_and(|last| after <= last.number);
        kept.iter().filter(|decision| !is_known || decision.number > after).cloned().collect()
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<Decision>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir::pool::Ask;

    #[test]
    fn they_are_kept_while_somebody_looks_and_not_all_of_them() {
        let decisions = Decisions::default();
        let ask = Reserve::of("a", 1, &Ask::default());
        let at = |ms: u64| Instant::from_millis(1_000 + ms);
        assert!(!decisions.wants(at(0)), "nobody looks");
        assert!(decisions.look(0, at(0)).is_empty());
        assert!(decisions.wants(at(1)));
        decisions.keep("a", &ask, Err("out"), at(1));
        assert!(!decisions.wants(at(2)) && decisions.wants(at(101)), "a sample");
        for n in 1..=200 {
            decisions.keep("a", &ask, Err("full"), at(100 * n));
        }
        let kept = decisions.look(0, at(20_000));
        assert_eq!((kept.len(), kept[63].number), (64, 201), "bounded");
        assert_eq!(decisions.look(199, at(20_000)).len(), 2);
        assert_eq!(decisions.look(999, at(20_000)).len(), 64, "asked by a page from before a restart");
        assert!(decisions.wants(at(29_000)) && !decisions.wants(at(31_000)), "nobody looks any more");
    }
}
