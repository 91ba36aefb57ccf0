//! The admin page: as a browser shows it, and what it says to whom.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "native")]

mod browser;

use browser::Browser;
use reqwest::{Client, StatusCode, header};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use weir::breaker::{Outcome, Reason};
use weir::policy::Demand;
use weir::pool::Ask;
use weir::wire::{Event, Reserve};
use weir_scorer::admin;
use weir_scorer::scorer::{Config, Scorer};

const HOSTILE: &str = "<script>window.owned=1</script>";
const HOSTILE_MODEL: &str = "<img src=x onerror='window.owned = 1'>\"'&amp;";

async fn start(config: Value) -> (String, Arc<Scorer>) {
    let config = Config::read(config.to_string().as_bytes()).unwrap();
    let scorer = Arc::new(Scorer::new(&config).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(admin::serve(listener, config.admin.unwrap(), config.pools, Arc::clone(&scorer)));
    (url, scorer)
}

fn pools() -> Value {
    json!({"admin": {}, "pools": [
        {"name": HOSTILE, "models": [HOSTILE_MODEL, "m"], "endpoints": ["10.0.0.1:80", "10.0.0.2:80"]},
        {"name": "b", "models": ["n"], "endpoints": ["10.0.0.3:80"]},
    ]})
}

fn ask(pool: &str, lease: u64) -> Reserve {
    let demand = Demand { prompt_tokens: 700, prompt_units: 2, stream: true, ..Demand::default() };
    Reserve::of(pool, lease, &Ask { blocks: &[1, 2], demand, prompt: None })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_shows_names_as_text_and_what_changes_changes_in_place() {
    let (url, scorer) = start(pools()).await;
    let test = move || {
        let Some(mut page) = Browser::open(&url) else {
            return eprintln!("SKIPPED: no chromium is installed");
        };
        let row = "document.querySelector('#pools section tbody tr')";
        page.wait(&format!("document.querySelectorAll('#pools section').length === 2 && !!{row}"));
        assert_eq!(page.eval("document.querySelector('#pools h2').textContent"), HOSTILE);
        assert_eq!(page.eval("document.querySelector('#pools .chip').textContent"), HOSTILE_MODEL);
        assert_eq!(page.eval("document.querySelectorAll('#pools img, #pools script').length"), 0);

        // The page is watched now, so decisions are kept. Its rows stay the nodes that they were.
        page.eval(&format!("{row}.marked = true"));
        let mut lease = 0;
        while page.eval("document.querySelectorAll('#decisions tr.one').length") == 0 {
            lease += 1;
            scorer.reserve(&ask(HOSTILE, lease)).unwrap();
            assert!(lease < 600, "no decision came up: {}", page.eval("document.body.innerText"));
            std::thread::sleep(Duration::from_millis(100));
        }
        let address = "10.0.0.3:80".to_owned();
        for number in 0..3 {
            let outcome = Outcome::failed(Reason::Connect);
            scorer.report(&[Event::Attempted {
                pool: "b".into(),
                lease: number,
                endpoint: address.clone(),
                outcome,
            }]);
        }
        page.wait(
            "document.querySelector('#pools section:nth-child(2) .state').textContent.startsWith('cooldown')",
        );
        assert_eq!(page.eval(&format!("{row}.marked")), true);
        let in_flight =
            format!("[...{row}.parentNode.children].reduce((n, row) => n + +row.c.in_flight.textContent, 0)");
        page.wait(&format!("{in_flight} === {lease}"));

        // Who opens a decision sees each candidate and its scores.
        page.eval("document.querySelector('#decisions tr.one').click()");
        page.wait("document.querySelectorAll('#decisions tr.more tbody tr').length === 2");
        let opened = page.eval("document.querySelector('#decisions tr.more').innerText").to_string();
        assert!(opened.contains("least_prefill") && opened.contains("10.0.0.1:80"), "{opened}");
        page.wait("document.querySelector('#link').textContent === 'live'");

        // Nothing else runs or is loaded, even if it got in.
        let inject = "(() => { const s = document.createElement('script'); s.textContent = 'window.owned = 2'; \
                      document.body.append(s); })()";
        page.eval(inject);
        assert_eq!(page.eval("String(window.owned)"), "undefined");
        assert_eq!(page.eval("document.title"), "Weir");
        let elsewhere =
            "performance.getEntriesByType('resource').every(e => e.name.startsWith(location.origin))";
        assert_eq!(page.eval(elsewhere), true);
    };
    tokio::task::spawn_blocking(test).await.unwrap();
}

#[tokio::test]
async fn it_only_reads_and_answers_nobody_who_comes_by_another_name() {
    let (url, _scorer) = start(pools()).await;
    let client = Client::builder().no_proxy().build().unwrap();
    let page = client.get(&url).send().await.unwrap();
    assert_eq!(page.status(), StatusCode::OK);
    let policy = page.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned();
    assert!(policy.starts_with("default-src 'none'; script-src 'nonce-"), "{policy}");
    assert_eq!(page.headers()[header::X_FRAME_OPTIONS], "DENY");
    let text = page.text().await.unwrap();
    assert!(!text.contains("{nonce}") && !text.contains("http://") && !text.contains("https://"));
    let again = client.get(&url).send().await.unwrap();
    assert_ne!(again.headers()[header::CONTENT_SECURITY_POLICY], policy, "a nonce is used once");

    for method in [reqwest::Method::POST, reqwest::Method::PUT, reqwest::Method::DELETE] {
        let answer = client.request(method, format!("{url}/state")).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED);
    }
    for path in ["/v1/reserve", "/v1/report", "/v1/allowances", "/metrics", "/v1/loads"] {
        let answer = client.get(format!("{url}{path}")).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{path}");
    }
    for path in ["/", "/state"] {
        let stranger = client.get(format!("{url}{path}")).header(header::HOST, "rebound.example");
        assert_eq!(stranger.send().await.unwrap().status(), StatusCode::MISDIRECTED_REQUEST);
    }
}

#[tokio::test]
async fn decisions_are_told_with_their_candidates_and_those_who_got_nobody_with_the_reason() {
    let (url, scorer) = start(pools()).await;
    let client = Client::builder().no_proxy().build().unwrap();
    let look = async |after: u64| -> Value {
        client.get(format!("{url}/state?after={after}")).send().await.unwrap().json().await.unwrap()
    };
    scorer.reserve(&ask("b", 1)).unwrap();
    assert_eq!(look(0).await["decisions"], json!([]), "nobody had looked");
    scorer.reserve(&ask(HOSTILE, 2)).unwrap();
    let state = look(0).await;
    let decision = &state["decisions"][0];
    assert_eq!((&decision["pool"], &decision["prompt_tokens"]), (&json!(HOSTILE), &json!(700)));
    assert_eq!(decision["why"]["candidates"].as_array().unwrap().len(), 2);
    assert_eq!(state["pools"][1]["booked"], 1);
    assert_eq!(state["pools"][0]["pressure"]["queued_tokens"], 700);
    let last = state["last"].as_u64().unwrap();
    assert_eq!(look(last).await["decisions"], json!([]), "told once");

    let busy = Outcome::of_status(429, Some(Duration::from_secs(20)));
    let endpoint = "10.0.0.3:80".to_owned();
    scorer.report(&[Event::Attempted { pool: "b".into(), lease: 1, endpoint, outcome: busy }]);
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert!(scorer.reserve(&ask("b", 3)).unwrap().shut.is_some());
    let state = look(last).await;
    assert_eq!(state["decisions"][0]["turned_away"], "busy", "{}", state["decisions"]);
    assert_eq!(
        (&state["pools"][1]["turned_away"], &state["pools"][1]["out"][0]["standing"]),
        (&json!(1), &json!("held"))
    );
}
