//! Traffic that no public trace has: turns, shared prefixes, agents, adapters, tenants, bursts, lengths far apart.
//!
//! Each kind is a row of [`WORKLOADS`] and a function that writes one *task* after the other: a conversation, an agent's
//! work, or a single request. Tasks come as a Poisson process or in bursts, whatever became of the earlier ones (open
//! loop); what follows inside a task waits for what it needs, as users and agents do.

use super::{Draw, Piece, Request};

const SECOND: f64 = 1e9;

/// A kind of traffic.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    /// What it is like.
    pub about: &'static str,
    /// Requests per second at speed 1: eight A100 endpoints are busy with it, and keep up.
    pub rate: f64,
    /// Requests of a task, on average.
    per_task: f64,
    /// Coefficient of variation of the gaps between tasks; 1 is a Poisson process.
    burst: f64,
    task: fn(&mut Writer),
}

/// Every kind of generated traffic.
pub const WORKLOADS: &[Kind] = &[
    Kind {
        name: "chat",
        about: "conversations of 6 turns on 20 system prompts of 1,000 tokens, 20 s between turns",
        rate: 30.0,
        per_task: 6.0,
        burst: 1.0,
        task: chat,
    },
    Kind {
        name: "shared-prefix",
        about: "150 system prompts of 6,000 tokens, questions of 1,200, answers of 1,000",
        rate: 12.0,
        per_task: 1.0,
        burst: 1.0,
        task: shared_prefix,
    },
    Kind {
        name: "hot-prefix",
        about: "one prefix of 8,000 tokens for everybody, 300 of their own, answers of 150",
        rate: 40.0,
        per_task: 1.0,
        burst: 1.0,
        task: hot_prefix,
    },
    Kind {
        name: "agents",
        about: "tasks on 10,000 tokens: a plan, 5 siblings at once, a summary, three times over",
        rate: 14.0,
        per_task: 21.0,
        burst: 1.0,
        task: agents,
    },
    Kind {
        name: "lora",
        about: "16 adapters, a few of them popular; prompts of 800, answers of 200; 4 fit into an engine",
        rate: 25.0,
        per_task: 1.0,
        burst: 1.0,
        task: lora,
    },
    Kind {
        name: "tenants",
        about: "one tenant sends prompts of 20,000 tokens, nine chat with system prompts of 2,000",
        rate: 20.0,
        per_task: 1.0,
        burst: 1.0,
        task: tenants,
    },
    Kind {
        name: "bursts",
        about: "bursts (gaps vary by 4), prompts of 2,000 that share nothing, answers of 200",
        rate: 14.0,
        per_task: 1.0,
        burst: 4.0,
        task: unrelated,
    },
    Kind {
        name: "lengths",
        about: "nine of ten prompts have 500 tokens, one 20,000; nothing shared; answers of 20 to 2,000",
        rate: 12.0,
        per_task: 1.0,
        burst: 1.0,
        task: lengths,
    },
    Kind {
        name: "classes",
        about: "light or heavy prompts (300, 2,500) with light or heavy answers (25, 180), in equal parts; nothing shared",
        rate: 20.0,
        per_task: 1.0,
        burst: 1.0,
        task: classes,
    },
];

/// Writes `count` requests of a kind, or a few more to end a task; `None` for an unknown name.
pub fn generate(name: &str, count: usize, seed: u64) -> Option<Vec<Request>> {
    let kind = WORKLOADS.iter().find(|kind| kind.name == name)?;
    let mut writer =
        Writer { requests: Vec::new(), draw: Draw::new(seed, 2), at: 0, task: 0, texts: 1 << 40 };
    let gap = kind.per_task / kind.rate;
    while writer.requests.len() < count {
        writer.at += (writer.draw.gamma(gap, kind.burst) * SECOND) as u64;
        writer.task += 1;
        (kind.task)(&mut writer);
    }
    Some(in_order(writer.requests))
}

/// By time, with those that follow others behind what they follow.
pub(super) fn in_order(requests: Vec<Request>) -> Vec<Request> {
    let mut earliest: Vec<u64> = Vec::with_capacity(requests.len());
    for request in &requests {
        let after = request.after.iter().map(|&of| earliest[of as usize]).max().unwrap_or(0);
        earliest.push(after + request.at);
    }
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&at| (earliest[at], at));
    let mut place = vec![0_u32; order.len()];
    for (new, &old) in order.iter().enumerate() {
        place[old] = new as u32;
    }
    let mut sorted: Vec<Request> = order.iter().map(|&at| requests[at].clone()).collect();
    sorted.iter_mut().flat_map(|request| &mut request.after).for_each(|of| *of = place[*of as usize]);
    sorted
}

/// Writes requests.
struct Writer {
    requests: Vec<Request>,
    draw: Draw,
    /// When the task begins.
    at: u64,
    task: u64,
    texts: u64,
}

impl Writer {
    /// A text that nobody had before.
    fn fresh(&mut self, tokens: f64) -> Piece {
        self.texts += 1;
        Piece { id: self.texts, tokens: (tokens as u32).max(1) }
    }

    /// A text of about so many tokens, lengths spread as those of prompts are.
    fn about(&mut self, mean: f64, variation: f64) -> Piece {
        let tokens = self.draw.lognormal(mean, variation).min(mean * 20.0);
        self.fresh(tokens)
    }

    /// One of a fixed set of texts.
    fn fixed(set: u64, which: usize, tokens: u32) -> Piece {
        Piece { id: (set << 32) + which as u64, tokens }
    }

    /// Adds a request, at the task's time or so many seconds after others; its place and its answer.
    fn ask(&mut self, prompt: Vec<Piece>, output: f64, after: &[u32], later_s: f64) -> (u32, Piece) {
        let answer = self.fresh(output);
        let at = if after.is_empty() { self.at } else { (later_s * SECOND) as u64 };
        let place = self.requests.len() as u32;
        self.requests.push(Request {
            at,
            after: after.to_vec(),
            prompt,
            answer: answer.id,
            output: answer.tokens,
            session: self.task,
            ..Request::default()
        });
        (place, answer)
    }
}

fn chat(writer: &mut Writer) {
    let system = Writer::fixed(1, writer.draw.zipf(20, 0.8), 1_000);
    let mut prompt = vec![system];
    let mut after = Vec::new();
    for _ in 0..writer.draw.geometric(6.0) {
        let question = writer.about(200.0, 1.5);
        prompt.push(question);
        let (output, pause) = (writer.draw.lognormal(250.0, 0.8), writer.draw.exponential(20.0));
        let (turn, answer) = writer.ask(prompt.clone(), output, &after, pause);
        prompt.push(answer);
        after = vec![turn];
    }
}

fn shared_prefix(writer: &mut Writer) {
    let system = Writer::fixed(2, writer.draw.0.below(150), 6_000);
    let question = writer.about(1_200.0, 0.3);
    writer.ask(vec![system, question], 1_000.0, &[], 0.0);
}

fn hot_prefix(writer: &mut Writer) {
    let own = writer.about(300.0, 0.5);
    let output = writer.draw.lognormal(150.0, 0.5);
    writer.ask(vec![Writer::fixed(3, 0, 8_000), own], output, &[], 0.0);
}

fn agents(writer: &mut Writer) {
    let mut prompt = vec![Writer::fixed(4, 0, 4_000), writer.about(6_000.0, 0.7)];
    let mut after = Vec::new();
    for _ in 0..3 {
        let (plan, planned) = writer.ask(prompt.clone(), 150.0, &after, 0.5);
        prompt.push(planned);
        let siblings: Vec<(u32, Piece)> = (0..5)
            .map(|_| {
                let own = writer.about(400.0, 0.5);
                let output = writer.draw.lognormal(200.0, 0.7);
                writer.ask([prompt.as_slice(), &[own]].concat(), output, &[plan], 0.05)
            })
            .collect();
        prompt.extend(siblings.iter().map(|(_, answer)| *answer));
        let joined: Vec<u32> = siblings.iter().map(|(place, _)| *place).collect();
        let (summary, answer) = writer.ask(prompt.clone(), 300.0, &joined, 0.05);
        prompt.push(answer);
        after = vec![summary];
    }
}

fn lora(writer: &mut Writer) {
    let adapter = writer.draw.zipf(16, 1.0);
    let (system, own) = (Writer::fixed(5, 0, 300), writer.about(500.0, 0.8));
    let output = writer.draw.lognormal(200.0, 0.8);
    let (place, _) = writer.ask(vec![system, own], output, &[], 0.0);
    writer.requests[place as usize].adapter = Some(adapter as u32);
}

fn tenants(writer: &mut Writer) {
    let tenant = if writer.draw.unit() < 0.05 { 0 } else { 1 + writer.draw.0.below(9) };
    let (own, output) = match tenant {
        0 => (20_000.0, 100.0),
        _ => (300.0, 250.0),
    };
    let own = writer.about(own, 0.5);
    let output = writer.draw.lognormal(output, 0.8);
    let (place, _) = writer.ask(vec![Writer::fixed(6, tenant, 2_000), own], output, &[], 0.0);
    writer.requests[place as usize].tenant = tenant as u32;
}

fn unrelated(writer: &mut Writer) {
    let own = writer.about(2_000.0, 1.0);
    let output = writer.draw.lognormal(200.0, 0.8);
    writer.ask(vec![own], output, &[], 0.0);
}

fn lengths(writer: &mut Writer) {
    let mean = if writer.draw.unit() < 0.1 { 20_000.0 } else { 500.0 };
    let own = writer.about(mean, 0.3);
    let output = writer.draw.lognormal(250.0, 2.0).clamp(20.0, 2_000.0);
    writer.ask(vec![own], output, &[], 0.0);
}

/// The four classes of Intelligent Router (arXiv 2408.13510): on its V100 a prompt is heavy from 0.5 s on, 1,560 tokens, and
/// an answer from 5 s on, some 50 tokens in a full batch. The class is the tenant: who asks tells what is asked. The lengths
/// are ours, such that round robin is as far behind as the paper's, 170 s in the mean.
fn classes(writer: &mut Writer) {
    let class = writer.draw.0.below(4);
    let own = writer.about(if class & 1 == 0 { 300.0 } else { 2_500.0 }, 0.3);
    let output = writer.draw.lognormal(if class & 2 == 0 { 25.0 } else { 180.0 }, 0.5);
    let (place, _) = writer.ask(vec![own], output, &[], 0.0);
    writer.requests[place as usize].tenant = class as u32;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;

    #[test]
    fn the_same_seed_writes_the_same_requests_and_another_others() {
        for kind in WORKLOADS {
            let one = generate(kind.name, 300, 7).unwrap();
            assert_eq!(one, generate(kind.name, 300, 7).unwrap(), "{}", kind.name);
            assert_ne!(one, generate(kind.name, 300, 8).unwrap(), "{}", kind.name);
            assert!((300..400).contains(&one.len()));
        }
        assert_eq!(generate("nothing", 1, 1), None);
    }

    #[test]
    fn requests_follow_what_they_wait_for() {
        for kind in WORKLOADS {
            for (place, request) in generate(kind.name, 500, 7).unwrap().iter().enumerate() {
                assert!(request.after.iter().all(|of| (*of as usize) < place), "{}", kind.name);
            }
        }
    }

    #[test]
    fn tasks_come_at_their_rate() {
        for kind in WORKLOADS {
            let requests = generate(kind.name, 8_000, 7).unwrap();
            let last =
                requests.iter().filter(|request| request.after.is_empty()).map(|request| request.at).max();
            let rate = requests.len() as f64 / (last.unwrap() as f64 / SECOND);
            assert!((rate / kind.rate - 1.0).abs() < 0.25, "{}: {rate} per second", kind.name);
        }
    }

    #[test]
    fn what_is_shared_is_as_the_rows_say() {
        let ceiling = |name| Workload::new(name, generate(name, 2_000, 7).unwrap(), 16).ceiling;
        assert_eq!((ceiling("bursts"), ceiling("lengths")), (0.0, 0.0));
        for (name, range) in [
            ("chat", 0.75..0.95),
            ("hot-prefix", 0.94..0.97),
            ("agents", 0.85..0.98),
            ("shared-prefix", 0.7..0.83),
        ] {
            assert!(range.contains(&ceiling(name)), "{name}: {}", ceiling(name));
        }
    }
}
