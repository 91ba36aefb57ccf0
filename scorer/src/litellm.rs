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
//! | `disable_cooldowns` | `choose.breaker` that has nobody out |
//!
//! Everything else is named with its path, and left out; so is a value that Weir does not take, and a deployment that is no endpoint: a
//! provider's host name, TLS, an API of another kind, a name for many models (`*`), a reference to the environment. Of
//! groups that one model serves the first is a pool; another with the same endpoints is a second name for it, and one with others
//! cannot be told apart once the name is the model's. What comes out has been read by the very filters' configuration types.

mod accepted;
mod prices;
mod settings;

pub use prices::import as import_prices;

use prices::Rates;
use serde_json::{Map, Value, json};
use std::net::{AddrParseError, SocketAddr};
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
    for (nth, deployment) in
        list.ok_or_else(|| Invalid::new("model_list", "missing, or no list"))?.iter().enumerate()
    {
        add(&mut groups, deployment, price_list, &format!("model_list[{nth}]"), &mut left_out);
    }
    if groups.is_empty() {
        let each: String = left_out.iter().map(|invalid| format!("\n{invalid}")).collect();
        return Err(Invalid::new("model_list", format!("no deployment can be carried over{each}")));
    }
    let aliases = same_model(&mut groups, &mut left_out);
    groups.iter_mut().for_each(order);
    let choose = settings::choose(document.get("router_settings"), &mut left_out);
    for (section, value) in document.as_object().into_iter().flatten() {
        if !["model_list", "router_settings"].contains(&section.as_str()) {
            let keys = value.as_object().into_iter().flatten().map(|(key, _)| format!("{section}.{key}"));
            left_out.extend(keys.map(|at| Invalid::new(at, "not carried over")));
        }
    }
    let rules =
        rules(&groups, &aliases, document.pointer("/router_settings/model_group_alias"), &mut left_out);
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
    if !deployment.is_object() {
        return left_out.push(Invalid::new(at, "is no deployment; it is left out"));
    }
    let text = |pointer: &str| deployment.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let name = text("/model_name");
    let endpoint = match endpoint(text("/litellm_params/api_base")) {
        Ok(endpoint) if !name.is_empty() => endpoint,
        Ok(_) => {
            return left_out.push(Invalid::new(
                format!("{at}.model_name"),
                "missing, or no text; the deployment is left out",
            ));
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
    if let Some((field, _)) =
        [("model_name", name), ("litellm_params.model", served)].iter().find(|(_, name)| name.contains('*'))
    {
        let why = "stands for many models; the deployment is left out";
        return left_out.push(Invalid::new(format!("{at}.{field}"), why));
    }
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
                match accepted::attribute(own, value) {
                    _ if value.is_null() => {}
                    Ok(value) => drop(attributes.insert((*own).to_owned(), value)),
                    Err(why) => left_out.push(Invalid::new(format!("{at}.{section}.{key}"), why)),
                }
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
    if api_base.starts_with("os.environ/") {
        return Err(format!("{api_base:?} is in the environment of LiteLLM; write its value here"));
    }
    let shown = without_secrets(api_base);
    let Some(rest) = api_base.strip_prefix("http://") else {
        return Err(format!("{shown:?} is not http: Envoy's cluster would have to speak TLS"));
    };
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    if !["", "v1", "v1/"].contains(&path) {
        return Err(format!("{shown:?} has a path of its own"));
    }
    let address = host.parse().or_else(|_| Ok(SocketAddr::new(host.parse()?, 80)));
    address
        .map(|address: SocketAddr| address.to_string())
        .map_err(|_: AddrParseError| format!("{shown:?} has no IP address, with or without a port"))
}

/// A URL without what may be a password or a key in it: messages are read by more people than configurations.
fn without_secrets(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    url.rsplit_once('@').map_or(url.to_owned(), |(_, host)| format!("…@{host}"))
}

/// Takes groups out whose model another one serves already; those with the same endpoints come back as names for it.
fn same_model(groups: &mut Vec<Group>, left_out: &mut Vec<Invalid>) -> Vec<(String, String)> {
    let mut aliases = Vec::new();
    let mut kept: Vec<Group> = Vec::new();
    for group in groups.drain(..) {
        let first = kept.iter().find(|first| first.served == group.served);
        match first.map(|first| (first, first.endpoints.iter().all(|own| group.endpoints.contains(own)))) {
            None => kept.push(group),
            Some((first, true)) if first.endpoints.len() == group.endpoints.len() => {
                aliases.push((group.name, group.served));
            }
            Some((first, _)) => {
                let why = format!(
                    "group {:?}: {:?} is what {:?} is served by, at other endpoints; the group is left out",
                    group.name, group.served, first.name
                );
                left_out.push(Invalid::new("model_list", why));
            }
        }
    }
    *groups = kept;
    aliases
}

/// Names that clients use and engines do not.
fn rules(
    groups: &[Group],
    second_names: &[(String, String)],
    aliases: Option<&Value>,
    left_out: &mut Vec<Invalid>,
) -> Vec<Value> {
    let rule = |name: &str, served: &str| json!({"models": [name], "targets": [{"model": served}]});
    let first_names = groups.iter().map(|group| (group.name.as_str(), group.served.as_str()));
    let names = first_names.chain(second_names.iter().map(|(name, served)| (name.as_str(), served.as_str())));
    let mut rules: Vec<Value> = names
        .clone()
        .filter(|(name, served)| name != served)
        .map(|(name, served)| rule(name, served))
        .collect();
    for (alias, target) in aliases.and_then(Value::as_object).into_iter().flatten() {
        let target = target.as_str().or_else(|| target.get("model").and_then(Value::as_str));
        let at = format!("router_settings.model_group_alias.{alias}");
        match names.clone().find(|(name, _)| Some(*name) == target) {
            Some(_) if names.clone().any(|(name, _)| name == alias.as_str()) => {
                left_out.push(Invalid::new(at, "is the name of a group, which is kept"));
            }
            Some((_, served)) => rules.push(rule(alias, served)),
            None => left_out.push(Invalid::new(at, "names no group that is here")),
        }
    }
    rules
}

#[cfg(test)]
mod tests;
