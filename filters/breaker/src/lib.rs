//! `breaker`: sees every attempt of a request, where the filters of the listener see the last one only.
//!
//! It stands in the cluster, among the filters that Envoy runs once per attempt (`http_filters` of the cluster's
//! `HttpProtocolOptions`), before `upstream_codec`. An answer that is no success leaves its status there, and for how long the
//! endpoint wants to be left alone, as filter state under the endpoint's address. If Envoy retries the request, nobody
//! else would ever see them: `pick` would take an endpoint whose queue is full for one that is broken, and its `Retry-After` would be
//! lost. A good answer costs a look at its headers.
//!
//! Headers of an answer that begin with `x-weir-` are the gateway's word to clients. What an endpoint sends under such a name is taken away
//! here, before any filter of the gateway writes its own.
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
        let status = headers.get(":status").and_then(|status| status.parse().ok()).unwrap_or(0);
        let wait = || retry_after(|name| headers.get(name), || host.wall());
        // A failure stays one, whatever is said beside it.
        let outcome = match headers.get(wire::TOO_LONG) {
            Some(_) if status < 500 => Outcome::too_long(),
            _ => Outcome::of_status(status, if status >= 400 { wait() } else { None }),
        };
        for (forged, _) in headers.iter().filter(|(name, _)| is_forged(name)) {
            host.remove_header(Of::Response, forged);
        }
        if outcome.class() == Class::Success {
            return;
        }
        if let Some(address) = host.text(&["upstream", "address"]) {
            host.set_property(&wire::attempt(&address), outcome.write().as_bytes());
        }
    }
}

/// Whether only the gateway writes that. `opening`, which sees the answer before, has looked after its own.
fn is_forged(header: &str) -> bool {
    header.starts_with(wire::CONTROL_PREFIX) && header != wire::TOO_LONG
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
        let forged = [(from, "9"), (to, "8"), (to, "7"), (wire::BUDGET, "all yours"), ("x-weir-", "x")];
        let kept = [(":status", "200"), ("x-request-id", "1"), (wire::TOO_LONG, "1")];
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
        let long = left(&[(":status", "400"), ("x-weir-too-long", "1")]);
        assert_eq!(long.as_deref(), Some("too_long=1"), "as `opening` says it");
        let failed = left(&[(":status", "500"), ("x-weir-too-long", "1")]);
        assert_eq!(failed.as_deref(), Some("status=500"), "no engine talks itself out of a failure");
        let date = left(&[(":status", "503"), ("retry-after", "Tue, 14 Nov 2023 22:13:31 GMT")]);
        assert_eq!(
            date.as_deref(),
            Some("status=503 retry_after_ms=10000"),
            "the wall clock stands at 22:13:21"
        );
    }

    #[test]
    fn there_is_nothing_to_configure() {
        let wrong = Worker::<Breaker>::of(&weir_host::fake::World::new(), r#"{"rules":[]}"#).unwrap_err();
        assert!(wrong.to_string().starts_with("rules: unknown field"), "{wrong}");
    }
}
