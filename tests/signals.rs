//! Without a scorer `pick` asks engines how they are, through Envoy: what they say reaches every worker's choice, and what goes
//! wrong with one hurts nothing.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use futures_util::future::join_all;
use rig::{Gateway, MODELS, Setup, chat, filter_config, find_all, wait_until};
use serde_json::{Value, json};
use std::time::Duration;

/// The rest of the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(30);

/// A policy that goes by what engines say of their queues, and by nothing else.
fn queue() -> Value {
    json!({"kind": "EndpointPickerConfig", "plugins": [{"type": "queue-scorer"}],
        "schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": "queue-scorer"}]}]})
}

fn signals(envoy: &mut Value, policy: &Value) {
    filter_config(envoy, "pick", |pick| {
        pick["choose"]["policy"] = policy.clone();
        pick["signals"] = json!({"interval_ms": 100, "timeout_ms": 500});
    });
}

async fn start(engines: usize, policy: Value) -> Gateway {
    let edit = move |envoy: &mut Value| signals(envoy, &policy);
    let setup = Setup { engines: [engines, 1], edit: Some(Box::new(edit)), ..Setup::default() };
    Gateway::start(setup).await.unwrap()
}

fn waiting(n: u32) -> String {
    format!("vllm:num_requests_waiting {n}\nvllm:num_requests_running 0\n")
}

/// The engine of the first pool that served a request, over a connection of its own: any worker may get it.
async fn served(gateway: &Gateway) -> usize {
    let client = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build().unwrap();
    let url = format!("{}/v1/chat/completions", gateway.url);
    let answer = client.post(url).json(&chat(MODELS[0], "hello", 1)).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.bytes().await.unwrap();
    let counts: Vec<usize> = gateway.engines[0].iter().map(|engine| engine.requests().len()).collect();
    gateway.engines[0].iter().for_each(weir_engine::Engine::clear_requests);
    counts.iter().position(|count| *count > 0).unwrap()
}

/// Waits until so many requests one after the other go to that engine: all workers have heard.
async fn until_all_go_to(gateway: &Gateway, engine: usize) {
    let mut in_a_row = 0;
    let all = async || {
        in_a_row = if served(gateway).await == engine { in_a_row + 1 } else { 0 };
        in_a_row == 20
    };
    wait_until("all go to one engine", PATIENCE, all).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_engines_say_reaches_the_choice_of_every_worker_without_a_scorer() {
    let gateway = start(3, queue()).await;
    for idle in [1, 2, 0] {
        for (place, engine) in gateway.engines[0].iter().enumerate() {
            engine.say(Some(&waiting(if place == idle { 0 } else { 50 })));
        }
        until_all_go_to(&gateway, idle).await;
    }
    assert!(gateway.stat("weir_pick_scrapes_good_total").await.unwrap() > 9);
    gateway.quiet(Duration::from_secs(10)).await.unwrap();
}

/// By the list of models, since metrics name adapters only while they have requests.
#[tokio::test(flavor = "multi_thread")]
async fn an_adapter_is_asked_for_where_an_engine_lists_it() {
    let policy = json!({"kind": "EndpointPickerConfig",
        "plugins": [{"type": "lora-affinity-scorer", "parameters": {"memory_ms": 0}}],
        "schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": "lora-affinity-scorer"}]}]});
    let edit = move |envoy: &mut Value| {
        signals(envoy, &policy);
        filter_config(envoy, "pick", |pick| pick["signals"]["models_path"] = "/v1/models".into());
        // The name that requests go by is one of an adapter.
        filter_config(envoy, "extract", |extract| {
            extract["request"] = json!({"adapters": {MODELS[0]: "base"}})
        });
    };
    let setup = Setup { engines: [3, 1], edit: Some(Box::new(edit)), ..Setup::default() };
    let gateway = Gateway::start(setup).await.unwrap();
    for has_it in [1, 2, 0] {
        for (place, engine) in gateway.engines[0].iter().enumerate() {
            engine.list_adapters(if place == has_it { &["other", MODELS[0]] } else { &["other"] });
        }
        until_all_go_to(&gateway, has_it).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_whose_metrics_hang_or_lie_is_neither_flooded_nor_starved_and_delays_nobody() {
    let gateway = start(4, queue()).await;
    let [silent, liar, noise, honest] = &gateway.engines[0][..] else { panic!("four") };
    silent.fall_silent(true);
    liar.say(Some(
        "vllm:num_requests_waiting -7\nvllm:num_requests_running NaN\nvllm:kv_cache_usage_perc 1e300\n",
    ));
    noise.say(Some("<html>\u{0}{{{\n"));
    honest.say(Some(&waiting(3)));
    served(&gateway).await;
    let at_least = async |stat: &str, least: u64| {
        let enough = async || gateway.stat(stat).await.is_ok_and(|count| count >= least);
        wait_until(stat, PATIENCE, enough).await.unwrap();
    };
    for stat in ["good", "unknown", "failed"] {
        at_least(&format!("weir_pick_scrapes_{stat}_total"), 3).await;
    }
    gateway.engines[0].iter().for_each(weir_engine::Engine::clear_requests);
    let prompts: Vec<Value> = (0..120).map(|n| chat(MODELS[0], &format!("number {n}"), 2)).collect();
    for part in prompts.chunks(40) {
        for answer in join_all(part.iter().map(|body| gateway.chat(body))).await {
            assert_eq!(answer.unwrap().status(), 200);
        }
    }
    let counts: Vec<usize> = gateway.engines[0].iter().map(|engine| engine.requests().len()).collect();
    assert_eq!(counts.iter().sum::<usize>(), 120);
    assert!(counts.iter().all(|count| (6..=75).contains(count)), "{counts:?}");
    // The one that hangs does so for nobody else: the others are heard on.
    let good = gateway.stat("weir_pick_scrapes_good_total").await.unwrap();
    at_least("weir_pick_scrapes_good_total", good + 3).await;
    silent.fall_silent(false);
    liar.say(Some(&waiting(40)));
    noise.say(Some(&waiting(40)));
    honest.say(Some(&waiting(40)));
    until_all_go_to(&gateway, 0).await;
    gateway.quiet(Duration::from_secs(10)).await.unwrap();
}

/// Fault 18e, by what an engine says of itself.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_started_anew_is_believed_to_hold_nothing() {
    let gateway = start(1, json!("least_prefill")).await;
    let says = |total: u32| format!("{}vllm:prompt_tokens_total {total}\n", waiting(0));
    gateway.engines[0][0].say(Some(&says(500)));
    let cached = async || {
        let body = chat(MODELS[0], &"the same words again ".repeat(40), 1);
        let id = rig::request_id(&gateway.chat(&body).await.unwrap());
        let line = gateway.logged(&id).await.unwrap();
        rig::fields(&line, "pick")["cached_tokens"].parse::<u32>().unwrap()
    };
    wait_until("every worker believes that it holds the prefix", PATIENCE, async || {
        cached().await > 0 && cached().await > 0
    })
    .await
    .unwrap();
    let heard = gateway.stat("weir_pick_scrapes_good_total").await.unwrap();
    let twice = async || gateway.stat("weir_pick_scrapes_good_total").await.is_ok_and(|now| now > heard + 4);
    wait_until("it has been heard", PATIENCE, twice).await.unwrap();
    assert!(cached().await > 0, "to say the same again changes nothing");
    gateway.engines[0][0].say(Some(&says(3)));
    wait_until("its prefixes are forgotten", PATIENCE, async || cached().await == 0).await.unwrap();
}

/// The threads that logged a line, as Envoy's log has them: `[time][thread][level]…`.
fn threads(log: &str, line: &str) -> Vec<String> {
    let lines = log.lines().filter(|own| own.contains(line));
    lines.filter_map(|line| Some(line.split("][").nth(1)?.to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_worker_that_asks_stands_still_another_asks() {
    // A filter before the others that says which worker it runs in, and lets that stand still if it is told to.
    let lua = "function envoy_on_request(handle)
        handle:logWarn('this is the worker of ' .. (handle:headers():get('x-connection') or ''))
        if handle:headers():get('x-stand-still') then os.execute('sleep 8') end
    end";
    let edit = move |envoy: &mut Value| {
        signals(envoy, &queue());
        for filters in find_all(envoy, &|value| value[0]["name"] == "extract") {
            let typed = json!({"@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
                "default_source_code": {"inline_string": lua}});
            filters.as_array_mut().unwrap().insert(0, json!({"name": "lua", "typed_config": typed}));
        }
    };
    let gateway = Gateway::start(Setup { edit: Some(Box::new(edit)), ..Setup::default() }).await.unwrap();
    let asks = || threads(&gateway.envoy_log(), "this worker asks engines how they are");
    // Connections until both workers have one.
    let mut workers: Vec<(String, reqwest::Client)> = Vec::new();
    for number in 0..200 {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let name = format!("connection-{number};");
        let request =
            client.post(format!("{}/v1/chat/completions", gateway.url)).header("x-connection", &name);
        request.json(&chat(MODELS[0], "hello", 1)).send().await.unwrap().bytes().await.unwrap();
        let said = async || !threads(&gateway.envoy_log(), &name).is_empty();
        wait_until("the worker is known", PATIENCE, said).await.unwrap();
        let worker = threads(&gateway.envoy_log(), &name).remove(0);
        if workers.iter().all(|(own, _)| *own != worker) {
            workers.push((worker, client));
        }
        if workers.len() == 2 {
            break;
        }
    }
    assert_eq!(workers.len(), 2, "both workers have a connection");
    wait_until("one asks", PATIENCE, async || !asks().is_empty()).await.unwrap();
    let asking = asks().remove(0);
    let (_, client) = workers.iter().find(|(worker, _)| *worker == asking).unwrap();
    let still = client.post(format!("{}/v1/chat/completions", gateway.url)).header("x-stand-still", "1");
    let still = tokio::spawn(still.json(&chat(MODELS[0], "hello", 1)).send());
    wait_until("the other asks", PATIENCE, async || asks().len() > 1).await.unwrap();
    assert_ne!(asks()[1], asking);
    let good = gateway.stat("weir_pick_scrapes_good_total").await.unwrap();
    let more = async || gateway.stat("weir_pick_scrapes_good_total").await.is_ok_and(|now| now > good + 3);
    wait_until("engines are asked", PATIENCE, more).await.unwrap();
    still.abort();
}
