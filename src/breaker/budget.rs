//! How many retries there may be: a share of the successes, and a few at any time.
//!
//! A fixed number of tries per request multiplies load exactly when there is too much of it: four layers that try
//! 3, 4, 4 and 3 times make 144 attempts of one request. A budget ties retries to what succeeds, so that in an outage they
//! run dry, and a single failure among many successes is always retried (Finagle and linkerd have the same).
//!
//! ```text
//! balance ← min(most, balance + per_s · time)      on looking
//! balance ← min(most, balance + percent / 100)     on a success
//! balance ← max(−most, balance − 1)                on a retry
//! ```
//!
//! The number is looked at before a request's first attempt and paid when its retries are known, so requests that were
//! under way when an endpoint died are all retried: the balance goes into debt, and those that follow wait until it is paid.
//! Each worker of a proxy has its own.

use crate::instant::Instant;
use serde::{Deserialize, Serialize};

/// How retries are bounded.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Retries per hundred successes.
    pub percent: u32,
    /// Retries per second without any success.
    pub per_s: u32,
    /// The most retries that are saved up, and the deepest debt.
    pub most: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { percent: 20, per_s: 1, most: 20 }
    }
}

/// The budget of one worker, in thousandths of a retry.
#[derive(Debug)]
pub struct Budget {
    config: Config,
    balance: i64,
    looked: Instant,
}

impl Budget {
    /// A full one.
    pub fn new(config: &Config) -> Self {
        Self { config: config.clone(), balance: i64::from(config.most) * 1_000, looked: Instant::default() }
    }

    fn change(&mut self, by: i64) {
        let most = i64::from(self.config.most).saturating_mul(1_000);
        self.balance = self.balance.saturating_add(by).clamp(most.saturating_neg(), most);
    }

    /// Retries that a request may have.
    pub fn left(&mut self, now: Instant) -> usize {
        let millis = i64::try_from(now.since(self.looked).as_millis()).unwrap_or(i64::MAX);
        self.looked = self.looked.max(now);
        self.change(millis.saturating_mul(i64::from(self.config.per_s)));
        usize::try_from(self.balance / 1_000).unwrap_or(0)
    }

    /// A request was served.
    pub fn succeeded(&mut self) {
        self.change(i64::from(self.config.percent).saturating_mul(10));
    }

    /// So many retries were made.
    pub fn retried(&mut self, retries: usize) {
        self.change(i64::try_from(retries).unwrap_or(i64::MAX).saturating_mul(-1_000));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// Sends `requests`, ten milliseconds apart, of which every `nth` succeeds at once and the others never; each that
    /// fails is retried as often as the budget has it, up to three times. Gives the attempts.
    fn attempts(budget: &mut Budget, requests: u32, nth: u32) -> u32 {
        let mut made = 0;
        for request in 0..requests {
            let left = budget.left(Instant::from_millis(1_000 + u64::from(request) * 10)).min(3);
            made += 1;
            if request % nth == 0 {
                budget.succeeded();
            } else {
                made += left as u32;
                budget.retried(left);
            }
        }
        made
    }

    #[test]
    fn in_an_outage_retries_run_dry_and_single_failures_are_always_retried() {
        let config = Config { percent: 20, per_s: 1, most: 20 };
        let mut budget = Budget::new(&config);
        let made = attempts(&mut budget, 10_000, u32::MAX);
        assert!(made <= 10_000 + 20 + 101, "{made}: what was saved, and one a second");
        let mut budget = Budget::new(&config);
        for request in 0..10_000_u64 {
            let now = Instant::from_millis(request);
            if request % 10 == 9 {
                assert!(budget.left(now) >= 1);
                budget.retried(1);
            } else {
                budget.succeeded();
            }
        }
    }

    #[test]
    fn half_failing_costs_no_more_than_the_share_of_the_other_half() {
        let mut budget = Budget::new(&Config { percent: 20, per_s: 0, most: 10 });
        let made = attempts(&mut budget, 10_000, 2);
        assert!((10_900..=11_020).contains(&made), "{made}: a fifth of 5,000 successes, and 10 saved");
    }

    #[test]
    fn a_debt_has_a_bottom() {
        let mut budget = Budget::new(&Config { percent: 100, per_s: 0, most: 2 });
        budget.retried(1_000_000);
        (0..2).for_each(|_| budget.succeeded());
        assert_eq!(budget.left(Instant::from_millis(1)), 0);
        (0..1_000).for_each(|_| budget.succeeded());
        assert_eq!(budget.left(Instant::from_millis(2)), 2);
    }
}
