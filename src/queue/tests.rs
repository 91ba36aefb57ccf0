use super::*;
use crate::instant::Instant;
use crate::random::Random;
use std::time::Duration;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const IN: i64 = 1;
const OUT: i64 = 2;
/// Tokens that the engine's batch can hold.
const BATCH: i64 = 4_000;
const LONGEST_IN: i64 = 1_500;
const LONGEST_OUT: i64 = 900;

/// An engine that admits while prompts and outputs fit into its batch, and decodes one token of each request a step.
struct Engine {
    running: Vec<(u64, i64, i64)>,
    held: i64,
    got: BTreeMap<u64, i64>,
}

type Lengths = fn(&mut Random) -> (i64, i64);

/// Lengths that are meant to break a scheduler: all input, all output, either extreme by chance, tiny ones in a flood.
const LENGTHS: [Lengths; 5] = [
    |_| (LONGEST_IN, 1),
    |_| (1, LONGEST_OUT),
    |random| if random.below(2) == 0 { (LONGEST_IN, 1) } else { (1, LONGEST_OUT) },
    |random| (1 + random.below(1_500) as i64, 1 + random.below(900) as i64),
    |_| (5, 5),
];

impl Engine {
    fn new() -> Self {
        Self { running: Vec::new(), held: 0, got: BTreeMap::new() }
    }

    fn fits(&self, input: i64, output: i64) -> bool {
        self.held + input + output <= BATCH
    }

    fn start(&mut self, client: u64, input: i64, output: i64) {
        *self.got.entry(client).or_default() += IN * input;
        self.held += input + output;
        self.running.push((client, input + output, output));
    }

    /// Decodes a token of each; how many of whose.
    fn step(&mut self) -> BTreeMap<u64, i64> {
        let mut decoded = BTreeMap::new();
        self.running.iter().for_each(|(client, ..)| *decoded.entry(*client).or_default() += 1);
        decoded.iter().for_each(|(client, tokens)| *self.got.entry(*client).or_default() += OUT * tokens);
        self.running.iter_mut().for_each(|(.., left)| *left -= 1);
        self.held -=
            self.running.extract_if(.., |(.., left)| *left == 0).map(|(_, held, _)| held).sum::<i64>();
        decoded
    }
}

/// Two clients that always have something waiting. Gives how far what they have got differs, at the most over any stretch.
fn widest_gap(mut fairness: Fairness, lengths: [Lengths; 2], seed: u64) -> i64 {
    let mut random = Random::new(seed);
    let mut engine = Engine::new();
    let mut heads = [0, 1].map(|client: usize| lengths[client](&mut random));
    let (mut least, mut most) = (0, 0);
    fairness.arrive(0, std::iter::empty());
    fairness.arrive(1, [0].into_iter());
    for _ in 0..3_000 {
        // Who is next and does not fit is waited for: passing it over would starve long requests.
        while let Some(next) = fairness.next(&[(0, 0), (1, random.below(3) as u32)]) {
            let (input, output) = heads[next];
            if !engine.fits(input, output) {
                break;
            }
            engine.start(next as u64, input, output);
            fairness.charge(next as u64, IN * input);
            heads[next] = lengths[next](&mut random);
        }
        for (client, tokens) in engine.step() {
            fairness.charge(client, OUT * tokens);
        }
        let gap = engine.got.get(&0).unwrap_or(&0) - engine.got.get(&1).unwrap_or(&0);
        (least, most) = (least.min(gap), most.max(gap));
    }
    // Over any stretch: from the lowest point of the difference to the highest.
    most - least
}

#[test]
fn two_backlogged_clients_never_differ_by_more_than_the_bound() {
    let bound = 2 * (IN * LONGEST_IN).max(OUT * BATCH);
    let mut widest = 0;
    for (one, first) in LENGTHS.into_iter().enumerate() {
        for (other, second) in LENGTHS.into_iter().enumerate() {
            let gap = widest_gap(Fairness::new(Order::Vtc), [first, second], 7);
            assert!(gap <= bound, "lengths {one} and {other}: {gap} is above {bound}");
            widest = widest.max(gap);
        }
    }
    // If it were never near, lengths would not be adversarial, and the bound would show nothing.
    assert!(widest > OUT * LONGEST_OUT, "{widest}");
}

#[test]
fn first_come_first_served_breaks_the_bound() {
    // The same run in which turns go by arrival: what the test above would find if counters were ignored.
    let mut random = Random::new(7);
    let mut engine = Engine::new();
    for turn in 0..6_000_u64 {
        let (input, output) = LENGTHS[if turn % 2 == 0 { 1 } else { 4 }](&mut random);
        while !engine.fits(input, output) {
            engine.step();
        }
        engine.start(turn % 2, input, output);
    }
    assert!(engine.got[&0] - engine.got[&1] > 2 * OUT * BATCH);
}

#[test]
fn deficits_keep_two_clients_within_quantum_and_request_however_warm_one_is() {
    let quantum = 2_000;
    let request = IN * LONGEST_IN + OUT * LONGEST_OUT;
    let bound = 2 * (OUT * BATCH + request + quantum);
    for first in LENGTHS {
        let dlpm = Fairness::Dlpm(Dlpm::new(quantum.unsigned_abs()));
        let gap = widest_gap(dlpm, [first, LENGTHS[3]], 3);
        assert!(gap <= bound, "{gap} is above {bound}");
    }
}

#[test]
fn deficits_prefer_what_is_cached_until_the_quantum_is_used() {
    let mut dlpm = Dlpm::new(10);
    dlpm.arrive(1);
    dlpm.arrive(2);
    let mut served = Vec::new();
    for _ in 0..8 {
        // The second client's prompts are cached, the first one's are not.
        let next = dlpm.next(&[(1, 0), (2, 64)]).unwrap();
        served.push(next);
        dlpm.charge([1, 2][next], 5);
    }
    assert_eq!(served, [1, 1, 0, 0, 1, 1, 0, 0]);
    // A small quantum is counters.
    let mut dlpm = Dlpm::new(1);
    let mut both = [0; 2];
    for _ in 0..100 {
        let next = dlpm.next(&[(1, 0), (2, 64)]).unwrap();
        both[next] += 1;
        dlpm.charge([1, 2][next], 5);
    }
    assert_eq!(both, [50, 50]);
}

#[test]
fn who_comes_back_from_idle_gets_no_more_than_its_share() {
    for order in [Order::Vtc, Order::Dlpm { quantum_tokens: NonZeroU32::MIN }] {
        let mut fairness = Fairness::new(order);
        fairness.arrive(1, std::iter::empty());
        for _ in 0..1_000 {
            assert_eq!(fairness.next(&[(1, 0)]), Some(0));
            fairness.charge(1, 10_000);
        }
        // It had nothing to do for all of that time.
        fairness.arrive(2, [1].into_iter());
        let mut turns = [0; 2];
        for _ in 0..600 {
            let next = fairness.next(&[(1, 0), (2, 0)]).unwrap();
            turns[next] += 1;
            fairness.charge([1, 2][next], 10_000);
        }
        assert!((295..=305).contains(&turns[1]), "{order:?}: {turns:?}");
        // It leaves in debt and comes back at once: that is no way to be rid of it.
        fairness.charge(2, 5_000_000);
        fairness.leave(2);
        fairness.arrive(2, [1].into_iter());
        let next: Vec<_> = (0..400)
            .map(|_| {
                let next = fairness.next(&[(1, 0), (2, 0)]).unwrap();
                fairness.charge([1, 2][next], 10_000);
                next
            })
            .collect();
        assert!(next.iter().filter(|next| **next == 1).count() <= 1, "{order:?}");
    }
}

fn waiter(id: u64, client: u64, priority: i32) -> Waiter {
    Waiter { id, client, priority, cost: 1_000, warm: 0, until: Instant::from_millis(60_000) }
}

const NOW: Instant = Instant::from_millis(1_000);

fn line(waiters: impl IntoIterator<Item = Waiter>) -> Line {
    let mut line = Line::new(Order::Vtc);
    waiters.into_iter().for_each(|waiter| line.join(waiter, NOW));
    line
}

fn calls(line: &mut Line, times: usize) -> Vec<u64> {
    (0..times).filter_map(|_| line.call(NOW)).collect()
}

#[test]
fn a_fan_out_of_forty_goes_by_turns_with_who_came_after_it() {
    let fan_out = (0..40).map(|id| waiter(id, 1, 0));
    let mut line = line(fan_out.chain((100..103).map(|id| waiter(id, 2, 0))));
    assert_eq!(calls(&mut line, 8), [0, 100, 1, 101, 2, 102, 3, 4]);
    assert_eq!((line.waiting(), line.called()), (35, 8));
}

#[test]
fn higher_bands_go_first_and_lower_ones_get_a_ninth() {
    let mut line = line((0..30).map(|id| waiter(id, id, 0)).chain((100..160).map(|id| waiter(id, id, 5))));
    let called = calls(&mut line, 90);
    assert!(called[..8].iter().all(|id| *id >= 100));
    for nine in called[..63].chunks(9) {
        assert_eq!(nine.iter().filter(|id| **id < 100).count(), 1, "{called:?}");
    }
    assert_eq!(called.len(), 90);
}

#[test]
fn in_a_full_line_who_has_most_waiting_gives_way() {
    let mut line = line((0..10).map(|id| waiter(id, 1, 0)));
    assert_eq!(line.displace(2, 0), Some(9));
    line.join(waiter(100, 2, 0), NOW);
    // The fan-out itself displaces nobody, nor does a lower band a higher one.
    assert_eq!(line.displace(1, 0), None);
    assert_eq!(line.displace(3, -1), None);
    line.join(waiter(101, 1, -1), NOW);
    assert_eq!(line.displace(2, 0), Some(101));
    // Two that have as many leave each other alone.
    (0..7).for_each(|_| assert!(line.displace(3, 0).is_some()));
    assert_eq!((line.waiting(), line.displace(2, 0)), (3, None));
}

#[test]
fn who_was_called_and_does_not_come_loses_its_slot_and_gets_its_charge_back() {
    let mut line = line([waiter(1, 1, 0), waiter(2, 2, 0), waiter(3, 1, 0)]);
    assert_eq!(line.call(NOW), Some(1));
    line.forget(NOW + Line::COMES_WITHIN);
    assert_eq!(line.is_called(1), Some(true));
    line.forget(NOW + Line::COMES_WITHIN + Duration::from_nanos(1));
    assert_eq!((line.is_called(1), line.called()), (None, 0));
    // So its client has got no more than the other.
    assert_eq!(calls(&mut line, 2), [2, 3]);
    line.come(2, NOW);
    assert!(line.leave(3, NOW) && !line.leave(3, NOW));
    assert_eq!((line.waiting(), line.called()), (0, 0));
    // Deadlines, some time after which their worker must be gone.
    line.join(waiter(4, 1, 0), NOW);
    line.forget(Instant::from_millis(62_000));
    assert_eq!(line.waiting(), 1);
    line.forget(Instant::from_millis(62_001));
    assert_eq!(line.waiting(), 0);
}

#[test]
fn a_line_says_how_long_it_takes_and_survives_the_way() {
    let mut line = line((0..5).map(|id| waiter(id, id % 2, (id % 3) as i32 - 1)));
    assert_eq!(line.wait(), None);
    (0..20).for_each(|n| line.freed(NOW + Duration::from_millis(n * 100)));
    assert_eq!(line.wait(), Some(Duration::from_millis(600)));
    line.call(NOW);
    let mut deficits = Line::new(Order::Dlpm { quantum_tokens: NonZeroU32::MIN });
    (0..3).for_each(|id| deficits.join(waiter(id, id, 0), NOW));
    deficits.call(NOW);
    for (order, mut line) in [(Order::Vtc, line), (Order::Dlpm { quantum_tokens: NonZeroU32::MIN }, deficits)]
    {
        line.correct(1, -500);
        let mut bytes = Vec::new();
        line.write(&mut bytes);
        let mut rest = &bytes[..];
        assert_eq!(Line::read(order, &mut rest), Some(line));
        assert!(rest.is_empty());
        (0..bytes.len()).for_each(|cut| assert_eq!(Line::read(order, &mut &bytes[..cut]), None));
    }
}
