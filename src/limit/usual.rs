//! What is learned of each model: how long its answers come out.
//!
//! ```text
//! of one teacher = mean + 2 mean deviations of its answers
//! guess          = the larger of: the middle of all teachers and `output_tokens`; the asking teacher's own
//! ```
//!
//! Moving averages with the gains of Jacobson's estimator of round-trip times (1988): an eighth for the mean, a quarter for
//! the deviation. In thousandths, in integers. Each worker learns by itself: what it is wrong by is corrected when
//! requests are settled.
//!
//! Answers are what clients make of them, so none of it may be one client's to say ([`crate::voices`]):
//!
//! - **What teaches** is the length that the model chose: of answers that ended by themselves ([`super::Outcome::Ended`])
//!   to clients that set no bound, or one of eight times `output_tokens` and more, as some always do; per choice (`n`).
//! - **A teacher** is whoever shares a count of a limit that tells clients apart, however many other keys it varies; all
//!   who are told apart by no limit are one.
//! - A teacher with longer answers than the middle reserves its own length, which concerns nobody else.

use super::verdict::Hold;
use crate::voices::{Teacher, Voices};

/// What is learned, by model; a teacher is the counts it shared when it last taught.
#[derive(Debug, Default)]
pub(super) struct Usual(Voices<[Hold], Voice>);

/// What one teacher's answers come to, in thousandths: output tokens, and how far off they are.
#[derive(Clone, Copy, Debug)]
struct Voice {
    output: u64,
    deviation: u64,
}

/// More tokens than this no answer has.
const MOST_TOKENS: u64 = 1 << 32;

impl Teacher for [Hold] {
    fn is(&self, other: &Self) -> bool {
        self.is_empty() && other.is_empty() || self.iter().any(|hold| other.contains(hold))
    }
}

impl Usual {
    /// Tokens that an answer to this teacher will hardly exceed; `otherwise` is what is expected of a model of which
    /// nothing is known.
    pub(super) fn output(&self, model: Option<&str>, teacher: &[Hold], otherwise: u64) -> u64 {
        let Some(model) = model else { return otherwise };
        let middle = self.0.middle(model, Voice::tokens, u64::cmp, otherwise);
        let own = self.0.voice(model, teacher).filter(|_| !teacher.is_empty());
        own.map_or(middle, |own| own.tokens().max(middle))
    }

    /// Learns from answers that this teacher got: so many `choices`, and all their tokens.
    pub(super) fn learn(&mut self, model: &str, teacher: &[Hold], output: u64, choices: u32) {
        let output = (output / u64::from(choices).max(1)).min(MOST_TOKENS) * 1_000;
        self.0.teach(model, teacher, |before| match before {
            Some(before) => Voice {
                output: toward(before.output, output, 8),
                deviation: toward(before.deviation, output.abs_diff(before.output), 4),
            },
            None => Voice { output, deviation: output / 2 },
        });
    }
}

impl Voice {
    fn tokens(&self) -> u64 {
        self.output.saturating_add(2 * self.deviation).div_ceil(1_000)
    }
}

/// A step of one `part`-th from an average to a sample.
fn toward(average: u64, sample: u64, part: u64) -> u64 {
    match sample > average {
        true => average + (sample - average).div_ceil(part),
        false => average - (average - sample) / part,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::voices::{MOST_MODELS, MOST_VOICES};
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const OTHERWISE: u64 = 512;

    fn of(key: u64) -> Vec<Hold> {
        vec![Hold { rule: 0, key }]
    }

    fn guess(usual: &Usual, teacher: &[Hold]) -> u64 {
        usual.output(Some("m"), teacher, OTHERWISE)
    }

    #[test]
    fn one_teacher_alone_moves_nobodys_guess_but_its_own_and_that_only_up() {
        for (output, own) in [(1, OTHERWISE..=OTHERWISE), (9_000, 9_000..=9_010)] {
            let mut usual = Usual::default();
            (0..200).for_each(|_| usual.learn("m", &of(1), output, 1));
            assert_eq!(guess(&usual, &of(2)), OTHERWISE);
            assert!(own.contains(&guess(&usual, &of(1))), "{}", guess(&usual, &of(1)));
        }
    }

    #[test]
    fn among_others_one_teacher_moves_the_guess_no_further_than_to_the_next_voice() {
        for extreme in [1, 1 << 40] {
            let mut usual = Usual::default();
            let honest = |usual: &mut Usual| {
                for (key, output) in [(1, 80), (2, 100), (3, 90)] {
                    (0..100).for_each(|_| usual.learn("m", &of(key), output, 1));
                }
            };
            honest(&mut usual);
            (0..500).for_each(|_| usual.learn("m", &of(9), extreme, 1));
            honest(&mut usual);
            let guess = guess(&usual, &of(7));
            assert!((80..110).contains(&guess), "{guess} after {extreme}");
        }
    }

    #[test]
    fn who_varies_one_key_and_not_the_other_is_one_teacher_and_pushes_nobody_out() {
        let mut usual = Usual::default();
        for key in 1..=3 {
            (0..100).for_each(|_| usual.learn("m", &of(key), 100, 1));
        }
        for task in 0..1_000 {
            usual.learn("m", &[Hold { rule: 1, key: task }, Hold { rule: 0, key: 9 }], 1, 1);
        }
        assert!((100..110).contains(&guess(&usual, &of(7))));
        // Those whom nothing tells apart are one, too.
        (0..1_000).for_each(|_| usual.learn("m", &[], 1, 1));
        assert!((100..110).contains(&guess(&usual, &of(7))));
        assert_eq!(usual.0.of("m").len(), 5);
    }

    #[test]
    fn many_choices_teach_the_length_of_one_and_memory_is_bounded() {
        let mut usual = Usual::default();
        for key in 1..=3 {
            (0..100).for_each(|_| usual.learn("m", &of(key), 128 * 100, 128));
        }
        assert!((100..110).contains(&guess(&usual, &of(1))));
        (0..1_000).for_each(|n| usual.learn("m", &of(n), 100, 1));
        assert_eq!(usual.0.of("m").len(), MOST_VOICES);
        (0..1_000).for_each(|n| usual.learn(&n.to_string(), &of(1), 100, 1));
        assert_eq!(usual.0.models(), MOST_MODELS);
    }
}
