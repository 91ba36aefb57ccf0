//! When requests come: in place of a workload's own times a Poisson process or bursts, a ramp, an end.
//!
//! Only tasks are moved; what follows inside a task waits for what it follows, as before.

use super::generate::in_order;
use super::{Draw, Request};

const SECOND: f64 = 1e9;

/// Gives the tasks new times: `rate` requests a second, gaps that vary by `variation` (1 is a Poisson process, more comes in
/// bursts, drawn from a gamma distribution).
pub fn retimed(mut requests: Vec<Request>, rate: f64, variation: f64, seed: u64) -> Vec<Request> {
    let mut draw = Draw::new(seed, 4);
    let tasks = requests.iter().filter(|request| request.after.is_empty()).count().max(1);
    let gap = requests.len() as f64 / tasks as f64 / rate;
    let mut at = 0.0;
    for request in requests.iter_mut().filter(|request| request.after.is_empty()) {
        at += draw.gamma(gap, variation);
        request.at = (at * SECOND) as u64;
    }
    in_order(requests)
}

/// Lets the rate of arrival rise from nothing over the first so many seconds, in a straight line.
pub fn ramped(mut requests: Vec<Request>, seconds: f64) -> Vec<Request> {
    for request in requests.iter_mut().filter(|request| request.after.is_empty()) {
        let at = request.at as f64 / SECOND;
        let later = if at < seconds / 2.0 { (2.0 * seconds * at).sqrt() } else { at + seconds / 2.0 };
        request.at = (later * SECOND) as u64;
    }
    in_order(requests)
}

/// Leaves out what cannot begin within the first so many seconds, were every answer there at once.
pub fn until(requests: Vec<Request>, seconds: f64) -> Vec<Request> {
    let end = (seconds * SECOND) as u64;
    let mut earliest: Vec<u64> = Vec::with_capacity(requests.len());
    let mut places: Vec<u32> = Vec::with_capacity(requests.len());
    let mut kept: Vec<Request> = Vec::new();
    for mut request in requests {
        let after = request.after.iter().map(|&of| earliest[of as usize]).max().unwrap_or(0);
        let at = after.saturating_add(request.at);
        earliest.push(at);
        places.push(kept.len() as u32);
        if at < end {
            // What it follows is earlier, and so kept.
            request.after.iter_mut().for_each(|of| *of = places[*of as usize]);
            kept.push(request);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::generate;

    fn starts(requests: &[Request]) -> Vec<f64> {
        let tasks = requests.iter().filter(|request| request.after.is_empty());
        tasks.map(|request| request.at as f64 / SECOND).collect()
    }

    #[test]
    fn new_times_have_the_rate_and_the_bursts_asked_for() {
        for (variation, seed) in [(1.0, 3), (3.0, 4)] {
            let requests = retimed(generate("lengths", 20_000, 1).unwrap(), 50.0, variation, seed);
            let starts = starts(&requests);
            let gaps: Vec<f64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let square = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            assert!((mean * 50.0 - 1.0).abs() < 0.1, "{mean}");
            assert!((square.sqrt() / mean / variation - 1.0).abs() < 0.1, "{}", square.sqrt() / mean);
        }
        let chat = retimed(generate("chat", 3_000, 1).unwrap(), 10.0, 1.0, 1);
        let rate = chat.len() as f64 / starts(&chat).last().unwrap();
        assert!((rate / 10.0 - 1.0).abs() < 0.2, "all turns count: {rate}");
    }

    #[test]
    fn a_ramp_rises_to_the_full_rate_and_keeps_all() {
        let requests = ramped(generate("hot-prefix", 4_000, 1).unwrap(), 40.0);
        let within = |from, to| starts(&requests).iter().filter(|at| (from..to).contains(*at)).count() as f64;
        assert_eq!(requests.len(), 4_000);
        let (early, late, full) = (within(0.0, 10.0), within(30.0, 40.0), within(45.0, 55.0));
        assert!((late / early - 7.0).abs() < 2.0, "an eighth and seven eighths of the rate: {early} {late}");
        assert!((full / 400.0 - 1.0).abs() < 0.15, "{full}");
    }

    #[test]
    fn what_begins_too_late_is_left_out_and_the_rest_still_follows() {
        let all = generate("agents", 500, 1).unwrap();
        let kept = until(all.clone(), 10.0);
        assert!(!kept.is_empty() && kept.len() < all.len());
        assert!(starts(&kept).iter().all(|at| *at < 10.0));
        for (place, request) in kept.iter().enumerate() {
            assert!(request.after.iter().all(|of| (*of as usize) < place));
            let answers: Vec<u64> = request.after.iter().map(|of| kept[*of as usize].answer).collect();
            let same = all.iter().find(|other| other.answer == request.answer).unwrap();
            let before: Vec<u64> = same.after.iter().map(|of| all[*of as usize].answer).collect();
            assert_eq!(answers, before);
        }
    }
}
