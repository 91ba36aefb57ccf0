//! The shipped configuration, with this run's addresses in it.

use crate::repository;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::path::Path;

/// Reads a YAML file of the repository.
pub fn shipped(path: &str) -> Result<Value> {
    let text = std::fs::read_to_string(repository().join(path)).with_context(|| path.to_owned())?;
    serde_yaml_ng::from_str(&text).with_context(|| path.to_owned())
}

/// Puts the addresses of this run into Envoy's configuration. Without a scorer `pick` loses its `scorer` key.
pub(crate) fn place(
    envoy: &mut Value,
    addresses: &[Vec<String>; 2],
    port: u16,
    admin_port: u16,
    scorer_port: Option<u16>,
    access_log: &Path,
) {
    envoy["admin"]["address"]["socket_address"]["port_value"] = admin_port.into();
    let listener = &mut envoy["static_resources"]["listeners"][0];
    listener["address"]["socket_address"] = json!({"address": "127.0.0.1", "port_value": port});
    for cluster in envoy["static_resources"]["clusters"].as_array_mut().expect("clusters") {
        let pool = match cluster["name"].as_str() {
            Some("small") => Some(0),
            Some("large" | "trial") => Some(1),
            _ => None,
        };
        let ours: Vec<String> = match pool {
            Some(pool) => addresses[pool].clone(),
            None => vec![format!("127.0.0.1:{}", scorer_port.unwrap_or(1))],
        };
        cluster["load_assignment"]["endpoints"][0]["lb_endpoints"] =
            ours.iter().map(|a| endpoint(a)).collect();
    }
    for log in find_all(envoy, &|value| value["typed_config"]["log_format"].is_object()) {
        log["name"] = "envoy.access_loggers.file".into();
        let typed = &mut log["typed_config"];
        typed["@type"] = "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog".into();
        typed["path"] = access_log.display().to_string().into();
    }
    for module in
        find_all(envoy, &|value| value["filename"].as_str().is_some_and(|name| name.ends_with(".wasm")))
    {
        let path = repository().join(module["filename"].as_str().expect("a file name"));
        module["filename"] = path.display().to_string().into();
    }
    filter_config(envoy, "pick", |pick| {
        for pool in pick["pools"].as_array_mut().expect("pools") {
            let of = usize::from(pool["name"] == "large" || pool["name"] == "trial");
            pool["endpoints"] = addresses[of].clone().into();
        }
        if scorer_port.is_none() {
            pick.as_object_mut().expect("an object").remove("scorer");
        }
    });
}

/// Puts `limit` behind `extract`, with a configuration of the test's.
pub(crate) fn limit(envoy: &mut Value, mut filter: Value, config: &Value) {
    filter_config(&mut filter, "limit", |own| *own = config.clone());
    for filters in find_all(envoy, &is_list) {
        filters.as_array_mut().expect("a list").insert(1, filter.clone());
    }
}

fn is_list(value: &Value) -> bool {
    value.as_array().is_some_and(|list| list.iter().any(|filter| filter["name"] == "extract"))
}

/// Makes the filters one, with the same configuration.
pub(crate) fn join(envoy: &mut Value) {
    let chain = RefCell::new(json!({}));
    for name in ["extract", "limit", "pick", "meter"] {
        filter_config(envoy, name, |config| chain.borrow_mut()[name] = config.clone());
    }
    for filters in find_all(envoy, &is_list) {
        let filters = filters.as_array_mut().expect("a list");
        filters.retain(|filter| !["limit", "pick", "meter"].iter().any(|name| filter["name"] == *name));
        for plugin in
            filters.iter_mut().flat_map(|filter| find_all(filter, &|value| value["vm_config"].is_object()))
        {
            plugin["name"] = "chain".into();
            plugin["root_id"] = "chain".into();
            plugin["vm_config"]["vm_id"] = "weir-chain".into();
            let file = repository().join("dist/chain.wasm");
            plugin["vm_config"]["code"]["local"]["filename"] = file.display().to_string().into();
            plugin["configuration"]["value"] = chain.borrow().to_string().into();
        }
    }
}

fn endpoint(address: &str) -> Value {
    let (host, port) = address.rsplit_once(':').expect("address:port");
    let port: u16 = port.parse().expect("a port");
    json!({"endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}})
}

/// Has a cluster lead to one address of loopback.
pub fn lead_cluster(envoy: &mut Value, name: &str, address: &str) {
    for cluster in find_all(envoy, &|value| value["load_assignment"]["cluster_name"] == name) {
        cluster["load_assignment"]["endpoints"][0]["lb_endpoints"] = json!([endpoint(address)]);
    }
}

/// Has a gateway ask these two scorers, through the clusters of `envoy/replicas.yaml`.
pub fn with_replicas(envoy: &mut Value, scorers: &[String; 2], scorer: &Value) {
    let mut replicas = shipped("envoy/replicas.yaml").expect("a shipped file");
    let clusters = replicas["static_resources"]["clusters"].as_array_mut().expect("clusters");
    for (cluster, url) in clusters.iter_mut().zip(scorers) {
        let address = url.trim_start_matches("http://");
        cluster["load_assignment"]["endpoints"][0]["lb_endpoints"] = json!([endpoint(address)]);
    }
    let own = envoy["static_resources"]["clusters"].as_array_mut().expect("clusters");
    own.retain(|cluster| cluster["name"] != "scorer");
    own.append(clusters);
    filter_config(envoy, "pick", |pick| {
        pick["scorer"] = json!({"cluster": "scorer-1", "replicas": ["scorer-2"]});
        let fields = scorer.as_object().expect("an object").clone();
        pick["scorer"].as_object_mut().expect("an object").extend(fields);
    });
}

/// Changes the plugin configuration of a filter of Envoy's configuration, also where it is a part of `chain`.
pub fn filter_config(envoy: &mut Value, name: &str, change: impl Fn(&mut Value)) {
    for plugin in find_all(envoy, &|value| value["vm_config"].is_object()) {
        let own = plugin["name"] == name;
        if !own && plugin["name"] != "chain" {
            continue;
        }
        let text = &mut plugin["configuration"]["value"];
        let mut config: Value = serde_json::from_str(text.as_str().expect("JSON text")).expect("JSON");
        match own {
            true => change(&mut config),
            false => config.get_mut(name).into_iter().for_each(&change),
        }
        *text = config.to_string().into();
    }
}

/// An edit that gives all pools this breaker.
pub fn breaker(config: Value) -> crate::Edit {
    Box::new(move |envoy| filter_config(envoy, "pick", |pick| pick["choose"]["breaker"] = config.clone()))
}

/// An edit that has endpoints chosen whatever their answers were.
pub fn no_breaker() -> crate::Edit {
    breaker(json!({"rules": [], "hold_off_ms": 0, "max_retry_after_ms": 0}))
}

/// Puts `opening` into the clusters, behind `breaker`.
pub fn with_opening(envoy: &mut Value) {
    let mut filter = shipped("envoy/opening.yaml").expect("a shipped file");
    let file = repository().join("dist/opening.wasm").display().to_string();
    for code in find_all(&mut filter, &|value| value["filename"].is_string()) {
        code["filename"] = file.clone().into();
    }
    let in_cluster = |value: &Value| {
        value.as_array().is_some_and(|list| list.iter().any(|part| part["name"] == "breaker"))
    };
    for filters in find_all(envoy, &in_cluster) {
        filters.as_array_mut().expect("a list").insert(1, filter.clone());
    }
}

/// Puts other endpoints into a pool: into its cluster and into `pick`.
pub fn place_pool(envoy: &mut Value, pool: usize, addresses: &[String]) {
    let name = ["small", "large"][pool];
    for cluster in find_all(envoy, &|value| value["load_assignment"]["cluster_name"] == name) {
        cluster["load_assignment"]["endpoints"][0]["lb_endpoints"] =
            addresses.iter().map(|address| endpoint(address)).collect();
    }
    filter_config(envoy, "pick", |pick| pick["pools"][pool]["endpoints"] = addresses.into());
}

/// All values anywhere in a configuration that a test holds for; not those within another that is found.
pub fn find_all<'v>(value: &'v mut Value, wanted: &dyn Fn(&Value) -> bool) -> Vec<&'v mut Value> {
    if wanted(value) {
        return vec![value];
    }
    match value {
        Value::Array(list) => list.iter_mut().flat_map(|value| find_all(value, wanted)).collect(),
        Value::Object(map) => map.values_mut().flat_map(|value| find_all(value, wanted)).collect(),
        _ => Vec::new(),
    }
}
