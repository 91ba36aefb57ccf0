//! What an engine costs, from what was measured of it: requests one at a time, so that nothing waits.
//!
//! ```text
//! TPOT = base + kv_ns * context                                             base = overhead + read + decode
//! TTFT = base * chunks + prefill_us * uncached + pair_ns * pairs
//! ```
//!
//! Both so that half of the times lie above and half below, by their share: what was measured beside other work has times that
//! are far too long and none that are too short, and they must not drag the others along. A term that would come out below
//! 0 is left out and the others are fitted again. The sums are
//! those of an engine that does not overlap computing and reading. One request at a time cannot say how `base` divides: a
//! token of an answer is taken to compute as long as one of a prompt, and the rest of `base` to be reading. What is not a cost
//! (memory, batch, chunks) is kept from the profile to start with.

use super::{Spec, Work};
use weir::invalid::Invalid;

/// A request that was alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Tokens of its prompt.
    pub prompt: f64,
    /// Those that were cached.
    pub cached: f64,
    /// Tokens of its answer.
    pub output: f64,
    /// Microseconds to its first token.
    pub ttft_us: f64,
    /// Microseconds for each further one.
    pub tpot_us: Option<f64>,
}

/// A fitted engine, and how far it is from what was measured.
#[derive(Clone, Debug)]
pub struct Fit {
    /// The engine.
    pub spec: Spec,
    /// The mean share by which its times to the first token differ from those measured.
    pub ttft_off: f64,
    /// The same of times per further token.
    pub tpot_off: f64,
    /// How far the times to the first token of requests of like length are from each other: what is measured beside other
    /// work differs by as much from itself, and no costs come nearer to it.
    pub ttft_apart: f64,
}

/// Fits the costs of an engine that is otherwise `like` this one.
pub fn fit(points: &[Point], like: &Spec) -> Result<Fit, Invalid> {
    const FEWEST: usize = 10;
    let few = |what: &str, count: usize| {
        Invalid::new(what, format!("{count} requests: expected {FEWEST} or more, of different lengths"))
    };
    let decoded: Vec<([f64; 2], f64)> = points
        .iter()
        .filter_map(|point| Some(([1.0, point.prompt + point.output / 2.0], point.tpot_us?)))
        .collect();
    if points.len() < FEWEST || decoded.len() < FEWEST {
        return Err(few("requests with two tokens or more", decoded.len()));
    }
    let [base, per_context] = middle(&decoded).ok_or_else(|| few("answers", decoded.len()))?;
    let computed: Vec<([f64; 2], f64)> = points
        .iter()
        .map(|point| {
            let uncached = (point.prompt - point.cached).max(1.0);
            let chunks = (uncached / f64::from(like.step_tokens)).ceil();
            let pairs = uncached * (point.cached + uncached / 2.0);
            ([uncached, pairs], point.ttft_us - base * chunks)
        })
        .collect();
    let [prefill_us, per_pair] = middle(&computed).ok_or_else(|| few("prompts", computed.len()))?;
    let decode_us = prefill_us.min(base);
    let spec = Spec {
        source: format!("fitted to {} requests, one at a time; the rest as {:?}", points.len(), like.source),
        overhead_us: 0.0,
        prefill_us: rounded(prefill_us),
        decode_us: rounded(decode_us),
        pair_ns: rounded(per_pair * 1_000.0),
        read_us: rounded(base - decode_us),
        kv_ns: rounded(per_context * 1_000.0),
        overlap: false,
        answers_beside: false,
        ..like.clone()
    };
    let ttft = points.iter().map(|point| (ttft_us(&spec, point), point.ttft_us));
    let tpot = decoded.iter().map(|([_, context], tpot)| (base + per_context * context, *tpot));
    Ok(Fit { ttft_off: off(ttft), tpot_off: off(tpot), ttft_apart: apart(points, &spec), spec })
}

/// The mean share by which the time to the first token of a request differs from the median of those next to it in length,
/// four on either side; each is put to its length by what the engine would take.
fn apart(points: &[Point], spec: &Spec) -> f64 {
    const SIDE: usize = 4;
    let mut ratios: Vec<(f64, f64)> = points
        .iter()
        .map(|point| (ttft_us(spec, point), point))
        .map(|(us, point)| (us, point.ttft_us / us))
        .collect();
    ratios.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let like = |at: usize| {
        let near = at.saturating_sub(SIDE)..(at + SIDE + 1).min(ratios.len());
        let mut others: Vec<f64> = near.filter(|other| *other != at).map(|other| ratios[other].1).collect();
        others.sort_by(f64::total_cmp);
        others[others.len() / 2]
    };
    off((0..ratios.len()).map(|at| (like(at), ratios[at].1)))
}

/// What an engine would take for the first token of a request that is alone.
fn ttft_us(spec: &Spec, point: &Point) -> f64 {
    let uncached = (point.prompt - point.cached).max(1.0) as u32;
    let mut before = point.cached as u32;
    let mut left = uncached;
    let mut sum = 0.0;
    while left > 0 {
        let chunk = left.min(spec.step_tokens);
        let mut work = Work::default();
        work.add_prefill(before, chunk);
        sum += spec.step_ns(&work, 1.0) as f64 / 1_000.0;
        before += chunk;
        left -= chunk;
    }
    sum
}

fn off(pairs: impl Iterator<Item = (f64, f64)>) -> f64 {
    let shares: Vec<f64> = pairs.map(|(fitted, measured)| (fitted / measured - 1.0).abs()).collect();
    rounded(shares.iter().sum::<f64>() / shares.len().max(1) as f64)
}

/// The two factors, neither below 0, whose sums of products are off by the least in all; each sample counts by its share, not
/// its size, so that short requests are not drowned by long ones. None when the samples do not tell.
///
/// By least squares again and again, in which a sample counts the less the further it was off the time before.
fn middle(samples: &[([f64; 2], f64)]) -> Option<[f64; 2]> {
    const ROUNDS: usize = 50;
    const NEAR: f64 = 1e-3;
    let mut found = least_squares(samples, |_, y| 1.0 / (y * y).max(1.0))?;
    for _ in 0..ROUNDS {
        let [x, z] = found;
        found = least_squares(samples, |[a, b], y| {
            let fitted = (x * a + z * b).max(1.0);
            1.0 / (fitted * fitted * (y / fitted - 1.0).abs().max(NEAR))
        })?;
    }
    Some(found)
}

/// The two factors, neither below 0, whose sums of products come nearest, with these weights.
fn least_squares(samples: &[([f64; 2], f64)], weight: impl Fn([f64; 2], f64) -> f64) -> Option<[f64; 2]> {
    let (mut aa, mut ab, mut bb, mut ay, mut by) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for ([a, b], y) in samples {
        let weight = weight([*a, *b], *y);
        aa += weight * a * a;
        ab += weight * a * b;
        bb += weight * b * b;
        ay += weight * a * y;
        by += weight * b * y;
    }
    let determinant = aa * bb - ab * ab;
    let both = [(ay * bb - by * ab) / determinant, (by * aa - ay * ab) / determinant];
    let found = match both {
        [a, b] if a >= 0.0 && b >= 0.0 && determinant > aa * bb * 1e-9 => both,
        [a, _] if a < 0.0 => [0.0, by / bb],
        _ => [ay / aa, 0.0],
    };
    found.iter().all(|factor| factor.is_finite() && *factor >= 0.0).then_some(found)
}

fn rounded(x: f64) -> f64 {
    (x * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::specs;

    fn like() -> Spec {
        specs().unwrap().remove("a100-llama3-8b").unwrap()
    }

    #[test]
    fn the_costs_of_an_engine_are_found_from_its_times() {
        let truth = Spec {
            overlap: false,
            overhead_us: 0.0,
            prefill_us: 150.0,
            decode_us: 150.0,
            pair_ns: 20.0,
            read_us: 9_000.0,
            kv_ns: 400.0,
            ..like()
        };
        let point = |n: u32| {
            let (prompt, cached) = (f64::from(200 + n * 170), f64::from(n % 3 * 64));
            let mut point = Point { prompt, cached, output: 40.0, ttft_us: 0.0, tpot_us: None };
            point.ttft_us = ttft_us(&truth, &point) * (1.0 + 0.01 * f64::from(n % 2));
            let work = Work { decode: 1, context: (prompt + 20.0) as u64, ..Work::default() };
            point.tpot_us = Some(truth.step_ns(&work, 1.0) as f64 / 1_000.0);
            point
        };
        let points: Vec<Point> = (0..40).map(point).collect();
        let Fit { spec, ttft_off, tpot_off, ttft_apart } = fit(&points, &like()).unwrap();
        let near = |found: f64, truth: f64| (found / truth - 1.0).abs() < 0.1;
        assert!(near(spec.prefill_us, 150.0) && near(spec.pair_ns, 20.0), "{spec:?}");
        assert!(near(spec.read_us, 9_000.0) && near(spec.kv_ns, 400.0), "{spec:?}");
        assert!(ttft_off < 0.02 && tpot_off < 0.02, "{ttft_off} {tpot_off}");
        assert!(ttft_apart < 0.02, "nothing else was going on: {ttft_apart}");
        let disturbed = |(n, point): (usize, &Point)| Point {
            ttft_us: point.ttft_us * if n % 3 == 0 { 3.0 } else { 1.0 },
            ..*point
        };
        let noisy: Vec<Point> = points.iter().enumerate().map(disturbed).collect();
        let Fit { ttft_off, ttft_apart, .. } = fit(&noisy, &like()).unwrap();
        assert!(ttft_off > 0.15 && ttft_apart > 0.15, "one in three was disturbed: {ttft_off} {ttft_apart}");
    }

    #[test]
    fn what_was_disturbed_does_not_count() {
        let samples: Vec<([f64; 2], f64)> = (1..=60)
            .map(|n| {
                let a = f64::from(n);
                let y = 1_000.0 + 50.0 * a;
                ([1.0, a], if n % 3 == 0 { y * 8.0 } else { y })
            })
            .collect();
        let [base, slope] = middle(&samples).unwrap();
        assert!((base - 1_000.0).abs() < 30.0 && (slope - 50.0).abs() < 2.0, "{base} {slope}");
    }

    #[test]
    fn too_few_requests_are_refused() {
        let said = fit(&[], &like()).unwrap_err().to_string();
        assert!(said.contains("0 requests: expected 10 or more"), "{said}");
    }
}
