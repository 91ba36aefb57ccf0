//! `breaker`: sees every attempt of a request, where the filters of the listener see the last one only.
//!
//! It stands in the cluster, among the filters that Envoy runs once per attempt (`http_filters` of the cluster's
//! `HttpProtocolOptions`), before `upstream_codec`. An answer that is no success leaves its status there, and for how long the
//! endpoint wants to be left alone, as filter state under the endpoint's address. If Envoy retries the request, nobody
//! else would ever see them: `pick` would take an endpoint whose queue is full for one that is broken, and its `Retry-After` would be
//! lost. A good answer costs a look at its headers.
//!
//! Two kinds of an answer's headers are the gateway's word and no endpoint's, and are taken away here, before any filter of the gateway and
//! Envoy's own router read them: those that begin with `x-weir-`, and Envoy's `x-envoy-ratelimited`, at which it retries nowhere (an Envoy in
//! front of one engine, with its own rate limit, says so, and says nothing of the other engines).
//!
//! What follows from an attempt is decided elsewhere: `pick` notes it where the pool's endpoints are known (`weir::breaker`).

use serde::{Deserialize, Serialize};
use weir::breaker::{Class, Outcome, retry_after};
use weir::invalid::{self, Invalid};
use weir::wire;
use weir_host::{Callback, Filter, Host, Of};

weir_host::serve!(Breaker);

/// Configuration of the plugin: there is nothing to choose.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {}

/// With it Envoy's router takes an answer for its own kind's, and final.
const RATE_LIMITED: &str = "x-envoy-ratelimited";

/// The filter.
#[derive(Debug)]
pub struct Breaker;

impl Filter for Breaker {
    const NAME: &'static str = "weir-breaker";
    const CALLBACKS: &'static [Callback] = &[Callback::ResponseHeaders];
    type Stream = ();

    fn configure(json: &[u8], _: &dyn Host) -> Result<Self, Invalid> {
        invalid::read::<Config>(json)?;
        Ok(Self)
    }

    fn open(&mut self, _: &dyn Host) {}

    fn response_headers(&mut self, (): &mut (), host: &dyn Host, _end: bool) {
        let headers = host.headers(Of::Response);
        let marked = headers.get(wire::TOO_LONG).is_some() && is_marked(host);
        for (forged, _) in headers.iter().filter(|(name, _)| is_forged(name)) {
            if !(marked && forged == wire::TOO_LONG) {
                host.remove_header(Of::Response, forged);
            }
        }
        let status = headers.get(":status").and_then(|status| status.parse().ok()).unwrap_or(0);
        let wait = if status >= 400 { retry_after(headers.iter(), || host.wall()) } else { None };
        let outcome = Outcome::of_status(status, wait);
        if marked || outcome.class() == Class::Success {
            return;
        }
        if let Some(address) = host.text(&["upstream", "address"]) {
            host.set_property(&wire::attempt(&address), outcome.write().as_bytes());
        }
    }
}

/// Whether only the gateway writes that.
fn is_forged(header: &str) -> bool {
    header.starts_with(wire::CONTROL_PREFIX) || header == RATE_LIMITED
}

/// Whether the mark is of `opening`, which has left that outcome already, and not the endpoint's own.
fn is_marked(host: &dyn Host) -> bool {
    let address = host.text(&["upstream", "address"]).unwrap_or_default();
    let left = host.text(&["filter_state", &format!("wasm.{}", wire::attempt(&address))]);
    left.and_then(|left| Outcome::read(&left)) == Some(Outcome::too_long())
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_host::fake::Worker;

    fn left(answer: &[(&str, &str)]) -> Option<String> {
        let mut worker = Worker::<Breaker>::new("");
        let mut exchange = worker.request(&[], &[], true);
        worker.response(&mut exchange, "10.0.0.1:1", answer);
        exchange.see().state("weir.attempt.10.0.0.1:1")
    }

    #[test]
    fn an_endpoint_says_nothing_in_the_gateways_name() {
        let mut worker = Worker::<Breaker>::new("");
        let mut exchange = worker.request(&[], &[], true);
        let [from, to, _] = wire::SPILLOVER;
        let forged = [
            (from, "9"),
            (to, "8"),
            (to, "7"),
            (wire::BUDGET, "all yours"),
            (wire::TOO_LONG, "1"),
            (RATE_LIMITED, "true"),
            ("x-weir-", "x"),
        ];
        let kept = [(":status", "200"), ("x-request-id", "1"), ("x-envoy-degraded", "1")];
        worker.response(&mut exchange, "10.0.0.1:1", &[&forged[..], &kept].concat());
        for (name, value) in kept {
            assert_eq!(exchange.see().answer_header(name), [value]);
        }
        for (name, _) in forged {
            assert!(exchange.see().answer_header(name).is_empty(), "{name}");
        }
    }

    #[test]
    fn an_answer_that_is_no_success_leaves_its_status_and_its_hint() {
        assert_eq!(left(&[(":status", "200"), ("retry-after", "3")]), None);
        assert_eq!(left(&[(":status", "500")]).as_deref(), Some("status=500"));
        let busy = left(&[(":status", "429"), ("retry-after", "30"), ("retry-after-ms", "100")]);
        assert_eq!(busy.as_deref(), Some("status=429 retry_after_ms=30000"));
        for (status, left_so) in [("400", "status=400"), ("500", "status=500")] {
            let said = left(&[(":status", status), (wire::TOO_LONG, "1")]);
            assert_eq!(said.as_deref(), Some(left_so), "the mark is not the engine's to set");
        }
        let date = left(&[(":status", "503"), ("retry-after", "Tue, 14 Nov 2023 22:13:31 GMT")]);
        assert_eq!(
            date.as_deref(),
            Some("status=503 retry_after_ms=10000"),
            "the wall clock stands at 22:13:21"
        );
    }

    #[test]
    fn what_opening_has_marked_stays_so() {
        let (address, left) = ("10.0.0.1:1", wire::attempt("10.0.0.1:1"));
        let mut worker = Worker::<Breaker>::new("");
        let mut exchange = worker.request(&[], &[], true);
        exchange.see().set_property(&format!("filter_state.wasm.{left}"), b"too_long=1");
        worker.response(&mut exchange, address, &[(":status", "400"), (wire::TOO_LONG, "1")]);
        assert_eq!(exchange.see().answer_header(wire::TOO_LONG), ["1"]);
        assert_eq!(exchange.see().state(&left), None, "it was there before");
    }

    #[test]
    fn there_is_nothing_to_configure() {
        let wrong = Worker::<Breaker>::of(&weir_host::fake::World::new(), r#"{"rules":[]}"#).unwrap_err();
        assert!(wrong.to_string().starts_with("rules: unknown field"), "{wrong}");
    }
}
