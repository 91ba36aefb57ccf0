//! `weir lab paper` and `weir lab train`: Intelligent Router's experiment, its figures and ours.

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use std::io::Write;
use std::path::PathBuf;
use weir_lab::paper::{
    INSTANCES, Learned, Net, Order, REPORTED, RULES, Result, Route, SHAPE, engine, episode, play, train,
};

/// The weights that come with the program, for either order of the queue.
const ARRIVAL: &[u8] = include_bytes!("../../../lab/weights/arrival.json");
const URGENCY: &[u8] = include_bytes!("../../../lab/weights/urgency.json");

/// [`Order`] on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Queue {
    /// First come, first served, as in the paper.
    Arrival,
    /// Shortest first, by the lengths that were learned.
    Urgency,
}

/// What to compare.
#[derive(Args, Debug)]
pub struct Paper {
    /// Episodes to take the mean of, each with requests of its own.
    #[arg(long, default_value_t = 5)]
    episodes: u64,
    /// The first episode's seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Weights of the learned router, as `weir lab train --order arrival` writes them, in place of those that come with the
    /// program.
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
}

/// How to train.
#[derive(Args, Debug)]
pub struct Train {
    /// Which of those that wait is next.
    #[arg(long, value_enum, default_value = "arrival")]
    order: Queue,
    /// Episodes to learn from.
    #[arg(long, default_value_t = 40)]
    episodes: u64,
    /// Fixes all that is random: the same seed trains the same weights.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the weights go.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Makes a router that knows nothing yet: one for each episode.
type Make = Box<dyn Fn() -> Box<dyn Route>>;

/// Prints the paper's table with ours beside it, in Markdown.
pub(super) fn paper(paper: &Paper, say: &dyn Fn(&str)) -> anyhow::Result<()> {
    ensure!(paper.episodes > 0, "--episodes 0: expected 1 or more");
    let net = match &paper.weights {
        Some(file) => {
            let name = file.display().to_string();
            Some(Net::read(&std::fs::read(file).context(name.clone())?, &SHAPE).context(name)?)
        }
        None => Net::read(ARRIVAL, &SHAPE).ok(),
    };
    let mut rows: Vec<(&str, Make)> = Vec::new();
    for rule in RULES {
        rows.push((rule.name, Box::new(|| Box::new(*rule))));
    }
    let learned =
        |net: Option<Net>, order| move || -> Box<dyn Route> { Box::new(Learned::new(net.clone(), order)) };
    rows.push(("double DQN (ours)", Box::new(learned(net, Order::Arrival))));
    let net = Net::read(URGENCY, &SHAPE).ok();
    rows.push(("double DQN, shortest first (ours)", Box::new(learned(net, Order::Urgency))));
    say(
        "| router | paper, % better than round robin | here | mean s | p99 s | waits at the router s | put back |",
    );
    say("|---|---|---|---|---|---|---|");
    let mut base = None;
    for (name, route) in &rows {
        let mean = mean_of(paper, route)?;
        let base = *base.get_or_insert(mean.mean_s);
        let reported = REPORTED.iter().find(|(of, _)| of == name);
        say(&line(name, reported.map(|(_, percent)| *percent), Some((&mean, base))));
    }
    for (name, percent) in REPORTED.iter().filter(|(of, _)| !rows.iter().any(|(name, _)| name == of)) {
        say(&line(name, Some(*percent), None));
    }
    Ok(())
}

fn line(name: &str, reported: Option<f64>, here: Option<(&Result, f64)>) -> String {
    let reported = reported.map_or(String::new(), |percent| format!("{percent:.2}"));
    let here = match here {
        Some((Result { mean_s, p99_s, waited_s, preempted, .. }, base)) => {
            let better = (1.0 - mean_s / base) * 100.0;
            format!("{better:.2} | {mean_s:.1} | {p99_s:.1} | {waited_s:.1} | {preempted}")
        }
        None => " |  |  |  | ".to_owned(),
    };
    format!("| {name} | {reported} | {here} |")
}

/// The mean over the episodes.
fn mean_of(paper: &Paper, route: &dyn Fn() -> Box<dyn Route>) -> anyhow::Result<Result> {
    let spec = engine()?;
    let mut sum = Result::default();
    for seed in paper.seed..paper.seed.saturating_add(paper.episodes) {
        let one = play(&spec, INSTANCES, &episode(seed), route().as_mut());
        sum.mean_s += one.mean_s;
        sum.p99_s += one.p99_s;
        sum.waited_s += one.waited_s;
        sum.preempted += one.preempted;
    }
    let count = paper.episodes as f64;
    Ok(Result {
        mean_s: sum.mean_s / count,
        p99_s: sum.p99_s / count,
        waited_s: sum.waited_s / count,
        preempted: sum.preempted / paper.episodes,
        ..sum
    })
}

/// Trains the learned router, and writes its weights.
pub(super) fn learn(options: &Train) -> anyhow::Result<()> {
    ensure!(options.episodes > 0, "--episodes 0: expected 1 or more");
    let mut watch = |episode: u64, mean: f64| {
        let _ = writeln!(std::io::stderr(), "episode {episode}: {mean:.1} s");
    };
    let order = match options.order {
        Queue::Arrival => Order::Arrival,
        Queue::Urgency => Order::Urgency,
    };
    let net = train(order, options.episodes, options.seed, &mut watch)?;
    super::write(&options.out, &net.write())
}
