//! Which prefix blocks one endpoint is believed to hold.
//!
//! Block hashes are chained, so a set of prompts is a tree and any hash names its whole path from the root. The
//! tree is kept compressed: a node is a run of blocks without a branch, found by the hash of its first block.
//! Two consequences make it quick: a run that ends with the same hash is equal altogether, so matching costs
//! one look-up a node and not one a block; and where two runs part is found by bisection.
//!
//! The index is bounded. What was used least recently goes first, and of that the tail: an engine evicts so
//! too, and a prefix without its head would be of no use. Each endpoint has an index of its own, so that
//! everything believed of an endpoint leaves with it in one step.
//!
//! A simpler map from hash to last use would cost a look-up and an insertion per block: for a prompt of 128 KB
//! 192 of each, where this does two or three.
//!
//! What is held counts in units, as blocks differ in length (see [`crate::block`]).

use crate::block;
use crate::seeded::Seeded;
use std::collections::{BTreeSet, HashMap};

/// Blocks believed to be in one endpoint's cache.
#[derive(Debug)]
pub struct Index {
    nodes: Vec<Node>,
    free: Vec<usize>,
    /// The node whose run begins with a hash.
    starts: HashMap<u64, usize, Seeded>,
    /// Nodes without children, the one used least recently first.
    leaves: BTreeSet<(u64, usize)>,
    units: usize,
    capacity: usize,
    clock: u64,
}

/// A run of blocks without a branch.
#[derive(Debug, Default)]
struct Node {
    run: Vec<u64>,
    /// Blocks before the run.
    before: usize,
    parent: Option<usize>,
    children: u32,
    used: u64,
}

impl Node {
    fn units(&self) -> usize {
        units(self.before, self.run.len())
    }
}

/// Units of a run of so many blocks behind others.
fn units(before: usize, run: usize) -> usize {
    block::units(before.saturating_add(run)).saturating_sub(block::units(before))
}

impl Index {
    /// An empty index that will hold at most `capacity` units. `seed` keeps clients from choosing collisions.
    pub fn new(capacity: usize, seed: u64) -> Self {
        Self {
            nodes: Vec::new(),
            free: Vec::new(),
            starts: HashMap::with_hasher(Seeded(seed)),
            leaves: BTreeSet::new(),
            units: 0,
            capacity,
            clock: 0,
        }
    }

    /// Holds at most `capacity` units from now on.
    pub fn bound(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.evict();
    }

    /// Units held.
    pub fn len(&self) -> usize {
        self.units
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.units == 0
    }

    /// How many blocks at the beginning of `chain` are held.
    pub fn matched(&self, chain: &[u64]) -> usize {
        let mut matched = 0;
        let mut rest = chain;
        while let Some(node) = self.start(rest).and_then(|id| self.nodes.get(id)) {
            let common = common(&node.run, rest);
            matched += common;
            rest = rest.get(common..).unwrap_or_default();
            if common < node.run.len() {
                break;
            }
        }
        matched
    }

    /// The endpoint holds all of `chain` now, and used it last.
    pub fn insert(&mut self, chain: &[u64]) {
        self.clock += 1;
        let mut last = None;
        let mut rest = chain;
        while let Some((id, node)) = self.start(rest).and_then(|id| Some((id, self.nodes.get_mut(id)?))) {
            let common = common(&node.run, rest);
            let whole = common == node.run.len();
            rest = rest.get(common..).unwrap_or_default();
            if !whole && !rest.is_empty() {
                last = self.split(id, common);
                break;
            }
            if node.children == 0 {
                self.leaves.remove(&(node.used, id));
                self.leaves.insert((self.clock, id));
            }
            node.used = self.clock;
            last = Some(id);
            if !whole {
                break;
            }
        }
        if !rest.is_empty() {
            self.extend(last, chain.len() - rest.len(), rest);
        }
        self.evict();
    }

    /// The longest chains held, those used last, up to `most` units in all, the one used least recently first:
    /// inserted in this order elsewhere they make the same index.
    pub fn chains(&self, most: usize) -> Vec<Vec<u64>> {
        let chain = |leaf: usize| -> Vec<u64> {
            let up = |node: &&Node| self.nodes.get(node.parent?);
            let mut path: Vec<&Node> = std::iter::successors(self.nodes.get(leaf), up).collect();
            path.reverse();
            path.iter().flat_map(|node| &node.run).copied().collect()
        };
        let mut left = most;
        let within = |chain: &Vec<u64>| {
            let units = block::units(chain.len());
            let fits = left >= units;
            left = left.saturating_sub(units);
            fits
        };
        let mut chains: Vec<_> =
            self.leaves.iter().rev().map(|(_, leaf)| chain(*leaf)).take_while(within).collect();
        chains.reverse();
        chains
    }

    fn start(&self, chain: &[u64]) -> Option<usize> {
        self.starts.get(chain.first()?).copied()
    }

    /// Hangs `run` below node `last`, behind so many blocks. A leaf grows in place, so that a conversation stays one
    /// node.
    fn extend(&mut self, last: Option<usize>, before: usize, run: &[u64]) {
        self.units = self.units.saturating_add(units(before, run.len()));
        if let Some(node) = last.and_then(|id| self.nodes.get_mut(id)) {
            if node.children == 0 {
                return node.run.extend_from_slice(run);
            }
            node.children += 1;
        }
        let id = self.add(Node { run: run.to_vec(), before, parent: last, children: 0, used: self.clock });
        self.leaves.insert((self.clock, id));
    }

    fn add(&mut self, node: Node) -> usize {
        let start = node.run.first().copied();
        let id = self.free.pop().unwrap_or(self.nodes.len());
        match self.nodes.get_mut(id) {
            Some(slot) => *slot = node,
            None => self.nodes.push(node),
        }
        self.starts.extend(start.map(|hash| (hash, id)));
        id
    }

    /// Cuts a node in two and returns the upper part, which is new and used now: the lower keeps its id, and so its
    /// children, and its age.
    fn split(&mut self, id: usize, at: usize) -> Option<usize> {
        let node = self.nodes.get_mut(id)?;
        let tail = node.run.split_off(at);
        let mut head = std::mem::replace(&mut node.run, tail);
        // It has the room of the whole: kept, it would count for as long as anybody uses the beginning.
        head.shrink_to_fit();
        let upper =
            Node { run: head, before: node.before, parent: node.parent, children: 1, used: self.clock };
        node.before += at;
        self.starts.extend(node.run.first().map(|hash| (*hash, id)));
        let upper = self.add(upper);
        if let Some(node) = self.nodes.get_mut(id) {
            node.parent = Some(upper);
        }
        Some(upper)
    }

    fn evict(&mut self) {
        while let Some(excess) = self.units.checked_sub(self.capacity).filter(|excess| *excess > 0) {
            let Some((used, id)) = self.leaves.pop_first() else { return };
            let Some(node) = self.nodes.get_mut(id) else { continue };
            let size = node.units();
            let room = block::units(node.before).saturating_add(size.saturating_sub(excess));
            let keep = block::within(room).saturating_sub(node.before);
            if keep > 0 {
                node.run.truncate(keep);
                node.run.shrink_to(keep.saturating_mul(2));
                self.units -= size - node.units();
                self.leaves.insert((used, id));
                continue;
            }
            let gone = std::mem::take(node);
            self.free.push(id);
            self.units -= size;
            if let Some(start) = gone.run.first() {
                self.starts.remove(start);
            }
            if let Some((id, parent)) = gone.parent.and_then(|id| Some((id, self.nodes.get_mut(id)?))) {
                parent.children -= 1;
                if parent.children == 0 {
                    self.leaves.insert((parent.used, id));
                }
            }
        }
    }
}

/// How many blocks two runs that begin alike have in common. Chained hashes agree up to a point and never
/// after it, so the point is found by looking at ends.
fn common(run: &[u64], chain: &[u64]) -> usize {
    let (mut low, mut high) = (0, run.len().min(chain.len()));
    if high > 0 && run.get(high - 1) == chain.get(high - 1) {
        return high;
    }
    while low < high {
        let middle = low + (high - low) / 2;
        if run.get(middle) == chain.get(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use std::collections::HashSet;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// A chain as the block hasher makes it: each hash depends on all before it.
    fn chain(text: &[u8]) -> Vec<u64> {
        let mut parent = 17;
        let next = |byte: &u8| {
            parent = Random::new(parent ^ u64::from(*byte)).next();
            parent
        };
        text.iter().map(next).collect()
    }

    #[test]
    fn matches_the_longest_prefix_and_stops_at_the_first_miss() {
        let mut index = Index::new(100, 1);
        index.insert(&chain(b"system one"));
        index.insert(&chain(b"system two"));
        assert_eq!(index.matched(&chain(b"system one and more")), 10);
        assert_eq!(index.matched(&chain(b"system three")), 8);
        assert_eq!(index.matched(&chain(b"other")), 0);
        assert_eq!(index.matched(&[]), 0);
        assert_eq!(index.len(), "system one".len() + "two".len());
    }

    #[test]
    fn the_least_recently_used_tail_goes_first() {
        let mut index = Index::new(12, 1);
        index.insert(&chain(b"abcdef"));
        index.insert(&chain(b"abcxyz"));
        index.insert(&chain(b"abcdef"));
        index.insert(&chain(b"12345"));
        assert_eq!(index.len(), 12);
        assert_eq!(index.matched(&chain(b"abcxyz")), 4, "oldest leaf lost its tail");
        assert_eq!(index.matched(&chain(b"abcdef")), 6);
        assert_eq!(index.matched(&chain(b"12345")), 5);
    }

    #[test]
    fn a_chain_longer_than_the_capacity_keeps_its_head() {
        let mut index = Index::new(4, 1);
        index.insert(&chain(b"abcdefgh"));
        assert_eq!((index.len(), index.matched(&chain(b"abcdefgh"))), (4, 4));
    }

    #[test]
    fn a_tighter_bound_takes_what_was_used_least_recently() {
        let mut index = Index::new(20, 1);
        index.insert(&chain(b"abcdef"));
        index.insert(&chain(b"123456"));
        index.bound(8);
        assert_eq!((index.matched(&chain(b"abcdef")), index.matched(&chain(b"123456"))), (2, 6));
        index.bound(20);
        index.insert(&chain(b"abcdef"));
        assert_eq!(index.len(), 12, "a wider one has room again");
    }

    #[test]
    fn long_chains_count_in_units_and_lose_whole_blocks() {
        let text = vec![b'x'; 100];
        let long = chain(&text);
        let mut index = Index::new(block::units(90), 1);
        index.insert(&long);
        assert_eq!((index.matched(&long), index.len()), (90, block::units(90)));
        index.insert(&chain(b"y"));
        assert_eq!(
            (index.matched(&long), index.len()),
            (89, block::units(89) + 1),
            "a block of sixteen for one of one"
        );
        let mut fork = long[..85].to_vec();
        fork.push(7);
        index.insert(&fork);
        assert_eq!(index.matched(&fork), 86);
        let held: usize = index.nodes.iter().map(Node::units).sum();
        assert_eq!(held, index.len());
    }

    /// Places in memory, used or not.
    fn room(index: &Index) -> usize {
        let runs: usize = index.nodes.iter().map(|node| node.run.capacity()).sum();
        runs + index.nodes.capacity() + index.free.capacity() + index.starts.capacity()
    }

    #[test]
    fn ten_times_its_capacity_in_unique_prefixes_leaves_it_as_large_as_it_was() {
        const CAPACITY: usize = 10_000;
        let mut index = Index::new(CAPACITY, 1);
        let mut random = Random::new(5);
        let mut unique = |blocks: usize| (0..blocks).map(|_| random.next()).collect::<Vec<u64>>();
        let mut largest = 0;
        for prompt in 0..10 * CAPACITY / 50 {
            index.insert(&unique(50));
            assert!(index.len() <= CAPACITY);
            if prompt == 2 * CAPACITY / 50 {
                largest = room(&index);
            }
        }
        assert!(room(&index) <= largest + largest / 10, "{} after {largest}", room(&index));
        // Long prompts of which but the beginning is asked for again, and the rest is let go.
        for _ in 0..200 {
            let long = unique(1_000);
            index.insert(&long);
            index.insert(&[&long[..1], &unique(1)].concat());
        }
        (0..200).for_each(|_| index.insert(&unique(50)));
        assert!(room(&index) <= 2 * largest, "{} after {largest}", room(&index));
    }

    /// Against a plain set of all prefixes ever inserted: never more blocks than were stored, exact while nothing
    /// was evicted, bounded always, and without holes.
    #[test]
    fn agrees_with_a_plain_set_under_random_use() {
        for capacity in [usize::MAX, 60, 7] {
            let mut random = Random::new(capacity as u64);
            let mut index = Index::new(capacity, 3);
            let mut stored = HashSet::new();
            for _ in 0..3_000 {
                let length = random.below(20);
                let text: Vec<u8> = (0..length).map(|_| b'a' + random.below(2) as u8).collect();
                let chain = chain(&text);
                let known = chain.iter().take_while(|hash| stored.contains(*hash)).count();
                let matched = index.matched(&chain);
                assert!(matched <= known);
                if capacity == usize::MAX {
                    assert_eq!(matched, known);
                    assert_eq!(index.len(), stored.len());
                }
                if random.below(2) == 0 {
                    index.insert(&chain);
                    stored.extend(chain.iter().copied());
                    assert_eq!(index.matched(&chain), chain.len().min(capacity), "just used, so still there");
                }
                assert!(index.len() <= capacity);
                if random.below(50) == 0 {
                    let mut copy = Index::new(capacity, 4);
                    index.chains(usize::MAX).iter().for_each(|chain| copy.insert(chain));
                    assert!(index.chains(9).iter().map(Vec::len).sum::<usize>() <= 9);
                    assert_eq!(copy.len(), index.len());
                    assert_eq!(copy.matched(&chain), index.matched(&chain));
                }
                let held: usize = index.nodes.iter().map(Node::units).sum();
                assert_eq!(held, index.len());
                let live = index.nodes.len() - index.free.len();
                let inner = index.nodes.iter().filter(|node| node.children > 0).count();
                assert_eq!((index.starts.len(), index.leaves.len()), (live, live - inner));
            }
        }
    }
}
