//! What a policy needs and nobody configured, and numbers that are likely in another unit: such a file is accepted, and
//! endpoints are chosen by less than it promises.

use super::SCORER;
use super::report::Report;
use serde::Deserialize;
use serde_json::Value;
use weir::invalid::Invalid;
use weir::limit;
use weir::policy::{self, Attributes, Known, Left, Need, Needed, Policy};
use weir::pool::{self, Spec};
use weir::signals;

/// What `pick` and the scorer have in common.
#[derive(Debug, Deserialize)]
struct Chooser {
    pools: Vec<Spec>,
    choose: pool::Config,
    signals: Option<signals::Config>,
    /// In `pick`: who chooses in its place, while that one is there.
    scorer: Option<Value>,
}

/// Says of every policy in a file what it lacks there.
pub(super) fn check(report: &mut Report) {
    let extracts = report.of("extract");
    let knows = |(_, extract): &(String, Value)| {
        let adapters = extract.pointer("/request/adapters").and_then(Value::as_object);
        adapters.is_some_and(|adapters| !adapters.is_empty())
    };
    let no_adapters = !extracts.is_empty() && !extracts.iter().any(knows);
    for (at, limit) in report.of("limit") {
        report.warnings.extend(free(&limit).into_iter().map(|warning| warning.within(&at)));
    }
    for (at, value) in [report.of("pick"), report.of(SCORER)].concat() {
        if let Ok(chooser) = serde_json::from_value::<Chooser>(value) {
            let said = chooser.said(no_adapters);
            report.warnings.extend(said.into_iter().map(|warning| warning.within(&at)));
        }
    }
}

/// Prices of nothing, where money is limited: what costs nothing uses no budget up.
fn free(limit: &Value) -> Vec<Invalid> {
    let Ok(config) = serde_json::from_value::<limit::Config>(limit.clone()) else { return Vec::new() };
    let is_money = |limit: &limit::Limit| limit.windows.iter().any(|window| window.money.is_some());
    let (Some(prices), true) = (&config.cost.prices, config.limits.iter().any(is_money)) else {
        return Vec::new();
    };
    let others = [("other".to_owned(), &prices.other)].into_iter();
    let models = prices.models.iter().map(|(name, price)| (format!("models.{name}"), price));
    let free = others.chain(models).filter(|(_, price)| price.is_free());
    let why = "costs nothing: no budget keeps such requests out";
    free.map(|(at, _)| Invalid::new(format!("cost.prices.{at}"), why)).collect()
}

impl Chooser {
    fn said(&self, no_adapters: bool) -> Vec<Invalid> {
        let mut said = Vec::new();
        let shared = self.pools.iter().enumerate().filter(|(_, spec)| spec.choose.is_none());
        self.of_choose("choose", &self.choose, shared, no_adapters, &mut said);
        for (nth, spec) in self.pools.iter().enumerate() {
            if let Some(choose) = &spec.choose {
                let pools = std::iter::once((nth, spec));
                self.of_choose(&format!("pools[{nth}].choose"), choose, pools, no_adapters, &mut said);
            }
            for (address, attributes) in &spec.attributes {
                let at = |field: &str| format!("pools[{nth}].attributes[{address:?}].{field}");
                said.extend(dear(attributes).map(|(field, why)| Invalid::new(at(field), why)));
                said.extend(odd_role(attributes).map(|why| Invalid::new(at("labels"), why)));
            }
        }
        said
    }

    /// What is said of one way of choosing, and of the pools that go by it.
    fn of_choose<'a>(
        &self,
        at: &str,
        choose: &pool::Config,
        pools: impl Iterator<Item = (usize, &'a Spec)>,
        no_adapters: bool,
        said: &mut Vec<Invalid>,
    ) {
        said.extend(self.times(choose).into_iter().map(|warning| warning.within(at)));
        said.extend(blocks(choose).map(|warning| warning.within(at)));
        let Ok(mut policy) = Policy::read(&choose.policy) else { return };
        let needs: Vec<Needed> = policy.needs().to_vec();
        let policy_at = format!("{at}.policy");
        let lacks = needs.iter().filter_map(|needed| {
            let why = self.lacks(needed.need, no_adapters)?;
            Some(Invalid::new(needed.at.clone(), format!("{} {why}", needed.name)).within(&policy_at))
        });
        said.extend(lacks);
        for (nth, spec) in pools {
            let lacks = needs.iter().filter_map(|needed| {
                let why = lacking(needed.need, spec)?;
                Some(Invalid::new(format!("pools[{nth}].attributes"), format!("{} {why}", needed.name)))
            });
            said.extend(lacks);
            said.extend(left(&mut policy, spec).map(|why| Invalid::new(policy_at.clone(), why)));
        }
    }

    /// What is said of a need that is the same for all pools.
    fn lacks(&self, need: Need, no_adapters: bool) -> Option<&'static str> {
        let is_asked = self.scorer.is_some() || self.signals.is_some();
        let lists = self.signals.as_ref().is_some_and(|signals| signals.models_path.is_some());
        match need {
            Need::Signals if !is_asked => {
                Some("goes by what engines say of themselves, and they are not asked: set `signals`")
            }
            Need::Models if self.scorer.is_none() && !lists => Some(
                "goes by engines' lists of models, and they are not asked for them: set `signals.models_path`",
            ),
            Need::Adapters if no_adapters => Some(
                "goes by LoRA adapters, but `extract` has no `request.adapters`, so that no request has one",
            ),
            _ => None,
        }
    }

    /// Times that do not go together, or are likely seconds.
    fn times(&self, choose: &pool::Config) -> Vec<Invalid> {
        const SHORT_LEASE_MS: u64 = 10_000;
        const SHORT_START_MS: u64 = 1_000;
        let mut said = Vec::new();
        let lease = choose.lease_ms.get();
        if lease < SHORT_LEASE_MS {
            let why = format!("a request that takes longer than {lease} ms counts as ended while it runs");
            said.push(Invalid::new("lease_ms", why));
        }
        if (1..SHORT_START_MS).contains(&choose.slow_start_ms) {
            let why = format!("{} ms: less than a request takes; are seconds meant?", choose.slow_start_ms);
            said.push(Invalid::new("slow_start_ms", why));
        }
        let interval = self.signals.as_ref().map(|signals| signals.interval_ms.get());
        if let Some(interval) = interval.filter(|interval| *interval >= choose.stale_ms.get()) {
            let why =
                format!("what engines say is forgotten before they are asked again, every {interval} ms");
            said.push(Invalid::new("stale_ms", why));
        }
        said
    }
}

/// A policy that counts blocks of another size than there are.
fn blocks(choose: &pool::Config) -> Option<Invalid> {
    let policy = Policy::read(&choose.policy).ok()?;
    let counted = policy.effective().pointer("/prefix_hash/block_tokens")?.as_u64()?;
    let cut = u64::from(choose.block_tokens.get());
    let why = format!("{counted}, where `block_tokens` is {cut}: prefix_tokens is not what it says");
    (counted != cut).then(|| Invalid::new("policy.prefix_hash.block_tokens", why))
}

/// What a pool lacks that a policy needs of its attributes.
fn lacking(need: Need, spec: &Spec) -> Option<String> {
    let is_priced = |attributes: &Attributes| {
        attributes.input_cost_per_token.or(attributes.output_cost_per_token).is_some()
    };
    let is_weighed = |attributes: &Attributes| attributes.weight != 1.0;
    let pool = &spec.name;
    match need {
        Need::Weights if !spec.attributes.values().any(is_weighed) => {
            Some(format!("goes by weights, and no endpoint of pool {pool} has one: turns are even"))
        }
        Need::Prices if !spec.attributes.values().any(is_priced) => {
            let why = "goes by prices, and no endpoint of pool";
            Some(format!(
                "{why} {pool} has one (input_cost_per_token, output_cost_per_token): all cost the same"
            ))
        }
        Need::Prices => {
            let has_one = |address: &&String| spec.attributes.get(*address).is_some_and(is_priced);
            let without: Vec<&str> =
                spec.endpoints.iter().filter(|address| !has_one(address)).map(String::as_str).collect();
            let why = "goes by prices, and an unknown one is 1 a token, which is dearer than any: of";
            (!without.is_empty()).then(|| format!("{why} {}", without.join(", ")))
        }
        _ => None,
    }
}

/// What is said of a policy whose filters leave nobody in a pool. Endpoints that are yet to be discovered may fit.
fn left(policy: &mut Policy, spec: &Spec) -> Option<String> {
    if spec.endpoints.is_empty() {
        return None;
    }
    let none = Attributes::default();
    let known = (0..).zip(&spec.endpoints).map(|(id, address)| {
        let attributes = spec.attributes.get(address).unwrap_or(&none);
        Known { id, address, attributes }
    });
    let known: Vec<Known<'_>> = known.collect();
    let pool = &spec.name;
    let labels = "go by attributes.ADDRESS.labels";
    match policy.leaves(&known) {
        Left::Some => None,
        Left::Nobody => {
            Some(format!("its filters leave no endpoint of pool {pool}, whatever is asked; they {labels}"))
        }
        Left::NobodyForPrefill => {
            Some(format!("its filters leave no endpoint of pool {pool} for prefill; they {labels}"))
        }
    }
}

/// A role that no filter by role knows: its endpoint would be left out in silence.
fn odd_role(attributes: &Attributes) -> Option<String> {
    let (label, role) = policy::odd_role(&attributes.labels)?;
    let why = "is no role: those are prefill, decode, encode, prefill-decode and the like";
    Some(format!("{label}: {role:?} {why}"))
}

/// Prices that are likely those of a million tokens.
fn dear(attributes: &Attributes) -> impl Iterator<Item = (&'static str, String)> {
    const DEAR: f64 = 0.01;
    let prices = [
        ("input_cost_per_token", attributes.input_cost_per_token),
        ("output_cost_per_token", attributes.output_cost_per_token),
    ];
    let dear =
        prices.into_iter().filter_map(|(field, price)| Some((field, price.filter(|price| *price >= DEAR)?)));
    dear.map(|(field, price)| (field, format!("{price} for one token; is it the price of a million?")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use crate::check;

    const GOOD: &str = include_str!("../../tests/data/envoy.yaml");

    /// The warnings on a scorer with this beside its pool of two endpoints, whose attributes are these.
    fn warnings(beside: &str, attributes: &str) -> Vec<String> {
        let text = format!(
            "pools: [{{name: a, models: [m], endpoints: ['10.0.0.1:1', '10.0.0.2:1'], attributes: {{{attributes}}}}}]\n{beside}"
        );
        let report = check::text(text.as_bytes());
        assert!(report.errors.is_empty(), "{:?}", report.errors);
        report.warnings.iter().map(ToString::to_string).collect()
    }

    /// There is one warning, and it begins so.
    fn one(beside: &str, attributes: &str, begins: &str) {
        let said = warnings(beside, attributes);
        assert!(said.len() == 1 && said[0].starts_with(begins), "{beside} {attributes}: {said:#?}");
    }

    fn none(beside: &str, attributes: &str) {
        assert_eq!(warnings(beside, attributes), [""; 0], "{beside} {attributes}");
    }

    #[test]
    fn a_policy_that_goes_by_what_nobody_asks_for_is_said() {
        let least_kv = "choose: {policy: least_kv}";
        one(least_kv, "", "choose.policy: least_kv goes by what engines say of themselves");
        none(&format!("{least_kv}\nsignals: {{}}"), "");
        let plugins =
            "choose: {policy: {plugins: [{type: prefix-cache-scorer}, {type: kv-cache-utilization-scorer}]}}";
        one(
            plugins,
            "",
            "choose.policy.plugins[1].type: kv-cache-utilization-scorer goes by what engines say",
        );
        none(&format!("{plugins}\nsignals: {{}}"), "");
        let served =
            "choose: {policy: {plugins: [{type: served-model-filter}, {type: active-request-scorer}]}}";
        one(
            &format!("{served}\nsignals: {{}}"),
            "",
            "choose.policy.plugins[0].type: served-model-filter goes by",
        );
        none(&format!("{served}\nsignals: {{models_path: /v1/models}}"), "");
        none("choose: {policy: least_prefill}", "");
    }

    #[test]
    fn a_filter_by_the_pools_own_count_needs_no_engine_asked() {
        let policy = |metric: &str| {
            format!(
                "choose: {{policy: {{plugins: [{{type: utilization-filter, parameters: {{conditions: [{{metric: active-requests, maxValue: 5}}, {{metric: {metric}, maxValue: 5}}]}}}}, {{type: active-request-scorer}}]}}}}"
            )
        };
        none(&policy("active-requests"), "");
        one(
            &policy("waiting-queue"),
            "",
            "choose.policy.plugins[0].type: utilization-filter goes by what engines",
        );
    }

    #[test]
    fn prices_and_weights_that_nobody_gave_are_said() {
        let cost = "choose: {policy: cost_based}";
        one(cost, "", "pools[0].attributes: cost_based goes by prices, and no endpoint of pool a has one");
        let priced = "'10.0.0.1:1': {input_cost_per_token: 1.0e-6}";
        one(cost, priced, "pools[0].attributes: cost_based goes by prices, and an unknown one is 1 a token");
        let both = format!("{priced}, '10.0.0.2:1': {{output_cost_per_token: 0}}");
        none(cost, &both);
        let million = "'10.0.0.1:1': {input_cost_per_token: 3.0}";
        one("", million, "pools[0].attributes[\"10.0.0.1:1\"].input_cost_per_token: 3 for one token; is it");
        let turns = "choose: {policy: weighted_round_robin}";
        one(turns, "", "pools[0].attributes: weighted_round_robin goes by weights");
        none(turns, "'10.0.0.1:1': {weight: 3}");
    }

    #[test]
    fn a_budget_that_costs_nothing_is_said() {
        let said = |window: &str, price: &str| {
            let text = format!(
                r#"{{"limits":[{{"name":"b","windows":[{{{window},"per_s":60}}]}}],"cost":{{"prices":{{"other":{price}}}}}}}"#
            );
            super::free(&serde_json::from_str(&text).unwrap())
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        let nothing = r#"{"input":0,"output":0}"#;
        let warned = said(r#""money":5"#, nothing);
        assert!(warned.len() == 1 && warned[0].starts_with("cost.prices.other: costs nothing"), "{warned:?}");
        assert_eq!(said(r#""tokens":5"#, nothing), [""; 0]);
        assert_eq!(said(r#""money":5"#, r#"{"input":0.1,"output":0}"#), [""; 0]);
    }

    #[test]
    fn filters_that_leave_nobody_are_said() {
        let policy = |filter: &str| {
            format!("choose: {{policy: {{plugins: [{{type: {filter}}}, {{type: active-request-scorer}}]}}}}")
        };
        one(
            &policy("prefill-filter"),
            "",
            "choose.policy: its filters leave no endpoint of pool a, whatever is asked",
        );
        none(&policy("prefill-filter"), "'10.0.0.1:1': {labels: {llm-d.ai/role: prefill}}");
        none(&policy("decode-filter"), "");
        let misspelt = "'10.0.0.1:1': {labels: {llm-d.ai/role: prefil}}";
        one("", misspelt, "pools[0].attributes[\"10.0.0.1:1\"].labels: llm-d.ai/role: \"prefil\" is no role");
        let long = "'10.0.0.1:1': {labels: {llm-d.ai/context-length-range: 8193-32768}}, '10.0.0.2:1': {labels: {llm-d.ai/context-length-range: 32769-65536}}";
        none(&policy("context-length-aware, parameters: {enableFiltering: true}"), long);
        let split = "choose: {policy: {plugins: [{type: prefill-filter}, {type: decode-filter}, {type: always-disagg-pd-decider}, {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}], schedulingProfiles: [{name: prefill, plugins: [{pluginRef: prefill-filter}]}, {name: decode, plugins: [{pluginRef: decode-filter}]}]}}";
        one(split, "", "choose.policy: its filters leave no endpoint of pool a for prefill");
    }

    #[test]
    fn blocks_of_two_sizes_are_said() {
        let config = |own: u32| {
            format!("choose: {{block_tokens: 64, policy: {{prefix_hash: {{block_tokens: {own}}}}}}}")
        };
        one(&config(16), "", "choose.policy.prefix_hash.block_tokens: 16, where `block_tokens` is 64");
        none(&config(64), "");
    }

    #[test]
    fn times_that_are_likely_seconds_are_said() {
        one("choose: {lease_ms: 600}", "", "choose.lease_ms: a request that takes longer than 600 ms");
        one("choose: {slow_start_ms: 30}", "", "choose.slow_start_ms: 30 ms: less than a request takes");
        one("signals: {interval_ms: 15000}", "", "choose.stale_ms: what engines say is forgotten before");
    }

    /// What is said of adapters where `pick` has `choose` and `extract` has `request`.
    fn said_of_adapters(choose: &str, request: &str) -> Vec<String> {
        let (extract, pick) = ("\"request\": {", "{\"pools\": [");
        assert!(GOOD.contains(extract) && GOOD.contains(pick));
        let text = GOOD.replacen(extract, &format!("{extract}{request}"), 1);
        let text = text.replacen(pick, &format!("{{\"choose\": {{\"policy\": {choose}}}, \"pools\": ["), 1);
        let report = check::text(text.as_bytes());
        assert!(report.errors.is_empty(), "{:?}", report.errors);
        let warnings = report.warnings.iter().map(ToString::to_string);
        warnings.filter(|line| line.contains("LoRA adapters")).collect()
    }

    #[test]
    fn affinity_to_adapters_that_nobody_names_is_said() {
        let config = |scorer: &str| {
            format!(r#"{{"kind": "EndpointPickerConfig", "plugins": [{{"type": "{scorer}"}}]}}"#)
        };
        let lora = config("lora-affinity-scorer");
        for (policy, at) in [(r#""lora_affinity""#, ""), (lora.as_str(), ".plugins[0].type")] {
            let warnings = said_of_adapters(policy, "");
            assert_eq!(warnings.len(), 1, "{policy}");
            let expected = format!(".configuration.value.choose.policy{at}: ");
            assert!(warnings[0].contains(&expected), "{warnings:?}");
            assert!(said_of_adapters(policy, r#""adapters": {"a": "b"}, "#).is_empty(), "{policy}");
        }
        assert!(said_of_adapters(r#""least_prefill""#, "").is_empty());
        assert!(said_of_adapters(&config("queue-scorer"), "").is_empty());
    }
}
