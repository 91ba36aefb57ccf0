//! Whether filters and clusters fit, which no test of one part shows.
//!
//! A filter that calls a cluster that is not there gets no answer, and goes by its way without one: limits that nobody shares,
//! choices without the scorer. It is a warning only: clusters may come later, from a control plane.
//!
//! `pick` asks its engines how they are through the pool's cluster: an address that the cluster lacks is answered for by another of
//! it. Where statuses are retried, `breaker` has to stand in the cluster, or `pick` hears of the last attempt only. And where `pick`'s list is
//! followed Envoy does not look at what it knows of an endpoint's health itself.

use super::report::{Part, Report, join};
use super::walk::get;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

/// Compares what every filter in a bootstrap calls with its static clusters.
pub(super) fn check(bootstrap: &Map<String, Value>, report: &mut Report) {
    let clusters = clusters(bootstrap);
    let mut found = unseen_attempts(bootstrap, &report.parts);
    found.extend(unasked_health(bootstrap, &report.parts));
    found.extend(missing_scorers(&clusters, &report.parts));
    for (pick, at) in filters(&report.parts, "pick") {
        let signals = serde_json::from_value::<weir::signals::Config>(pick["signals"].clone());
        let (Ok(signals), Some(pools)) = (signals, pick["pools"].as_array()) else { continue };
        for (nth, pool) in pools.iter().enumerate() {
            let text = |field: &str| pool[field].as_str();
            let name = text("cluster").or_else(|| text("name")).unwrap_or_default();
            let pool_at = join(&at, "pools") + &format!("[{nth}]");
            let Some(own) = clusters.get(name) else {
                let why =
                    format!("no static cluster is named {name:?}, through which engines are to be asked");
                found.push((join(&pool_at, "cluster"), why));
                continue;
            };
            let endpoints = pool["endpoints"].as_array().into_iter().flatten().filter_map(Value::as_str);
            for (nth, endpoint) in endpoints.enumerate() {
                let asked_at = signals.asked_at(endpoint).map(|at| at.to_string()).unwrap_or_default();
                if own.as_ref().is_some_and(|own| !own.contains(&asked_at)) {
                    let why = format!("{asked_at} is not in cluster {name:?}: another would answer for it");
                    found.push((join(&pool_at, "endpoints") + &format!("[{nth}]"), why));
                }
            }
        }
    }
    found.into_iter().for_each(|(at, why)| report.warn(at, why));
}

/// The effective configurations of every filter of this name, alone or in `chain`, and where they stand.
fn filters<'p>(parts: &'p [Part], name: &'static str) -> impl Iterator<Item = (&'p Value, String)> {
    parts.iter().filter_map(move |Part { of, at, effective }| match *of {
        of if of == name => Some((effective, at.clone())),
        "chain" => Some((&effective[name], join(at, name))),
        _ => None,
    })
}

/// The clusters that are to lead to a scorer and are not there.
fn missing_scorers(
    clusters: &BTreeMap<&str, Option<BTreeSet<String>>>,
    parts: &[Part],
) -> Vec<(String, String)> {
    let limits = filters(parts, "limit").map(|(limit, at)| (&limit["share"], join(&at, "share")));
    let picks = filters(parts, "pick").map(|(pick, at)| (&pick["scorer"], join(&at, "scorer")));
    let mut called = Vec::new();
    for (config, at) in limits.chain(picks) {
        called.extend(config["cluster"].as_str().map(|name| (name, join(&at, "cluster"))));
        let replicas = config["replicas"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let at = join(&at, "replicas");
        called.extend(replicas.enumerate().map(|(nth, name)| (name, format!("{at}[{nth}]"))));
    }
    called.retain(|(name, _)| !clusters.contains_key(name));
    let why = |name| format!("no static cluster is named {name:?}, which is to lead to a scorer");
    called.into_iter().map(|(name, at)| (at, why(name))).collect()
}

/// The clusters of pools in which nobody sees attempts that are retried for their status.
fn unseen_attempts(bootstrap: &Map<String, Value>, parts: &[Part]) -> Vec<(String, String)> {
    const WHY: &str = "statuses are retried (retriable_status_codes) and no breaker is among its http_filters: pick will \
                       take an endpoint that is busy for one that is broken";
    if !bootstrap.values().any(retries_statuses) {
        return Vec::new();
    }
    let places = pool_clusters(bootstrap, parts).into_iter().map(|(at, _)| at);
    let sees = |at: &String| {
        let within = format!("{at}.");
        parts.iter().any(|part| part.of == "breaker" && part.at.starts_with(&within))
    };
    places.filter(|at| !sees(at)).map(|at| (at, WHY.to_owned())).collect()
}

/// What clusters of pools say of health, where that is not looked at.
fn unasked_health(bootstrap: &Map<String, Value>, parts: &[Part]) -> Vec<(String, String)> {
    const WHY: &str = "override_host, which follows pick's list, does not look at it: the breaker puts endpoints out \
                       (choose.breaker, with active_probe), and one that leaves pick's list is drained";
    let given = |(at, cluster): (String, &Value)| {
        let names = ["health_checks", "outlier_detection"].into_iter();
        let names = names.filter(|name| field(cluster, name).is_some_and(|value| !value.is_null()));
        names.map(|name| (join(&at, name), WHY.to_owned())).collect::<Vec<_>>()
    };
    pool_clusters(bootstrap, parts).into_iter().flat_map(given).collect()
}

/// The static clusters to which a `pick` sends, and where they stand.
fn pool_clusters<'b>(bootstrap: &'b Map<String, Value>, parts: &[Part]) -> Vec<(String, &'b Value)> {
    let pools: Vec<&Value> =
        filters(parts, "pick").filter_map(|(pick, _)| pick["pools"].as_array()).flatten().collect();
    let of_pool = |cluster: &Value| {
        let name = field(cluster, "name").unwrap_or(&Value::Null);
        pools.iter().any(|pool| {
            if pool["cluster"].is_null() { &pool["name"] == name } else { &pool["cluster"] == name }
        })
    };
    let clusters = get(bootstrap, "static_resources").and_then(|all| field(all, "clusters")?.as_array());
    let clusters = clusters.into_iter().flatten().enumerate().filter(|(_, cluster)| of_pool(cluster));
    clusters.map(|(nth, cluster)| (format!("static_resources.clusters[{nth}]"), cluster)).collect()
}

fn retries_statuses(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.iter().any(retries_statuses),
        Value::Object(map) => {
            map.get("retriable_status_codes").and_then(Value::as_array).is_some_and(|codes| !codes.is_empty())
                || map.values().any(retries_statuses)
        }
        _ => false,
    }
}

/// The static clusters by name, with their addresses where these are written down there.
fn clusters(bootstrap: &Map<String, Value>) -> BTreeMap<&str, Option<BTreeSet<String>>> {
    let clusters = get(bootstrap, "static_resources").and_then(|all| field(all, "clusters"));
    let addresses = |cluster| {
        let groups = field(field(cluster, "load_assignment")?, "endpoints")?.as_array()?.iter();
        let endpoints = groups.filter_map(|group| field(group, "lb_endpoints")?.as_array()).flatten();
        Some(endpoints.filter_map(address).collect())
    };
    let clusters = clusters.and_then(Value::as_array).into_iter().flatten();
    clusters.filter_map(|cluster| Some((field(cluster, "name")?.as_str()?, addresses(cluster)))).collect()
}

fn address(endpoint: &Value) -> Option<String> {
    let socket = field(field(field(endpoint, "endpoint")?, "address")?, "socket_address")?;
    let ip: IpAddr = field(socket, "address")?.as_str()?.parse().ok()?;
    let port = u16::try_from(field(socket, "port_value")?.as_u64()?).ok()?;
    Some(SocketAddr::new(ip, port).to_string())
}

fn field<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    get(value.as_object()?, name)
}
