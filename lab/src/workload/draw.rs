//! Random numbers of the shapes that traffic has, from the core's seeded stream.

use weir::random::Random;

/// Draws from distributions.
#[derive(Clone, Debug)]
pub struct Draw(pub Random);

impl Draw {
    /// A stream of its own: the same for the same seed and purpose, whatever else is drawn.
    pub fn new(seed: u64, purpose: u64) -> Self {
        Self(Random::new(Random::new(seed).next() ^ Random::new(!purpose).next()))
    }

    /// Uniform over 0 to 1, without 0.
    pub fn unit(&mut self) -> f64 {
        ((self.0.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Exponential with this mean: the gaps of a Poisson process.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -self.unit().ln() * mean
    }

    /// Normal with mean 0 and deviation 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Lognormal with this mean and coefficient of variation: lengths of prompts and answers.
    pub fn lognormal(&mut self, mean: f64, variation: f64) -> f64 {
        let square = (1.0 + variation * variation).ln();
        (mean.ln() - square / 2.0 + square.sqrt() * self.normal()).exp()
    }

    /// Gamma with this mean and coefficient of variation: gaps that come in bursts when the latter is above 1
    /// (Marsaglia and Tsang, 2000).
    pub fn gamma(&mut self, mean: f64, variation: f64) -> f64 {
        let shape = 1.0 / (variation * variation);
        let boosted = if shape < 1.0 { shape + 1.0 } else { shape };
        let d = boosted - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        let sample = loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && self.unit().ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                break d * v;
            }
        };
        let sample = if shape < 1.0 { sample * self.unit().powf(1.0 / shape) } else { sample };
        sample * mean / shape
    }

    /// 1 or more, stopping with probability 1/`mean` each time.
    pub fn geometric(&mut self, mean: f64) -> u32 {
        let stop = 1.0 / mean.max(1.0);
        if stop >= 1.0 { 1 } else { 1 + (self.unit().ln() / (1.0 - stop).ln()) as u32 }
    }

    /// A place below `count`, the `n`th with weight 1/n^`exponent`.
    pub fn zipf(&mut self, count: usize, exponent: f64) -> usize {
        let weight = |n: usize| (n as f64 + 1.0).powf(-exponent);
        let mut left = self.unit() * (0..count).map(weight).sum::<f64>();
        for n in 0..count {
            left -= weight(n);
            if left <= 0.0 {
                return n;
            }
        }
        count.saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean and coefficient of variation of many.
    fn of(mut draw: impl FnMut(&mut Draw) -> f64) -> (f64, f64) {
        let mut random = Draw::new(3, 0);
        let all: Vec<f64> = (0..100_000).map(|_| draw(&mut random)).collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let square = all.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / all.len() as f64;
        (mean, square.sqrt() / mean)
    }

    #[test]
    fn samples_have_the_mean_and_the_spread_asked_for() {
        for (name, (mean, variation), expected) in [
            ("exponential", of(|draw| draw.exponential(5.0)), 1.0),
            ("lognormal", of(|draw| draw.lognormal(5.0, 0.8)), 0.8),
            ("bursty gamma", of(|draw| draw.gamma(5.0, 2.0)), 2.0),
            ("even gamma", of(|draw| draw.gamma(5.0, 0.5)), 0.5),
            ("geometric", of(|draw| f64::from(draw.geometric(5.0))), 0.9),
        ] {
            assert!((mean - 5.0).abs() < 0.15, "{name}: mean {mean}");
            assert!((variation - expected).abs() < 0.05, "{name}: variation {variation}");
        }
    }

    #[test]
    fn the_first_of_zipf_come_most_often() {
        let mut draw = Draw::new(3, 0);
        let mut counts = [0; 4];
        (0..10_000).for_each(|_| counts[draw.zipf(4, 1.0)] += 1);
        assert!(counts.is_sorted_by(|a, b| a > b), "{counts:?}");
        assert!((4_600..5_000).contains(&counts[0]), "{counts:?}");
    }
}
