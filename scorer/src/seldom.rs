//! What is worth a line in the log, and not one each time: somebody else says how often it happens.

use std::time::Duration;
use weir::instant::Instant;

/// Between two lines.
const BETWEEN: Duration = Duration::from_secs(10);

/// One thing that is spoken of now and then.
#[derive(Debug, Default)]
pub(crate) struct Seldom {
    said: Option<Instant>,
    unsaid: u64,
}

impl Seldom {
    /// It happened. If it is to be spoken of: how often it has happened since it last was.
    pub(crate) fn note(&mut self, now: Instant) -> Option<u64> {
        self.unsaid = self.unsaid.saturating_add(1);
        if self.said.is_some_and(|said| now.since(said) < BETWEEN) {
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_one_line_and_later_one_with_its_number() {
        let mut seldom = Seldom::default();
        let at = Instant::from_millis;
        assert_eq!(seldom.note(at(5)), Some(1));
        assert!((0..999).all(|ms| seldom.note(at(5 + ms)).is_none()));
        assert_eq!(seldom.note(at(20_000)), Some(1_000));
        assert_eq!(seldom.note(at(20_001)), None);
    }
}
