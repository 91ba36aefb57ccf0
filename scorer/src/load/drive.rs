//! The open loop: what is due is sent, whoever is still waiting.

use super::Target;
use super::answer::Answer;
use super::measured::Measured;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep_until, timeout_at};
use weir_lab::workload::{Workload, messages};

/// Prompts are written so long before they are due: that takes milliseconds for the longest.
const AHEAD: Duration = Duration::from_millis(50);
/// Between two lines of progress.
const TELL: Duration = Duration::from_secs(1);

/// Texts that were answered, by the answer's id.
type Texts = HashMap<u64, Arc<str>>;

struct Drive<'a> {
    target: &'a Arc<Target>,
    workload: &'a Arc<Workload>,
    salt: u64,
    start: Instant,
    slots: Arc<Semaphore>,
    due: BinaryHeap<Reverse<(u64, usize)>>,
    /// What each request still waits for, and who waits for it.
    open: Vec<usize>,
    followers: Vec<Vec<usize>>,
    /// Answers that come back in prompts.
    wanted: HashSet<u64>,
    texts: Texts,
}

/// Sends the requests of a workload when they are due; what became of each, in their order.
pub(super) async fn drive(target: &Arc<Target>, workload: &Arc<Workload>, salt: u64) -> Vec<Measured> {
    let requests = &workload.requests;
    let answers: HashSet<u64> = requests.iter().map(|request| request.answer).collect();
    let prompts = requests.iter().flat_map(|request| &request.prompt);
    let mut drive = Drive {
        target,
        workload,
        salt,
        start: Instant::now() + AHEAD,
        slots: Arc::new(Semaphore::new(target.concurrency)),
        due: BinaryHeap::new(),
        open: requests.iter().map(|request| request.after.len()).collect(),
        followers: vec![Vec::new(); requests.len()],
        wanted: prompts.map(|piece| piece.id).filter(|id| answers.contains(id)).collect(),
        texts: Texts::new(),
    };
    for (id, request) in requests.iter().enumerate() {
        if request.after.is_empty() {
            drive.due.push(Reverse((request.at, id)));
        }
        for of in &request.after {
            if let Some(followers) = drive.followers.get_mut(*of as usize) {
                followers.push(id);
            }
        }
    }
    drive.go_on().await
}

impl Drive<'_> {
    async fn go_on(&mut self) -> Vec<Measured> {
        let all = self.workload.requests.len();
        let mut measured = vec![Measured::default(); all];
        let (mut sent, mut over) = (0, 0);
        let (tell, mut told) = mpsc::unbounded_channel();
        let shown = std::io::stderr().is_terminal();
        let mut next_line = self.start;
        while over < all {
            let next = self.due.peek().map(|Reverse((due, _))| self.at(*due) - AHEAD);
            tokio::select! {
                heard = told.recv() => {
                    let Some((id, one, text)) = heard else { break };
                    over += 1;
                    self.ended(id, &one, text);
                    if let Some(place) = measured.get_mut(id) {
                        *place = one;
                    }
                }
                () = sleep_until(next.unwrap_or(next_line)), if next.is_some() => {
                    if let Some(Reverse((due, id))) = self.due.pop() {
                        sent += 1;
                        self.send(due, id, tell.clone());
                    }
                }
                () = sleep_until(next_line), if shown => {
                    next_line += TELL;
                    let _ = write!(std::io::stderr(), "\r{over} of {all} over, {} in flight ", sent - over);
                }
            }
        }
        if shown {
            let _ = write!(std::io::stderr(), "\r{:40}\r", "");
        }
        measured
    }

    fn at(&self, nanos: u64) -> Instant {
        self.start + Duration::from_nanos(nanos)
    }

    /// Lets those that waited for a request follow it.
    fn ended(&mut self, id: usize, one: &Measured, text: String) {
        let Some(request) = self.workload.requests.get(id) else { return };
        if self.wanted.contains(&request.answer) && !text.is_empty() {
            self.texts.insert(request.answer, text.into());
        }
        for follower in self.followers.get(id).into_iter().flatten() {
            let (Some(open), Some(request)) =
                (self.open.get_mut(*follower), self.workload.requests.get(*follower))
            else {
                continue;
            };
            *open -= 1;
            if *open == 0 {
                self.due.push(Reverse((one.end + request.at, *follower)));
            }
        }
    }

    fn send(&self, due: u64, id: usize, tell: mpsc::UnboundedSender<(usize, Measured, String)>) {
        let (target, workload, salt, start) =
            (self.target.clone(), self.workload.clone(), self.salt, self.start);
        let (slots, at) = (self.slots.clone(), self.at(due));
        let Some(request) = workload.requests.get(id) else { return };
        let known = |id: u64| Some((id, self.texts.get(&id)?.clone()));
        let texts: Texts = request.prompt.iter().filter_map(|piece| known(piece.id)).collect();
        let wanted = self.wanted.contains(&request.answer);
        tokio::spawn(async move {
            let Some(request) = workload.requests.get(id) else { return };
            let prompt = messages(&request.prompt, salt, |id| texts.get(&id).map(AsRef::as_ref));
            let body = target.body(request, &prompt);
            drop(prompt);
            sleep_until(at).await;
            let sent = Instant::now();
            let answer = match slots.try_acquire() {
                Ok(_slot) => timeout_at(at + target.timeout, target.ask(request, body, wanted)).await,
                Err(_) => Ok(Answer { problem: Some("over --concurrency".to_owned()), ..Answer::default() }),
            };
            let answer = answer.unwrap_or_else(|_| Answer {
                problem: Some(format!("over --timeout {} s", target.timeout.as_secs_f64())),
                ..Answer::default()
            });
            let nanos = |at: Instant| u64::try_from((at - start).as_nanos()).unwrap_or(u64::MAX);
            let one = Measured {
                due,
                sent: nanos(sent),
                first: answer.first.map(nanos),
                end: nanos(Instant::now()),
                status: answer.status,
                endpoint: answer.endpoint,
                // What the engine does not say is what was asked for, or what was seen.
                prompt: answer.usage.map_or(u64::from(request.prompt_tokens()), |usage| usage.input),
                cached: answer.usage.map(|usage| usage.cached),
                output: answer.usage.map_or(answer.deltas, |usage| usage.output),
                problem: answer.problem,
            };
            // Nobody listens any more when the run is over.
            let _ = tell.send((id, one, answer.text));
        });
    }
}
