//! The paper's router: a network that judges, for the request that is next, each instance and to wait. The paper's next
//! request is the one that came first; it may also be the one that takes least time.
//!
//! It sees 27 numbers: how many wait, the prompt and the guessed answer of the next; and of each instance its light and heavy
//! prompts, its light and heavy answers, the memory that will be left, and how soon one of its requests will be over. The
//! heavy ones are those of 0.5 s: 1,560 tokens of a prompt; of answers, 100 tokens.
//!
//! It chooses among the instances that have room, a mask of ours, and to wait; when none has room there is nothing to choose. It is guarded:
//! without weights, when an output is no number, and when it lets everybody wait for [`PATIENCE`] although there
//! is room, the rule decides that needs no training.

use super::rules::{fits, roomy, to_be_held};
use super::{INSTANCES, Net, Order, Route, View};

/// The network's layers.
pub const SHAPE: [usize; 4] = [3 + 6 * INSTANCES, 64, 64, INSTANCES + 1];
/// Nanoseconds that it may leave room unused.
const PATIENCE: u64 = 2_000_000_000;
/// From where on a prompt is heavy.
const HEAVY_PROMPT: f64 = 1_560.0;
/// From where on an answer is.
const HEAVY_ANSWER: f64 = 100.0;

/// The network as a router.
#[derive(Clone, Debug)]
pub struct Learned {
    net: Option<Net>,
    order: Order,
    sent: u64,
    /// How often the rule had to decide.
    pub fallbacks: usize,
}

impl Learned {
    /// A router that asks this network, or only the rule.
    pub fn new(net: Option<Net>, order: Order) -> Self {
        Self { net, order, sent: 0, fallbacks: 0 }
    }

    /// What the network would do: an instance, or [`INSTANCES`] to wait. None when it cannot say.
    fn judged(&self, view: &View<'_>, next: usize) -> Option<usize> {
        if view.instances.len() != INSTANCES {
            return None;
        }
        let worth = self.net.as_ref()?.ask(&seen(view, next));
        best(&worth, allowed(view, next))
    }
}

/// Which actions there are: a bit for each instance with room, and one to wait.
pub(super) fn allowed(view: &View<'_>, next: usize) -> u8 {
    let room = (0..INSTANCES).filter(|to| fits(view, *to, &view.queue[next]));
    room.fold(1 << INSTANCES, |bits, to| bits | 1 << to)
}

/// The action that is worth most among those allowed, unless a worth is no number.
pub(super) fn best(worth: &[f32], allowed: u8) -> Option<usize> {
    if worth.iter().any(|worth| !worth.is_finite()) {
        return None;
    }
    let open = worth.iter().enumerate().filter(|(place, _)| allowed >> place & 1 == 1);
    open.max_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(place, _)| place)
}

impl Route for Learned {
    fn act(&mut self, view: &View<'_>) -> Option<(usize, usize)> {
        let next = self.order.first(view);
        let room = || roomy(view, &view.queue[next]);
        let action = match self.judged(view, next) {
            Some(INSTANCES) if view.now.saturating_sub(self.sent) < PATIENCE => None,
            Some(INSTANCES) | None => {
                let room = room();
                self.fallbacks += usize::from(room.is_some());
                room
            }
            Some(to) => Some(to),
        };
        if action.is_some() {
            self.sent = view.now;
        }
        action.map(|to| (next, to))
    }
}

/// What the network sees, each of the size of one.
pub(super) fn seen(view: &View<'_>, next: usize) -> Vec<f32> {
    let first = &view.queue[next];
    let mut all = vec![view.queue.len() as f64 / 200.0, first.prompt / 2_500.0, first.guess / 200.0];
    for instance in view.instances {
        let flights = &instance.flights;
        let heavy = flights.iter().filter(|flight| flight.was.prompt >= HEAVY_PROMPT).count() as f64;
        let long = flights.iter().filter(|flight| flight.was.guess >= HEAVY_ANSWER).count() as f64;
        let count = flights.len() as f64;
        let soonest = flights.iter().map(super::Flight::left).fold(f64::INFINITY, f64::min);
        let free = 1.0 - to_be_held(instance) / view.spec.kv_tokens as f64;
        let soonest = if soonest.is_finite() { soonest.min(200.0) / 200.0 } else { 0.0 };
        all.extend([(count - heavy) / 20.0, heavy / 20.0, (count - long) / 20.0, long / 20.0]);
        all.extend([free.max(-4.0), soonest]);
    }
    all.into_iter().map(|x| x as f32).collect()
}

/// How much worse than the best instance this one is for the next request, by the paper's penalty for mixing: never
/// above 0. Its square of the prompt is left out: with its own gradients that term alone were half an hour.
pub(super) fn mixing(view: &View<'_>, next: usize, to: usize) -> f64 {
    const ALPHA: f64 = 0.5;
    const LATE_S: f64 = 0.5;
    let first = &view.queue[next];
    let (prefill_s, decode_s) = (view.spec.prefill_us / 1e6, view.spec.decode_us / 1e6);
    let reward = |at: usize| {
        let flights = &view.instances[at].flights;
        let there = flights.iter().map(|flight| flight.was.prompt + flight.was.guess).sum::<f64>();
        let took = prefill_s * first.prompt + decode_s * there;
        let prompt = if took <= LATE_S { 1.0 } else { 1.0 / took - LATE_S };
        let answers = there + flights.len() as f64 * (first.prompt + first.guess);
        ALPHA * prompt - (1.0 - ALPHA) * decode_s * answers
    };
    let most = (0..view.instances.len()).map(reward).fold(f64::NEG_INFINITY, f64::max);
    reward(to) - most
}
