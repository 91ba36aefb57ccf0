//! A LiteLLM proxy's configuration as Weir's, and what of it cannot be carried over.
//!
//! | LiteLLM | Weir |
//! |---|---|
//! | deployments of one `model_name` | a pool, in `pick` and scorer |
//! | `litellm_params.api_base`, `http://IP:port` | an endpoint |
//! | `weight`, `rpm`, `tpm`, prices, `max_input_tokens` | its `attributes` |
//! | prices per token, its own or those of LiteLLM's price list | `cost.prices` of `limit` (`prices.rs`); of several in a group the dearest |
//! | `max_parallel_requests` | its `max_in_flight` |
//! | `order` | its `priority`; those without one come after those with |
//! | `litellm_params.model`, where it differs | a rule of `extract`'s `rewrite` |
//! | `router_settings.model_group_alias` | a rule too |
//! | `routing_strategy` | `choose.policy`, under the same names |
//! | `num_retries` | `choose.attempts`, one more |
//! | `allowed_fails`, `cooldown_time` | `choose.breaker`: more failures than that in a minute trip; a 429 holds off for the cooldown |
//!
//! Everything else is named with its path, and left out; so is a deployment that is no endpoint: a provider's host name, TLS,
//! an API of another kind. What comes out has been read by the very filters' configuration types.

mod prices;

pub use prices::import as import_prices;

use prices::Rates;
use serde_json::{Map, Value, json};
use weir::invalid::Invalid;

/// What has become of a configuration.
#[derive(Debug)]
pub struct Imported {
    /// `extract`, `pick` and `scorer`, each its configuration; and `limit`, without a limit yet, where there are prices.
    pub config: Value,
    /// What was left out, by its path, and why.
    pub left_out: Vec<Invalid>,
}

/// A group of deployments, on its way to a pool.
#[derive(Debug)]
struct Group {
    name: String,
    /// The model's name at the engines.
    served: String,
    endpoints: Vec<String>,
    attributes: Map<String, Value>,
    rates: Option<Rates>,
}

/// Settings of a deployment, and the attributes of an endpoint that they are.
const ATTRIBUTES: [(&str, &str); 8] = [
    ("weight", "weight"),
    ("rpm", "rpm"),
    ("tpm", "tpm"),
    ("input_cost_per_token", "input_cost_per_token"),
    ("output_cost_per_token", "output_cost_per_token"),
    ("max_input_tokens", "max_input_tokens"),
    ("max_parallel_requests", "max_in_flight"),
    ("order", PRIORITY),
];
const PRIORITY: &str = "priority";

/// Reads LiteLLM's configuration, and its price list, if there is one; an error says what of it makes no gateway at all.
pub fn import(document: &Value, price_list: Option<&Value>) -> Result<Imported, Invalid> {
    let mut left_out = Vec::new();
    let mut groups: Vec<Group> = Vec::new();
    let list = document.get("model_list").and_then(Value::as_array);
    for (nth, deployment) in list.ok_or_else(|| Invalid::new("model_list", "missing"))?.iter().enumerate() {
        add(&mut groups, deployment, price_list, &format!("model_list[{nth}]"), &mut left_out);
    }
    groups.iter_mut().for_each(order);
    let choose = choose(document.get("router_settings"), &mut left_out);
    for (section, value) in document.as_object().into_iter().flatten() {
        if !["model_list", "router_settings"].contains(&section.as_str()) {
            let keys = value.as_object().into_iter().flatten().map(|(key, _)| format!("{section}.{key}"));
            left_out.extend(keys.map(|at| Invalid::new(at, "not carried over")));
        }
    }
    let rules = rules(&groups, document.pointer("/router_settings/model_group_alias"), &mut left_out);
    let pool = |group: &Group| {
        let Group { name, served, endpoints, attributes, .. } = group;
        json!({"name": name, "models": [served], "endpoints": endpoints, "attributes": attributes})
    };
    let pools = json!({"pools": groups.iter().map(pool).collect::<Vec<_>>(), "choose": choose});
    weir_pick::Config::read(pools.to_string().as_bytes())?;
    let extract = json!({"rewrite": {"rules": rules}});
    weir_extract::Config::read(extract.to_string().as_bytes())?;
    let mut config = json!({"extract": extract, "pick": pools, "scorer": pools});
    let priced: Vec<_> =
        groups.iter().filter_map(|group| Some((group.served.clone(), group.rates?))).collect();
    let prices = prices::prices(&priced).unwrap_or_else(|invalid| {
        left_out.push(invalid.within("limit.cost.prices"));
        None
    });
    if let Some(prices) = prices {
        let limit = json!({"limits": [], "cost": {"prices": prices}});
        weir_limit::read(limit.to_string().as_bytes())?;
        if let Some(filters) = config.as_object_mut() {
            filters.insert("limit".into(), limit);
        }
    }
    Ok(Imported { config, left_out })
}

/// Adds one deployment to its group.
fn add(
    groups: &mut Vec<Group>,
    deployment: &Value,
    price_list: Option<&Value>,
    at: &str,
    left_out: &mut Vec<Invalid>,
) {
    let text = |pointer: &str| deployment.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let name = text("/model_name");
    let endpoint = match endpoint(text("/litellm_params/api_base")) {
        Ok(endpoint) if !name.is_empty() => endpoint,
        Ok(_) => {
            return left_out
                .push(Invalid::new(format!("{at}.model_name"), "missing; the deployment is left out"));
        }
        Err(why) => {
            let why = format!("{why}; the deployment is left out");
            return left_out.push(Invalid::new(format!("{at}.litellm_params.api_base"), why));
        }
    };
    // `openai/org/model`: the first part is who speaks the API.
    let model = text("/litellm_params/model");
    let served = model.split_once('/').map_or(model, |(_, served)| served);
    let served = if served.is_empty() { name } else { served };
    let place = groups.iter().position(|group| group.name == name).unwrap_or_else(|| {
        let (name, served) = (name.to_owned(), served.to_owned());
        groups.push(Group { name, served, endpoints: Vec::new(), attributes: Map::new(), rates: None });
        groups.len() - 1
    });
    let Some(group) = groups.get_mut(place) else { return };
    if group.served != served {
        let why =
            format!("{served:?}, but {:?} elsewhere in the group; the deployment is left out", group.served);
        return left_out.push(Invalid::new(format!("{at}.litellm_params.model"), why));
    }
    if group.endpoints.contains(&endpoint) {
        let why = format!("{endpoint} is in the group already; the deployment is left out");
        return left_out.push(Invalid::new(format!("{at}.litellm_params.api_base"), why));
    }
    let mut attributes = Map::new();
    for section in ["model_info", "litellm_params"] {
        for (key, value) in deployment.get(section).and_then(Value::as_object).into_iter().flatten() {
            if let Some((_, own)) = ATTRIBUTES.iter().find(|(theirs, _)| theirs == key) {
                attributes.insert((*own).to_owned(), number(value));
            } else if !["model", "api_base", "id", "base_model"].contains(&key.as_str())
                && !prices::is_carried(key)
            {
                left_out.push(Invalid::new(format!("{at}.{section}.{key}"), "not carried over"));
            }
        }
    }
    if !attributes.is_empty() {
        group.attributes.insert(endpoint.clone(), attributes.into());
    }
    group.endpoints.push(endpoint);
    let Some(rates) = rates(deployment, price_list, at, left_out) else { return };
    let (dearer, differ) = group.rates.unwrap_or(rates).dearer(rates);
    if differ {
        let why = "prices are not those of the group's others; the dearest count for budgets";
        left_out.push(Invalid::new(at, why));
    }
    group.rates = Some(if differ { dearer } else { rates });
}

/// Some write numbers as texts, and some YAML readers take `1e-6` for one.
fn number(value: &Value) -> Value {
    let number = value.as_str().and_then(|text| serde_json::from_str::<serde_json::Number>(text).ok());
    number.map_or_else(|| value.clone(), Value::Number)
}

/// What a deployment's tokens cost: by its own settings, else by the price list, under `base_model` or its name.
fn rates(
    deployment: &Value,
    price_list: Option<&Value>,
    at: &str,
    left_out: &mut Vec<Invalid>,
) -> Option<Rates> {
    let mut own = Map::new();
    for section in ["model_info", "litellm_params"] {
        let settings = deployment.get(section).and_then(Value::as_object).into_iter().flatten();
        own.extend(settings.map(|(key, value)| (key.clone(), value.clone())));
    }
    let own = Rates::read(&own, at, left_out);
    own.or_else(|| {
        let names = ["/model_info/base_model", "/litellm_params/base_model", "/litellm_params/model"];
        let names = names.iter().filter_map(|name| deployment.pointer(name)?.as_str());
        let (name, listed) = names.filter_map(|name| prices::listed(price_list?, name)).next()?;
        Rates::read(listed, name, left_out)
    })
}

/// Where some deployments of a group have an `order`, the others come after them.
fn order(group: &mut Group) {
    let given = group.attributes.values().filter_map(|own| own.get(PRIORITY)?.as_u64());
    let Some(last) = given.max() else { return };
    for endpoint in &group.endpoints {
        let own = group.attributes.entry(endpoint.clone()).or_insert_with(|| json!({}));
        if let Some(own) = own.as_object_mut() {
            own.entry(PRIORITY).or_insert_with(|| last.saturating_add(1).into());
        }
    }
}

/// `http://10.0.0.1:8000/v1` as an endpoint.
fn endpoint(api_base: &str) -> Result<String, String> {
    if api_base.is_empty() {
        return Err("missing: a provider's own API is no endpoint".into());
    }
    let Some(rest) = api_base.strip_prefix("http://") else {
        return Err(format!("{api_base:?} is not http: Envoy's cluster would have to speak TLS"));
    };
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    if !["", "v1", "v1/"].contains(&path) {
        return Err(format!("{api_base:?} has a path of its own"));
    }
    match host.parse::<std::net::SocketAddr>() {
        Ok(address) => Ok(address.to_string()),
        Err(_) => Err(format!("{host:?} is not an IP address with a port")),
    }
}

/// `router_settings` as `choose`.
fn choose(settings: Option<&Value>, left_out: &mut Vec<Invalid>) -> Value {
    let mut choose = Map::new();
    let number = |key: &str| settings.and_then(|settings| settings.get(key)).and_then(Value::as_u64);
    for (key, value) in settings.and_then(Value::as_object).into_iter().flatten() {
        let at = format!("router_settings.{key}");
        match key.as_str() {
            "routing_strategy" => match weir::policy::Policy::read(value) {
                Ok(_) => {
                    choose.insert("policy".into(), value.clone());
                }
                Err(invalid) => left_out.push(Invalid::new(at, invalid.why)),
            },
            "num_retries" if value.is_u64() => {
                choose.insert("attempts".into(), value.as_u64().unwrap_or(0).saturating_add(1).into());
            }
            "allowed_fails" | "cooldown_time" if value.is_u64() => {}
            // What it turns on is always done here: `max_input_tokens` is kept to.
            "enable_pre_call_checks" if *value == Value::Bool(true) => {}
            "model_group_alias" => {}
            _ => left_out.push(Invalid::new(at, "not carried over")),
        }
    }
    // LiteLLM's own defaults, where one of the two is given.
    let (fails, cooldown_s) = (number("allowed_fails"), number("cooldown_time"));
    if fails.is_some() || cooldown_s.is_some() {
        let cooldown_ms = cooldown_s.unwrap_or(5).saturating_mul(1_000).max(1);
        let breaker = json!({
            "rules": [{
                "name": "allowed_fails",
                "failure_condition": {
                    "count": fails.unwrap_or(3).saturating_add(1),
                    "interval_ms": 60_000,
                    "status_code_ranges": [{"min": 401, "max": 401}, {"min": 404, "max": 404}, {"min": 408, "max": 408},
                                           {"min": 500, "max": 599}],
                    "error_reasons": ["connect", "reset", "timeout", "cut", "error", "garbage"],
                },
                "trip_duration_ms": cooldown_ms,
            }],
            "hold_off_ms": cooldown_ms,
        });
        choose.insert("breaker".into(), breaker);
    }
    choose.into()
}

/// Names that clients use and engines do not.
fn rules(groups: &[Group], aliases: Option<&Value>, left_out: &mut Vec<Invalid>) -> Vec<Value> {
    let rule = |name: &str, served: &str| json!({"models": [name], "targets": [{"model": served}]});
    let renamed = groups.iter().filter(|group| group.name != group.served);
    let mut rules: Vec<Value> = renamed.map(|group| rule(&group.name, &group.served)).collect();
    for (alias, target) in aliases.and_then(Value::as_object).into_iter().flatten() {
        let target = target.as_str().or_else(|| target.get("model").and_then(Value::as_str));
        match groups.iter().find(|group| Some(group.name.as_str()) == target) {
            Some(group) => rules.push(rule(alias, &group.served)),
            None => left_out.push(Invalid::new(
                format!("router_settings.model_group_alias.{alias}"),
                "names no group that is here",
            )),
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imported(yaml: &str) -> (Value, Vec<String>) {
        imported_with(yaml, None)
    }

    fn imported_with(yaml: &str, price_list: Option<&Value>) -> (Value, Vec<String>) {
        let imported = import(&crate::document::read_one(yaml.as_bytes()).unwrap(), price_list).unwrap();
        (imported.config, imported.left_out.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_model_list_becomes_pools_and_what_is_left_out_is_named() {
        let (config, left_out) = imported(
            "
model_list:
  - model_name: chat
    litellm_params: { model: hosted_vllm/org/chat-7b, api_base: 'http://10.0.0.1:8000/v1', weight: 3, rpm: 60, api_key: os.environ/KEY }
  - model_name: chat
    litellm_params: { model: hosted_vllm/org/chat-7b, api_base: 'http://10.0.0.2:8000', order: 2, max_parallel_requests: 8 }
    model_info: { id: two, input_cost_per_token: 0.000001 }
  - model_name: chat
    litellm_params: { model: azure/chat, api_base: 'https://x.example.com' }
  - model_name: small
    litellm_params: { model: openai/small, api_base: 'http://10.0.0.3:8000/v1/' }
router_settings:
  routing_strategy: simple-shuffle
  num_retries: 2
  allowed_fails: 3
  cooldown_time: 30
  model_group_alias: { gpt-4: chat, gpt-5: nothing }
  redis_host: localhost
litellm_settings: { drop_params: true }
",
        );
        let pick = &config["pick"];
        assert_eq!(pick["pools"][0]["models"], json!(["org/chat-7b"]));
        assert_eq!(pick["pools"][0]["endpoints"], json!(["10.0.0.1:8000", "10.0.0.2:8000"]));
        let attributes = &pick["pools"][0]["attributes"];
        assert_eq!(attributes["10.0.0.1:8000"], json!({"weight": 3, "rpm": 60, "priority": 3}));
        assert_eq!(
            attributes["10.0.0.2:8000"],
            json!({"priority": 2, "max_in_flight": 8, "input_cost_per_token": 0.000_001})
        );
        assert_eq!(pick["pools"][1]["models"], json!(["small"]));
        assert_eq!(
            (&pick["choose"]["policy"], &pick["choose"]["attempts"]),
            (&json!("simple-shuffle"), &json!(3))
        );
        let rule = &pick["choose"]["breaker"]["rules"][0];
        assert_eq!(
            (&rule["failure_condition"]["count"], &rule["trip_duration_ms"]),
            (&json!(4), &json!(30_000))
        );
        let renames = &config["extract"]["rewrite"]["rules"];
        assert_eq!(renames[0], json!({"models": ["chat"], "targets": [{"model": "org/chat-7b"}]}));
        assert_eq!(renames[1], json!({"models": ["gpt-4"], "targets": [{"model": "org/chat-7b"}]}));
        assert_eq!(pick, &config["scorer"], "both have the same");
        for place in [
            "model_list[0].litellm_params.api_key: ",
            "model_list[2].litellm_params.api_base: \"https://x.example.com\" is not http",
            "router_settings.redis_host: ",
            "router_settings.model_group_alias.gpt-5: names no group",
            "litellm_settings.drop_params: ",
        ] {
            assert!(left_out.iter().any(|line| line.starts_with(place)), "{place}: {left_out:?}");
        }
        assert_eq!(
            config["limit"]["cost"]["prices"]["models"],
            json!({"org/chat-7b": {"input": 1.0, "output": 0.0}})
        );
        assert!(left_out.iter().any(|line| line.starts_with("model_list[1].output_cost_per_token: missing")));
        assert_eq!(left_out.len(), 6, "{left_out:?}");
    }

    #[test]
    fn prices_are_a_deployments_own_else_the_lists_and_the_dearest_of_a_group_count() {
        let list = json!({
            "gpt-4o": {"input_cost_per_token": 2.5e-06, "output_cost_per_token": 1e-05, "cache_read_input_token_cost": 1.25e-06},
            "azure/other": {"input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06},
        });
        let yaml = "
model_list:
  - { model_name: a, litellm_params: { model: openai/gpt-4o, api_base: 'http://10.0.0.1:1' } }
  - { model_name: b, litellm_params: { model: hosted_vllm/b, api_base: 'http://10.0.0.2:1', input_cost_per_token: 0.000003,
      output_cost_per_token: '0.000004', cache_creation_input_token_cost: 0.1 }, model_info: { base_model: gpt-4o } }
  - { model_name: b, litellm_params: { model: hosted_vllm/b, api_base: 'http://10.0.0.3:1' }, model_info: { base_model: azure/other } }
  - { model_name: c, litellm_params: { model: hosted_vllm/c, api_base: 'http://10.0.0.4:1' } }
";
        let (config, left_out) = imported_with(yaml, Some(&list));
        let prices = &config["limit"]["cost"]["prices"];
        assert_eq!(
            prices["models"],
            json!({
                "gpt-4o": {"input": 2.5, "cached_input": 1.25, "output": 10.0},
                "b": {"input": 3.0, "cached_input": 3.0, "output": 4.0, "reasoning": 4.0},
            })
        );
        assert_eq!(prices["other"], json!({"input": 3.0, "output": 10.0}));
        assert!(left_out[0].starts_with("model_list[1].litellm_params.cache_creation_input_token_cost: "));
        assert!(left_out[1].starts_with("model_list[2]: prices are not those"), "{left_out:?}");
        assert_eq!(left_out.len(), 2, "{left_out:?}");
        assert_eq!(imported_with(yaml, None).0["limit"]["cost"]["prices"]["models"]["gpt-4o"], Value::Null);
    }

    #[test]
    fn what_makes_no_gateway_is_an_error() {
        for (yaml, at) in [("{}", "model_list"), ("model_list: []", "pools")] {
            assert_eq!(
                import(&crate::document::read_one(yaml.as_bytes()).unwrap(), None).unwrap_err().at,
                at,
                "{yaml}"
            );
        }
        let (config, left_out) = imported(
            "model_list: [{model_name: a, litellm_params: {model: openai/a, api_base: 'http://10.0.0.1:1'}}, {model_name: b, litellm_params: {model: openai/b}}]\nrouter_settings: {routing_strategy: guess}",
        );
        assert_eq!(config["pick"]["pools"].as_array().unwrap().len(), 1);
        assert!(left_out[0].starts_with("model_list[1].litellm_params.api_base: missing"), "{left_out:?}");
        assert!(left_out[1].starts_with("router_settings.routing_strategy: unknown policy"), "{left_out:?}");
    }
}
