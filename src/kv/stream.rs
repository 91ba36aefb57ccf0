//! In which order an engine's batches are taken, and what is to be done where some are missing.
//!
//! Batches are numbered from 0. A publisher drops what a slow or absent subscriber does not take, keeps the last ones to be
//! fetched, and begins again at 0 when its engine does. So:
//!
//! | a batch comes | then |
//! |---|---|
//! | the one that is due | it is taken |
//! | one that was fetched already | it is let go |
//! | a later one | what lies between is fetched; and the last one taken once more, which must be the same |
//! | none later than the last that came | the engine has started anew: all that was held is let go |
//!
//! A number alone does not name a batch: an engine that started anew while nobody listened may have come to any number. The
//! batch's own time does, and so the last one taken is fetched again with those that follow it. Where nothing can be
//! fetched what was held is let go: it may have been removed in between.

/// What to do with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Take it.
    Take,
    /// Let it go: it has been taken.
    Skip,
    /// Let go all that is held, then take it. `whole`: it is the engine's first.
    Anew {
        /// Nothing preceded it.
        whole: bool,
    },
    /// Fetch from this number on; what comes so is told to [`Stream::fetched`], and then this one to [`Stream::after`].
    Fetch {
        /// The first to be fetched.
        from: u64,
    },
}

/// Where one engine's stream stands.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    /// The last batch taken: its number and its time.
    taken: Option<(u64, u64)>,
    /// The number of the last that came by itself.
    live: Option<u64>,
}

impl Stream {
    /// From where to fetch when a connection has been made, before anything comes.
    pub fn resume(&self) -> u64 {
        self.taken.map_or(0, |(number, _)| number)
    }

    /// A batch came by itself.
    pub fn live(&mut self, number: u64, at: f64) -> Step {
        if self.live.is_some_and(|live| number <= live) {
            self.taken = None;
        }
        self.live = Some(number);
        match self.taken {
            Some((taken, _)) if number <= taken => Step::Skip,
            Some((taken, _)) if number == taken.saturating_add(1) => self.take(number, at, Step::Take),
            Some((taken, _)) => Step::Fetch { from: taken },
            None if number == 0 => self.take(number, at, Step::Anew { whole: true }),
            None => Step::Fetch { from: 0 },
        }
    }

    /// A batch that was fetched. [`Step::Fetch`]: it is of another life of the engine, fetch again.
    pub fn fetched(&mut self, first: bool, number: u64, at: f64) -> Step {
        match self.taken {
            Some(taken) if first && taken == (number, at.to_bits()) => Step::Skip,
            Some(_) if first => {
                (self.taken, self.live) = (None, None);
                match number {
                    0 => self.take(number, at, Step::Anew { whole: true }),
                    _ => Step::Fetch { from: 0 },
                }
            }
            _ => self.after(number, at),
        }
    }

    /// A batch behind those that were fetched, as far as they could be.
    pub fn after(&mut self, number: u64, at: f64) -> Step {
        match self.taken {
            Some((taken, _)) if number <= taken => Step::Skip,
            Some((taken, _)) if number == taken.saturating_add(1) => self.take(number, at, Step::Take),
            _ => self.take(number, at, Step::Anew { whole: number == 0 }),
        }
    }

    /// Nothing is known any more of what came before.
    pub fn forget(&mut self) {
        self.taken = None;
    }

    fn take(&mut self, number: u64, at: f64, step: Step) -> Step {
        self.taken = Some((number, at.to_bits()));
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const WHOLE: Step = Step::Anew { whole: true };
    const PART: Step = Step::Anew { whole: false };

    fn at(numbers: impl IntoIterator<Item = u64>) -> Stream {
        let mut stream = Stream::default();
        for number in numbers {
            stream.live(number, number as f64);
        }
        stream
    }

    #[test]
    fn what_is_due_is_taken() {
        let mut stream = Stream::default();
        assert_eq!(stream.live(0, 0.0), WHOLE);
        assert_eq!(stream.live(1, 1.0), Step::Take);
        assert_eq!(stream.live(2, 2.0), Step::Take);
    }

    #[test]
    fn a_gap_is_fetched_with_the_last_one_taken_and_what_comes_twice_is_let_go() {
        let mut stream = at(0..3);
        assert_eq!(stream.live(5, 5.0), Step::Fetch { from: 2 });
        assert_eq!(stream.fetched(true, 2, 2.0), Step::Skip);
        for number in 3..8 {
            assert_eq!(stream.fetched(false, number, number as f64), Step::Take, "{number}");
        }
        assert_eq!(stream.after(5, 5.0), Step::Skip);
        assert_eq!(stream.live(6, 6.0), Step::Skip, "on its way while it was fetched");
        assert_eq!(stream.live(7, 7.0), Step::Skip);
        assert_eq!(stream.live(8, 8.0), Step::Take);
    }

    #[test]
    fn a_gap_that_cannot_be_fetched_lets_go_what_was_held() {
        let mut stream = at(0..3);
        assert_eq!(stream.live(5, 5.0), Step::Fetch { from: 2 });
        assert_eq!(stream.after(5, 5.0), PART);
        assert_eq!(stream.live(6, 6.0), Step::Take);
        assert_eq!(stream.live(9, 9.0), Step::Fetch { from: 6 });
        assert_eq!(stream.fetched(true, 6, 6.0), Step::Skip);
        assert_eq!(stream.fetched(false, 8, 8.0), PART, "7 is not kept any more");
        assert_eq!(stream.after(9, 9.0), Step::Take);
    }

    #[test]
    fn an_engine_that_starts_anew_is_noticed_whatever_number_it_has_come_to() {
        let mut stream = at(0..9);
        assert_eq!(stream.live(0, 100.0), WHOLE);
        let mut stream = at(0..9);
        assert_eq!(stream.live(3, 103.0), Step::Fetch { from: 0 });
        assert_eq!(stream.fetched(true, 0, 100.0), WHOLE);
        // Seen only by the time of the batch: the number is further on.
        let mut stream = at(0..9);
        assert_eq!(stream.live(20, 120.0), Step::Fetch { from: 8 });
        assert_eq!(stream.fetched(true, 8, 108.0), Step::Fetch { from: 0 });
        assert_eq!(stream.fetched(true, 0, 100.0), WHOLE);
        assert_eq!(stream.fetched(false, 1, 101.0), Step::Take);
    }

    #[test]
    fn who_comes_late_fetches_from_the_beginning_or_knows_a_part() {
        let mut stream = Stream::default();
        assert_eq!(stream.resume(), 0);
        assert_eq!(stream.live(40, 40.0), Step::Fetch { from: 0 });
        assert_eq!(stream.fetched(true, 30, 30.0), PART);
        assert_eq!(stream.fetched(false, 31, 31.0), Step::Take);
        assert_eq!(stream.resume(), 31);
    }
}
