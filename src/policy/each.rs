//! What a policy keeps of each endpoint.

use super::Known;
use std::collections::HashMap;

/// One value per endpoint, by its place: a slice look-up and no hashing on the way of a request.
///
/// An endpoint that stays keeps its value wherever it moves; one that is new, also at an address that was there before,
/// starts with the default.
#[derive(Debug)]
pub struct Each<T>(Vec<(u64, T)>);

impl<T> Default for Each<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Default> Each<T> {
    /// These are the endpoints from now on.
    pub fn meet(&mut self, endpoints: &[Known<'_>]) {
        let mut old: HashMap<u64, T> = self.0.drain(..).collect();
        self.0 =
            endpoints.iter().map(|known| (known.id, old.remove(&known.id).unwrap_or_default())).collect();
    }

    /// The value of the endpoint at a place.
    pub fn at(&self, place: usize) -> Option<&T> {
        self.0.get(place).map(|(_, value)| value)
    }

    /// The value of the endpoint at a place, to change it.
    pub fn at_mut(&mut self, place: usize) -> Option<&mut T> {
        self.0.get_mut(place).map(|(_, value)| value)
    }
}
