//! What clients teach of each model, where it is no one client's to say.
//!
//! Prompts and answers are what clients make of them, and estimates are learned from both. So each of the last sixteen
//! that taught something of a model has one voice, however often it speaks, and [`Voices::middle`] is the median of the voices with what is
//! configured once or twice among them, so that they are odd in number. One client moves it no further than to the next voice, and
//! one alone not at all; to pull it down to anything takes as many as there are others.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt::Debug;

/// Most models of which something is learned: clients name them.
pub(crate) const MOST_MODELS: usize = 256;
/// Most voices of a model.
pub(crate) const MOST_VOICES: usize = 16;

/// Whoever has a voice.
pub(crate) trait Teacher: ToOwned<Owned: Debug> {
    /// Whether two are the same.
    fn is(&self, other: &Self) -> bool;
}

/// A model's voices: who has taught nothing for longest comes first.
type OfModel<T, V> = Vec<(<T as ToOwned>::Owned, V)>;

/// What each teacher's voice says, by model.
#[derive(Debug)]
pub(crate) struct Voices<T: Teacher + ?Sized, V> {
    models: BTreeMap<String, OfModel<T, V>>,
}

impl<T: Teacher + ?Sized, V> Default for Voices<T, V> {
    fn default() -> Self {
        Self { models: BTreeMap::new() }
    }
}

impl<T: Teacher + ?Sized, V> Voices<T, V> {
    /// The voices of a model; nobody's if nothing was learned of it.
    pub(crate) fn of(&self, model: &str) -> &[(T::Owned, V)] {
        self.models.get(model).map_or(&[], Vec::as_slice)
    }

    /// What this one says of a model.
    pub(crate) fn voice(&self, model: &str, teacher: &T) -> Option<&V> {
        self.of(model).iter().find(|(own, _)| own.borrow().is(teacher)).map(|(_, voice)| voice)
    }

    /// The number of models of which something is known.
    pub(crate) fn models(&self) -> usize {
        self.models.len()
    }

    /// Makes a teacher's voice what `step` makes of it, unless there are too many models already.
    pub(crate) fn teach(&mut self, model: &str, teacher: &T, step: impl FnOnce(Option<V>) -> V) {
        if self.models.len() >= MOST_MODELS && !self.models.contains_key(model) {
            return;
        }
        let voices = self.models.entry(model.to_owned()).or_default();
        let known = voices.iter().position(|(own, _)| own.borrow().is(teacher));
        let voice = step(known.map(|at| voices.remove(at).1));
        if voices.len() >= MOST_VOICES {
            voices.remove(0);
        }
        voices.push((teacher.to_owned(), voice));
    }

    /// The middle of the voices, each read by `value`, and of `otherwise`, which it is where there are none.
    pub(crate) fn middle<M: Copy>(
        &self,
        model: &str,
        value: impl Fn(&V) -> M,
        order: impl Fn(&M, &M) -> Ordering,
        otherwise: M,
    ) -> M {
        let mut all: Vec<M> = self.of(model).iter().map(|(_, voice)| value(voice)).collect();
        all.resize(all.len() + 1 + all.len() % 2, otherwise);
        all.sort_unstable_by(order);
        all.get(all.len() / 2).copied().unwrap_or(otherwise)
    }
}
