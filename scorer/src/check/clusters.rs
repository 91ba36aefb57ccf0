//! Whether `pick` can ask its engines how they are: its callouts go through a pool's cluster, which must have the endpoints
//! that the pool has. An address that the cluster lacks is answered for by another of it, which no test of one part shows.

use super::report::{Part, Report, join};
use super::walk::get;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

/// Compares the pools of every `pick` in a bootstrap with its static clusters.
pub(super) fn check(bootstrap: &Map<String, Value>, report: &mut Report) {
    let clusters = clusters(bootstrap);
    let mut found = Vec::new();
    for Part { of, at, effective } in &report.parts {
        let (pick, at) = match *of {
            "pick" => (effective, at.clone()),
            "chain" => (&effective["pick"], join(at, "pick")),
            _ => continue,
        };
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
