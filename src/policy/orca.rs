//! `client_side_weighted_round_robin`: turns by what endpoints say they can take (gRPC A58, Envoy).
//!
//! ```text
//! weight = qps / (utilization + (eps / qps) * error_utilization_penalty)
//! ```
//!
//! qps and eps are answers and failures per second of each endpoint, as they were seen here: engines do not report them.
//! Utilization is `application_utilization` of an ORCA report, or the signal that `metric` names: KV usage, where
//! engines report that (vLLM does). A weight counts from `blackout_period_ms` after the first report on, and no longer
//! than `weight_expiration_period_ms` after the last one; then the blackout begins anew. Who has no weight gets the mean
//! of those that have; with fewer than two weights all turns are even. Shares become turns by earliest deadline first,
//! with a random start, so that gateways do not move in step. New endpoints start slowly if so configured.
//!
//! For endpoints of different size that report how full they are. It looks at averages over seconds, not at queues nor
//! prefixes: for LLM engines of one kind `least_prefill` is better.

use super::number::{Amount, Millis, MillisOrOff};
use super::{Each, Known, News, Round, Score, Signals, SlowStart, Wants, scale};
use crate::instant::Instant;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What is taken for utilization.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Metric {
    /// What the endpoint says of itself as a whole, else its KV usage.
    #[default]
    Utilization,
    KvUsage,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Orca {
    blackout_period_ms: MillisOrOff,
    weight_expiration_period_ms: Millis,
    /// Milliseconds between two computations of weights.
    weight_update_period_ms: Millis,
    error_utilization_penalty: Amount,
    metric: Metric,
    slow_start: SlowStart,
    #[serde(skip)]
    seen: Each<Seen>,
}

impl Default for Orca {
    fn default() -> Self {
        Self {
            blackout_period_ms: MillisOrOff::of(10_000),
            weight_expiration_period_ms: Millis::of(180_000),
            weight_update_period_ms: Millis::of(1_000),
            error_utilization_penalty: Amount::of(1.0),
            metric: Metric::Utilization,
            slow_start: SlowStart::default(),
            seen: Each::default(),
        }
    }
}

/// One endpoint, as it was seen.
#[derive(Debug, Default)]
struct Seen {
    /// The period under way.
    begun: Instant,
    answers: u32,
    failures: u32,
    /// Of the last whole period.
    qps: f64,
    eps: f64,
    utilization: f64,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Seen {
    fn ended(&mut self, failed: bool, now: Instant, period: Duration) {
        let passed = now.since(self.begun);
        if passed >= period {
            let seconds = passed.as_secs_f64().max(1e-9);
            (self.qps, self.eps) = (f64::from(self.answers) / seconds, f64::from(self.failures) / seconds);
            (self.begun, self.answers, self.failures) = (now, 0, 0);
        }
        self.answers = self.answers.saturating_add(1);
        self.failures = self.failures.saturating_add(u32::from(failed));
    }
}

impl Orca {
    fn weight(&self, seen: &Seen, now: Instant) -> Option<f64> {
        let old = now.since(seen.last?).as_millis() >= u128::from(self.weight_expiration_period_ms.get());
        let dark = now.since(seen.first?).as_millis() < u128::from(self.blackout_period_ms.get());
        if old || dark || seen.qps <= 0.0 {
            return None;
        }
        let cost = seen.utilization + seen.eps / seen.qps * self.error_utilization_penalty.get();
        (cost > 0.0).then(|| seen.qps / cost)
    }

    fn utilization(&self, signals: &Signals) -> Option<f64> {
        let said = signals.utilization.filter(|used| *used > 0.0 && self.metric == Metric::Utilization);
        said.or(signals.kv_usage).filter(|used| used.is_finite() && *used > 0.0)
    }
}

impl Score for Orca {
    fn score(&mut self, round: &Round<'_>, scores: &mut [f64]) {
        let weight = |place| self.seen.at(place).and_then(|seen| self.weight(seen, round.now));
        let usable = round.candidates.iter().filter(|candidate| weight(candidate.place).is_some()).count();
        match usable {
            0 | 1 => scores.fill(1.0),
            _ => scale::known_or_mean(round, scores, |candidate| weight(candidate.place)),
        }
        for (score, candidate) in scores.iter_mut().zip(round.candidates) {
            *score *= self.slow_start.factor(candidate.age);
        }
        scale::in_proportion(scores);
    }

    fn meet(&mut self, endpoints: &[Known<'_>]) {
        self.seen.meet(endpoints);
    }

    fn learn(&mut self, news: &News, now: Instant) {
        match news {
            News::Ended { place, failed, .. } => {
                let period = Duration::from_millis(self.weight_update_period_ms.get());
                if let Some(seen) = self.seen.at_mut(*place) {
                    seen.ended(*failed, now, period);
                }
            }
            News::Reported { place, signals } => {
                let Some(utilization) = self.utilization(signals) else { return };
                let expiration = u128::from(self.weight_expiration_period_ms.get());
                let Some(seen) = self.seen.at_mut(*place) else { return };
                if seen.last.is_none_or(|last| now.since(last).as_millis() >= expiration) {
                    seen.first = Some(now);
                }
                (seen.utilization, seen.last) = (utilization, Some(now));
            }
            _ => {}
        }
    }

    fn wants(&self) -> Wants {
        Wants { answers: true, reports: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use crate::policy::tests::{at, read, shares_at};
    use serde_json::json;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// For so many seconds from a second on each endpoint answers `qps` a second, `eps` of them with an error, and says
    /// how full it is.
    fn live(policy: &mut Policy, from: u64, seconds: u64, endpoints: &[(u32, u32, f64)]) {
        for second in from..from + seconds {
            for (place, (qps, eps, utilization)) in endpoints.iter().enumerate() {
                let signals = Signals { utilization: Some(*utilization), ..Signals::default() };
                policy.learn(&News::Reported { place, signals }, Instant::from_millis(second * 1_000));
                for nth in 0..*qps {
                    let after = Duration::from_millis(5);
                    let news =
                        News::Ended { place, after, decoding: None, output_tokens: None, failed: nth < *eps };
                    let now = second * 1_000 + u64::from(nth) * 1_000 / u64::from(*qps);
                    policy.learn(&news, Instant::from_millis(now));
                }
            }
        }
    }

    fn shares(policy: &mut Policy, second: u64) -> Vec<usize> {
        shares_at(policy, &[at(0), at(1), at(2)], 600, Instant::from_millis(second * 1_000))
    }

    /// But for the turn that was under way.
    fn even(policy: &mut Policy, second: u64) -> bool {
        shares(policy, second).iter().all(|share| (195..=205).contains(share))
    }

    #[test]
    fn weights_are_qps_by_utilization_and_errors_cost() {
        let mut policy = read(json!("client_side_weighted_round_robin"), 3);
        live(&mut policy, 1, 20, &[(10, 0, 0.5), (10, 0, 0.25), (10, 0, 0.25)]);
        assert_eq!(shares(&mut policy, 21), [120, 240, 240], "20, 40, 40 a second");
        let mut policy = read(json!("client_side_weighted_round_robin"), 3);
        live(&mut policy, 1, 20, &[(10, 0, 0.5), (10, 5, 0.5), (10, 0, 0.5)]);
        assert_eq!(shares(&mut policy, 21), [240, 120, 240], "half of them failed: 10/(0.5+0.5)");
    }

    #[test]
    fn nothing_counts_in_the_blackout_nor_after_it_has_expired() {
        let mut policy = read(json!("client_side_weighted_round_robin"), 3);
        let uneven = [(10, 0, 0.5), (10, 0, 0.1), (10, 0, 0.1)];
        live(&mut policy, 1, 9, &uneven);
        assert!(even(&mut policy, 10));
        live(&mut policy, 10, 5, &uneven);
        assert!(shares(&mut policy, 15)[0] < 60);
        assert!(even(&mut policy, 15 + 181), "expired");
        live(&mut policy, 200, 5, &uneven);
        assert!(even(&mut policy, 205), "a blackout of its own");
        assert!(shares(&mut policy, 210)[0] < 60);
    }

    #[test]
    fn who_has_no_weight_gets_the_mean_and_one_weight_is_none() {
        let mut policy = read(json!("client_side_weighted_round_robin"), 3);
        live(&mut policy, 1, 20, &[(10, 0, 0.5), (30, 0, 0.5)]);
        assert_eq!(shares(&mut policy, 21), [100, 300, 200]);
        let mut policy = read(json!("client_side_weighted_round_robin"), 3);
        live(&mut policy, 1, 20, &[(10, 0, 0.9)]);
        assert_eq!(shares(&mut policy, 21), [200, 200, 200]);
    }
}
