use super::*;

fn spec() -> Spec {
    let mut spec = specs().unwrap().remove("a100-llama3-8b").unwrap();
    spec.step_tokens = 100;
    spec.kv_tokens = 1_600;
    spec.adapters = 1;
    spec
}

fn job(id: u32, prompt: u32, output: u32) -> Job {
    shared(id, u64::from(id), prompt, output)
}

/// A request whose blocks are those of `content`.
fn shared(id: u32, content: u64, prompt: u32, output: u32) -> Job {
    let chain = (0..u64::from((prompt + output) / 16)).map(|n| (content << 32) + n + 1).collect();
    Job { id, prompt, output, chain, adapter: None, part: Part::Whole }
}

/// Runs until nothing is left; the time and the progress of each step.
fn run(engine: &mut Engine) -> Vec<(u64, Progress)> {
    let (mut now, mut all, mut progress) = (0, Vec::new(), Vec::new());
    while let Some(step) = engine.start() {
        now += step;
        engine.finish(&mut progress);
        all.extend(progress.drain(..).map(|what| (now, what)));
    }
    assert_eq!(engine.memory.free(), engine.memory.len(), "nothing is held at the end");
    all
}

fn first(all: &[(u64, Progress)], of: u32) -> (u64, u32) {
    let hit = all.iter().find_map(|(at, what)| match what {
        Progress::First { id, cached } if *id == of => Some((*at, *cached)),
        _ => None,
    });
    hit.unwrap()
}

#[test]
fn every_request_gets_one_first_and_one_last_token() {
    let mut engine = Engine::new(Arc::new(spec()), 1.0);
    (0..50).for_each(|id| assert!(engine.submit(job(id, 10 + 7 * id, 1 + id))));
    let all = run(&mut engine);
    for id in 0..50 {
        let last = all.iter().filter(|(_, what)| *what == Progress::Last { id }).count();
        assert_eq!(last, 1);
        first(&all, id);
    }
    assert_eq!(all.len(), 100);
}

#[test]
fn a_long_prompt_takes_chunks_and_answers_go_on_beside_it() {
    let mut engine = Engine::new(Arc::new(spec()), 1.0);
    engine.submit(job(0, 10, 40));
    engine.start().unwrap();
    engine.finish(&mut Vec::new());
    engine.submit(job(1, 1_000, 1));
    let all = run(&mut engine);
    let (at, _) = first(&all, 1);
    let end = all.iter().find(|(_, what)| *what == Progress::Last { id: 0 }).unwrap().0;
    assert!(at < end, "the answer of 40 tokens was not stopped, the prompt took 11 steps");
    assert_eq!(engine.done().steps, 40);
}

#[test]
fn a_known_prefix_is_not_computed_and_one_token_always_is() {
    let mut engine = Engine::new(Arc::new(spec()), 1.0);
    engine.submit(shared(0, 9, 160, 1));
    engine.submit(shared(1, 9, 160, 17));
    engine.submit(shared(2, 9, 800, 1));
    let all = run(&mut engine);
    assert_eq!(first(&all, 1).1, 96, "what the first had computed when the second was taken in");
    let (before, _) = (engine.done().prefill_tokens, ());
    engine.submit(shared(3, 9, 160, 1));
    let all = run(&mut engine);
    assert_eq!(first(&all, 3).1, 144);
    assert_eq!(engine.done().prefill_tokens - before, 16);
}

#[test]
fn want_of_memory_puts_the_latest_back_and_it_is_answered_all_the_same() {
    let mut engine = Engine::new(Arc::new(Spec { step_tokens: 2_000, ..spec() }), 1.0);
    engine.submit(job(0, 700, 400));
    engine.submit(job(1, 700, 400));
    let all = run(&mut engine);
    assert!(engine.done().preempted > 0);
    let end = |of| all.iter().find(|(_, what)| *what == Progress::Last { id: of }).unwrap().0;
    assert!(end(0) < end(1));
    assert!(!engine.submit(job(2, 1_500, 101)), "never fits");
}

#[test]
fn twice_the_speed_is_half_the_time() {
    let time = |speed| {
        let mut engine = Engine::new(Arc::new(spec()), speed);
        engine.submit(job(0, 500, 50));
        run(&mut engine).last().unwrap().0
    };
    assert!((time(1.0) as f64 / time(2.0) as f64 - 2.0).abs() < 0.001);
}

#[test]
fn an_adapter_is_loaded_once_and_waits_for_a_slot() {
    let mut engine = Engine::new(Arc::new(spec()), 1.0);
    let with = |id, adapter| Job { adapter: Some(adapter), ..job(id, 20, 30) };
    engine.submit(with(0, 7));
    engine.submit(with(1, 7));
    engine.submit(with(2, 8));
    let all = run(&mut engine);
    assert!(first(&all, 1).0 < first(&all, 2).0);
    assert!(first(&all, 0).0 > 100_000_000, "loading takes 100 ms");
    let end = all.iter().find(|(_, what)| *what == Progress::Last { id: 1 }).unwrap().0;
    assert!(first(&all, 2).0 > end + 100_000_000, "the only slot was in use");
}

#[test]
fn death_loses_everything() {
    let mut engine = Engine::new(Arc::new(spec()), 1.0);
    engine.submit(shared(0, 9, 160, 1));
    run(&mut engine);
    engine.submit(job(1, 300, 5));
    engine.submit(job(2, 300, 5));
    engine.start();
    let Gauges { waiting, running, kv_usage, .. } = engine.gauges();
    assert_eq!((waiting, running, kv_usage), (1, 1, 0.07));
    assert_eq!(engine.die(), [1, 2]);
    assert_eq!((engine.start(), engine.gauges().computed), (None, 0));
    engine.submit(shared(3, 9, 160, 1));
    assert_eq!(first(&run(&mut engine), 3).1, 0, "a cold cache");
}

/// Two engines of which one computes for the other; KV takes no time.
fn split(jobs: Vec<Job>) -> (Vec<Progress>, Engine, Engine) {
    let (mut one, mut other) = (Engine::new(Arc::new(spec()), 1.0), Engine::new(Arc::new(spec()), 1.0));
    let (mut all, mut progress) = (Vec::new(), Vec::new());
    for job in &jobs {
        one.submit(Job { part: Part::Prefill, output: 1, ..job.clone() });
    }
    loop {
        let stepped = [one.start(), other.start()];
        let wanted = other.wanted();
        if stepped == [None, None] && wanted.is_empty() {
            return (all, one, other);
        }
        for (id, _) in wanted {
            other.fetched(id);
            one.forget(id);
        }
        one.finish(&mut progress);
        for what in progress.drain(..) {
            if let Progress::Last { id } = what {
                assert!(other.submit(Job { part: Part::Decode, ..jobs[id as usize].clone() }));
            }
        }
        other.finish(&mut all);
    }
}

#[test]
fn one_engine_computes_and_the_other_answers() {
    let jobs: Vec<Job> = (0..30).map(|id| job(id, 40 + 11 * id, 1 + id)).collect();
    let (all, one, other) = split(jobs.clone());
    for id in 0..30 {
        let of = |what: &&Progress| **what == Progress::Last { id };
        assert_eq!(all.iter().filter(of).count(), 1);
    }
    let prompts: u64 = jobs.iter().map(|job| u64::from(job.prompt)).sum();
    assert_eq!(one.done().prefill_tokens, prompts);
    assert_eq!(one.memory.free(), one.memory.len(), "what was fetched is not held");
    assert_eq!(other.memory.free(), other.memory.len());
    if other.done().preempted == 0 {
        assert_eq!(
            other.done().prefill_tokens,
            30,
            "one token each, from which the first of the answer comes"
        );
    }
}

#[test]
fn only_what_is_not_cached_is_fetched_and_it_is_cached_from_then_on() {
    let mut engine = Engine::new(Arc::new(spec()), 1.0);
    let decode = |id, content, prompt| Job { part: Part::Decode, ..shared(id, content, prompt, 2) };
    let mut wants = |id, content, prompt| {
        engine.submit(decode(id, content, prompt));
        assert_eq!(engine.start(), None, "there is nothing to compute before it has come");
        let wanted = engine.wanted();
        engine.fetched(id);
        run(&mut engine);
        wanted
    };
    assert_eq!(wants(0, 7, 320), [(0, 320)]);
    assert_eq!(wants(1, 7, 480), [(1, 160)]);
    assert_eq!(wants(2, 8, 32), [(2, 32)]);
}

#[test]
fn who_waits_for_kv_holds_memory_and_lets_others_go_on() {
    let mut engine = Engine::new(Arc::new(spec()), 1.0);
    engine.submit(Job { part: Part::Decode, ..job(0, 1_000, 10) });
    engine.submit(job(1, 500, 10));
    assert!(engine.start().is_some(), "another is computed meanwhile");
    engine.finish(&mut Vec::new());
    engine.submit(Job { part: Part::Decode, ..job(2, 1_000, 10) });
    run_on(&mut engine);
    assert_eq!(engine.wanted(), [(0, 1_000)], "for a third there is no memory");
    assert_eq!((engine.gauges().waiting, engine.gauges().running), (2, 0));
    engine.fetched(0);
    run_on(&mut engine);
    assert_eq!(engine.wanted(), [(2, 1_000)]);
    engine.fetched(2);
    run(&mut engine);
}

fn run_on(engine: &mut Engine) {
    while engine.start().is_some() {
        engine.finish(&mut Vec::new());
    }
}

#[test]
fn what_never_runs_is_refused() {
    let mut engine = Engine::new(Arc::new(Spec { adapters: 0, ..spec() }), 1.0);
    assert!(!engine.submit(Job { adapter: Some(1), ..job(0, 10, 10) }));
    assert!(!engine.submit(job(1, 1_600, 1)));
    assert!(engine.submit(job(2, 1_599, 1)));
}
