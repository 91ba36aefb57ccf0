//! What is said, and in which order: the same in every run.
//!
//! All conversations with a model begin with its system prompt of 1.5 KB. The first turn brings a letter or a log
//! of about 1 KB, the later ones ask about it in a few words. The order goes turn by turn: everybody's first, then
//! everybody's second, each round shuffled anew. So a conversation comes back after all the others have been there,
//! and round robin can neither keep it at its endpoint nor miss it each time by the mere parity of numbers.

use rig::MODELS;
use weir::random::Random;

/// The system prompts of the two models.
const SYSTEM: [&str; 2] = [include_str!("prompts/small.txt"), include_str!("prompts/large.txt")];
/// Fixes all that is random in the script.
const SEED: u64 = 2024;

/// The conversations and their order.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) conversations: Vec<Conversation>,
    /// For each model, its turns in the order in which they are sent.
    pub(crate) orders: Vec<Vec<Step>>,
}

/// One conversation: what the user says.
#[derive(Debug)]
pub(crate) struct Conversation {
    pub(crate) model: &'static str,
    pub(crate) system: &'static str,
    pub(crate) turns: Vec<String>,
}

/// One turn, named by the places of conversation and turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) conversation: usize,
    pub(crate) turn: usize,
}

impl Script {
    pub(crate) fn new(conversations: usize, turns: usize) -> Self {
        let mut random = Random::new(SEED);
        let mut script = Self { conversations: Vec::new(), orders: Vec::new() };
        for (model, system) in MODELS.into_iter().zip(SYSTEM) {
            let first = script.conversations.len();
            for _ in 0..conversations {
                let turns = says(model, turns, &mut random);
                script.conversations.push(Conversation { model, system, turns });
            }
            let mut members: Vec<usize> = (first..first + conversations).collect();
            let mut order = Vec::new();
            for turn in 0..turns {
                shuffle(&mut members, &mut random);
                order.extend(members.iter().map(|&conversation| Step { conversation, turn }));
            }
            script.orders.push(order);
        }
        script
    }

    /// Requests in all.
    pub(crate) fn len(&self) -> usize {
        self.orders.iter().map(Vec::len).sum()
    }
}

impl Conversation {
    /// Tokens with which all prompts of its model begin: blocks of 16 tokens of four bytes, rounded up.
    pub(crate) fn shared_tokens(&self) -> u64 {
        let text = ["system", self.system, "user", "00000"].map(str::len);
        (text.iter().sum::<usize>().div_ceil(64) * 16) as u64
    }
}

/// Everything that the user of one conversation says.
fn says(model: &str, turns: usize, random: &mut Random) -> Vec<String> {
    let opening = if model == MODELS[0] { letter(random) } else { excerpt(random) };
    let later = (1..turns).map(|turn| format!("{} (question {})", one_of(&QUESTIONS, random), turn + 1));
    std::iter::once(opening).chain(later).collect()
}

fn letter(random: &mut Random) -> String {
    let mut text = format!("{:05}: order of {} parts.", random.below(100_000), 2 + random.below(9));
    while text.len() < 1000 {
        let (days, part) = (2 + random.below(20), 1000 + random.below(9000));
        text += &one_of(&COMPLAINTS, random)
            .replace("{days}", &days.to_string())
            .replace("{part}", &part.to_string());
    }
    text
}

fn excerpt(random: &mut Random) -> String {
    let mut text = format!("{:05}: what happened here?\n", random.below(100_000));
    let mut ms = random.below(60_000);
    while text.len() < 1000 {
        ms += random.below(400);
        let (service, account) = (one_of(&SERVICES, random), 10_000 + random.below(50));
        let line = format!("14:{:02}.{:03} {service} account={account}", ms / 1000, ms % 1000);
        text += &format!("{line} step={} took={}ms\n", one_of(&STEPS, random), 3 + random.below(2600));
    }
    text
}

fn one_of<'t, const N: usize>(texts: &[&'t str; N], random: &mut Random) -> &'t str {
    texts[random.below(N)]
}

/// Fisher and Yates.
fn shuffle(places: &mut [usize], random: &mut Random) {
    for end in (1..places.len()).rev() {
        places.swap(end, random.below(end + 1));
    }
}

const COMPLAINTS: [&str; 8] = [
    " Part {part} was not in the parcel, although the delivery note lists it and I was charged for it.",
    " The parcel came after {days} days, and the box had been opened and taped again.",
    " I wrote about part {part} {days} days ago and have had no answer since.",
    " Part {part} does not fit: the thread is finer than the one in your catalogue.",
    " After {days} days of careful use part {part} makes a grinding noise under load.",
    " I would rather keep it at a lower price than send it back, if that can be arranged.",
    " My neighbour ordered part {part} with you {days} days before me and has it already.",
    " The invoice shows part {part} twice, and I do not remember ordering even one.",
];
const SERVICES: [&str; 5] = ["edge-1", "edge-2", "ledger", "replica-2", "settle"];
const STEPS: [&str; 6] = ["lock", "begin", "write", "commit", "retry", "read"];
const QUESTIONS: [&str; 6] = [
    "Which point would you look at first, and what would have to be true for you to be wrong about it?",
    "Thank you. What happens next, by when, and what do you need from me before that?",
    "I do not follow the second part of your answer. Please put it more simply, with an example.",
    "Is there anything in what I sent you that speaks against it? Please quote the place.",
    "Suppose that this happens again tomorrow: what should I do differently the next time?",
    "Please sum up our conversation in two sentences that I can pass on to a colleague.",
];
