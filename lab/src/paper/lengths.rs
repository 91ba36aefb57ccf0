//! What answers come to, learned from those that are over: a mean per class.
//!
//! ```text
//! guess(class) = sum(class) / count(class)        both halved when count reaches 200, so that it follows a change
//! ```
//!
//! A class of which nothing is known is guessed by all others, and the first of all by [`Lengths::FIRST`]. For sums over a
//! batch the mean is the right guess, not the median: what counts is the memory that all of them will take.

use std::collections::BTreeMap;

/// Learned lengths of answers.
#[derive(Clone, Debug, Default)]
pub struct Lengths {
    classes: BTreeMap<u64, Mean>,
    all: Mean,
}

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    count: f64,
}

impl Mean {
    const MEMORY: f64 = 200.0;

    fn add(&mut self, tokens: f64) {
        if self.count >= Self::MEMORY {
            self.sum /= 2.0;
            self.count /= 2.0;
        }
        self.sum += tokens;
        self.count += 1.0;
    }

    fn get(self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }
}

impl Lengths {
    /// Tokens that are guessed before anything is known.
    pub const FIRST: f64 = 200.0;

    /// An answer of this class is over.
    pub fn learn(&mut self, class: u64, tokens: u32) {
        self.classes.entry(class).or_default().add(f64::from(tokens));
        self.all.add(f64::from(tokens));
    }

    /// What the next one of this class will come to.
    pub fn guess(&self, class: u64) -> f64 {
        let own = self.classes.get(&class).and_then(|mean| mean.get());
        own.or(self.all.get()).unwrap_or(Self::FIRST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_told_apart_and_an_unknown_one_is_like_the_others() {
        let mut lengths = Lengths::default();
        assert_eq!(lengths.guess(1), Lengths::FIRST);
        (0..10).for_each(|_| lengths.learn(1, 30));
        (0..10).for_each(|_| lengths.learn(2, 300));
        assert_eq!((lengths.guess(1), lengths.guess(2), lengths.guess(3)), (30.0, 300.0, 165.0));
    }

    #[test]
    fn a_class_that_changes_is_followed() {
        let mut lengths = Lengths::default();
        (0..1_000).for_each(|_| lengths.learn(1, 30));
        (0..500).for_each(|_| lengths.learn(1, 300));
        assert!(lengths.guess(1) > 250.0, "{}", lengths.guess(1));
    }
}
