//! `weir check` on good files, and on files with one mistake each: the mistake is named with its path.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use std::path::PathBuf;
use std::process::{Command, Output};
use weir_scorer::check::{self, Report};

const GOOD: &str = include_str!("data/envoy.yaml");
const ISTIO: &str = include_str!("data/istio.yaml");
const CHAIN: &str = "static_resources.listeners[0].filter_chains[0].filters[0].typed_config";

fn plugin(nth: usize) -> String {
    format!("{CHAIN}.http_filters[{nth}].typed_config.config")
}

/// The report on `text` with `from`, which must be in it, written as `to`.
fn with(text: &str, from: &str, to: &str) -> Report {
    assert!(text.contains(from), "{from}");
    check::text(text.replacen(from, to, 1).as_bytes())
}

fn errors(report: &Report) -> Vec<String> {
    report.errors.iter().map(ToString::to_string).collect()
}

fn only_error(report: &Report) -> String {
    let errors = errors(report);
    assert_eq!(errors.len(), 1, "{errors:#?}");
    errors[0].clone()
}

#[test]
fn a_good_bootstrap_is_good() {
    let report = check::text(GOOD.as_bytes());
    assert!(errors(&report).is_empty() && report.warnings.is_empty(), "{report:#?}");
    assert_eq!(report.summary(), "3 filters: extract, pick, meter");
    assert!(report.is_bootstrap);
    assert_eq!(report.parts[0].at, format!("{}.configuration.value", plugin(0)));
    assert_eq!(report.parts[0].effective["request"]["max_blocks"], 10);
    assert_eq!(report.parts[0].effective["request"]["block_tokens"], 16, "a default");
    let json = serde_json::to_string(&weir_scorer::document::read_one(GOOD.as_bytes()).unwrap()).unwrap();
    assert!(check::text(json.as_bytes()).errors.is_empty(), "the same as JSON");
}

#[test]
fn a_misspelt_field_is_named_with_its_path() {
    let cases = [
        ("  listeners:", "  listners:", "static_resources.listners: ".to_owned(), "listeners"),
        ("      filter_chains:", "      filter_chain:", "static_resources.listeners[0].filter_chain: ".into(), "filter_chains"),
        ("route_config:", "route_confg:", format!("{CHAIN}.route_confg: "), "route_config"),
        ("domains:", "domians:", format!("{CHAIN}.route_config.virtual_hosts[0].domians: "), "domains"),
        ("timeout: 0s", "time_out: 0s", format!("{CHAIN}.route_config.virtual_hosts[0].routes[0].route.time_out: "), "timeout"),
        ("root_id: weir-extract", "rootid: weir-extract", format!("{}.rootid: ", plugin(0)), "root_id"),
        ("runtime:", "runtimes:", format!("{}.vm_config.runtimes: ", plugin(0)), "runtime"),
        ("lb_policy:", "lb_polcy:", "static_resources.clusters[0].lb_polcy: ".into(), "lb_policy"),
        ("port_value: 9001", "port: 9001", "static_resources.clusters[0].load_assignment.endpoints[0].lb_endpoints[0].endpoint.address.socket_address.port: ".into(), ""),
        ("\"max_blocks\"", "\"max_block\"", format!("{}.configuration.value.request.max_block: unknown field", plugin(0)), "max_blocks"),
        ("{\"models\"", "{\"model\"", format!("{}.configuration.value.model: unknown field", plugin(2)), "models"),
    ];
    for (right, wrong, at, meant) in cases {
        let error = only_error(&with(GOOD, right, wrong));
        assert!(error.starts_with(&at), "{error}");
        assert!(meant.is_empty() || error.ends_with(&format!("did you mean {meant}?")), "{error}");
    }
}

#[test]
fn all_mistakes_are_listed() {
    let text = GOOD.replace("domains:", "domians:").replace("\"max_blocks\"", "\"max_block\"");
    assert_eq!(check::text(text.as_bytes()).errors.len(), 2);
}

#[test]
fn the_switches_around_a_filter_are_checked() {
    let flag = "allow_on_headers_stop_iteration";
    let missing = only_error(&with(GOOD, &format!("{flag}: true"), "reload_config: {}"));
    assert!(missing.starts_with(&format!("{}.{flag}: extract needs `true`", plugin(0))), "{missing}");
    let surplus =
        only_error(&with(GOOD, "root_id: weir-pick", &format!("root_id: weir-pick\n{:26}{flag}: true", "")));
    assert!(surplus.starts_with(&format!("{}.{flag}: pick must not have it", plugin(1))), "{surplus}");
    let unsafe_ = with(GOOD, "failure_policy: FAIL_RELOAD", "failure_policy: FAIL_OPEN");
    assert!(unsafe_.errors.is_empty());
    assert_eq!(unsafe_.warnings[0].at, format!("{}.failure_policy", plugin(0)));
    let small =
        with(GOOD, "per_connection_buffer_limit_bytes: 67108864", "per_connection_buffer_limit_bytes: 65536");
    assert!(small.errors.is_empty());
    assert!(small.warnings[0].why.contains("no more than 65536"), "{:?}", small.warnings);
    let mixed = only_error(&with(GOOD, "pick.wasm", "meter.wasm"));
    assert!(
        mixed.starts_with(&format!("{}.vm_config: meter.wasm is the filter meter", plugin(1))),
        "{mixed}"
    );
}

#[test]
fn a_configuration_is_read_in_the_forms_that_envoy_hands_on() {
    let structured =
        with(GOOD, "StringValue, value: '{\"models\": [\"m\"]}'", "Struct, value: { models: [m] }");
    assert!(only_error(&structured).contains("hands a Struct to the filter as protobuf bytes"));
    let typed = GOOD.replace(
        "\"@type\": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm\n                      config:\n                          root_id: weir-meter",
        "\"@type\": type.googleapis.com/xds.type.v3.TypedStruct\n                      type_url: type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm\n                      value:\n                       config:\n                          root_id: weir-meter",
    );
    assert_ne!(typed, GOOD);
    let report = check::text(typed.as_bytes());
    assert!(report.errors.is_empty(), "{report:#?}");
    assert!(report.parts[2].at.contains("http_filters[2].typed_config.value.config.configuration"));
}

#[test]
fn istios_manifests_are_searched() {
    let report = check::text(ISTIO.as_bytes());
    assert!(report.errors.is_empty(), "{report:#?}");
    assert_eq!(report.summary(), "2 filters: extract, meter; 1 scorer");
    let patch = "documents[0].spec.configPatches[0].patch";
    let cases = [
        (
            "configPatches:",
            "configPatchs:",
            "documents[0].spec.configPatchs: unknown field; did you mean configPatches?".to_owned(),
        ),
        (
            "\"max_blocks\"",
            "\"max_block\"",
            format!("{patch}.value.typed_config.config.configuration.value.request.max_block: "),
        ),
        (
            "root_id: weir-extract",
            "rootid: weir-extract",
            format!("{patch}.value.typed_config.config.rootid: "),
        ),
        ("models: [m]", "model: [m]", "documents[1].spec.pluginConfig.model: ".into()),
        ("pluginConfig:", "pluginConf:", "documents[1].spec.pluginConf: ".into()),
        (
            "pluginName: weir-meter",
            "pluginName: weir-extract",
            "documents[1].spec: extract cannot be a WasmPlugin".into(),
        ),
        ("10.0.0.1:8000", "10.0.0.1", "documents[2].data[\"scorer.yaml\"].pools[0].endpoints[0]: ".into()),
    ];
    for (right, wrong, error) in cases {
        let errors = errors(&with(ISTIO, right, wrong));
        assert!(errors.iter().any(|own| own.starts_with(&error)), "{error}: {errors:#?}");
    }
}

#[test]
fn a_scorers_file_is_read_as_the_scorer_does() {
    let good = "{pools: [{name: a, models: [m], endpoints: ['10.0.0.1:80']}]}";
    let report = check::text(good.as_bytes());
    assert_eq!((report.errors.len(), report.summary().as_str()), (0, "1 scorer"));
    assert_eq!(report.parts[0].effective["choose"]["attempts"], 3);
    let wrong = only_error(&with(good, "endpoints", "endpoint"));
    assert!(
        wrong.starts_with("pools[0].endpoint: unknown field") && wrong.ends_with("did you mean endpoints?"),
        "{wrong}"
    );
    assert!(only_error(&with(good, "pools", "pool")).starts_with("pool: unknown field"));
    assert!(only_error(&check::text(b"a: 1")).contains("none of its fields is known (a)"));
    assert!(only_error(&check::text(b"a: [")).contains("line 2"));
}

fn program(folder: &std::path::Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("check").args(arguments).current_dir(folder).env("PATH", "/usr/bin:/bin").output().unwrap()
}

#[test]
fn the_program_says_file_path_why() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("good.yaml"), GOOD).unwrap();
    std::fs::write(folder.path().join("bad.yaml"), GOOD.replace("domains:", "domians:")).unwrap();
    let both = program(folder.path(), &["good.yaml", "bad.yaml", "none.yaml"]);
    assert_eq!(both.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&both.stdout), "good.yaml: ok (3 filters: extract, pick, meter)\n");
    let said = String::from_utf8_lossy(&both.stderr).into_owned();
    let lines: Vec<&str> = said.lines().collect();
    assert!(
        lines[0]
            .starts_with(&format!("bad.yaml: {CHAIN}.route_config.virtual_hosts[0].domians: unknown field")),
        "{said}"
    );
    assert!(lines[1].starts_with("none.yaml: cannot be read: "), "{said}");
    let effective = program(folder.path(), &["--effective", "good.yaml"]);
    assert_eq!(effective.status.code(), Some(0));
    let said = String::from_utf8_lossy(&effective.stdout).into_owned();
    let first: serde_json::Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&first["filter"], &first["config"]["request"]["max_blocks"]),
        (&"extract".into(), &10.into())
    );
    assert_eq!(program(folder.path(), &[]).status.code(), Some(2), "usage");
}

/// A stand-in for Envoy that refuses as it does; what is known without it is not said twice.
#[test]
fn an_envoys_reason_is_added_with_its_path() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let envoy: PathBuf = folder.path().join("envoy");
    let script = "#!/bin/sh\necho \"[x][critical] error initializing configuration 'f': Protobuf message (type T reason \
                  INVALID_ARGUMENT: invalid JSON in T  @ static_resources.listeners[0]: message L, near 1:1 (offset 0): \
                  no such field: 'oops') has unknown fields\" >&2\nexit 1\n";
    std::fs::write(&envoy, script).unwrap();
    std::fs::set_permissions(&envoy, std::fs::Permissions::from_mode(0o755)).unwrap();
    for (text, errors) in [
        (GOOD.to_owned(), 1),
        (GOOD.replacen("      filter_chains:", "      oops: 1\n      filter_chains:", 1), 1),
    ] {
        let file = folder.path().join("f.yaml");
        std::fs::write(&file, text).unwrap();
        let said = self::errors(&check::file(&file, Some(&envoy)));
        assert_eq!(said.len(), errors, "{said:?}");
        assert!(said[0].starts_with("static_resources.listeners[0].oops: "), "{said:?}");
    }
    let missing = check::file(&folder.path().join("f.yaml"), Some(&folder.path().join("nowhere")));
    assert!(missing.errors.iter().any(|error| error.why.contains("cannot be asked")), "{missing:?}");
}

#[test]
fn engines_that_cannot_be_asked_through_their_cluster_are_warned_of() {
    let asks = |pool: &str| {
        let pick = r#"{"pools": [{"name": "a", "models": ["m"], "endpoints": ["127.0.0.1:9001"]}]}"#;
        let asking = format!(r#"{{"pools": [{{"name": "a", "models": ["m"], {pool}}}], "signals": {{}}}}"#);
        let report = with(GOOD, pick, &asking);
        assert!(report.errors.is_empty(), "{report:#?}");
        report.warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let good = r#""cluster": "backends", "endpoints": ["127.0.0.1:9001"]"#;
    assert_eq!(asks(good), [""; 0]);
    let nobody = asks(r#""endpoints": ["127.0.0.1:9001"]"#).remove(0);
    assert!(nobody.contains("pools[0].cluster: no static cluster is named \"a\""), "{nobody}");
    let other = asks(r#""cluster": "backends", "endpoints": ["127.0.0.1:9001", "127.0.0.1:9002"]"#);
    assert!(other[0].contains("pools[0].endpoints[1]: 127.0.0.1:9002 is not in cluster"), "{other:?}");
}

#[test]
fn a_scorers_cluster_that_is_not_there_is_warned_of_in_each_filter_that_calls_it() {
    let pick = r#"{"pools": [{"name": "a", "models": ["m"], "endpoints": ["127.0.0.1:9001"]}]}"#;
    let calling = pick.replace("]}]}", r#"]}], "scorer": {"cluster": "CLUSTER"}}"#);
    let limit =
        r#"{"limits": [{"name": "l", "max_in_flight": 1}], "share": {"cluster": "CLUSTER", "id_seed": 1}}"#;
    let alone = GOOD.replace("weir-pick", "weir-limit").replace("pick.wasm", "limit.wasm");
    let both = format!(r#"{{"pick": {calling}, "limit": {limit}}}"#);
    let chain = GOOD.replace("weir-pick", "weir-chain").replace("pick.wasm", "chain.wasm");
    for (text, config, places) in [
        (GOOD, &calling[..], &["value.scorer.cluster: "][..]),
        (&alone, limit, &["value.share.cluster: "]),
        (&chain, &both, &["value.limit.share.cluster: ", "value.pick.scorer.cluster: "]),
    ] {
        for (cluster, places) in [("backends", &[][..]), ("nowhere", places)] {
            let report = with(text, pick, &config.replace("CLUSTER", cluster));
            let warnings = report.warnings.iter().map(ToString::to_string);
            let said: Vec<_> = warnings.filter(|line| line.contains("no static cluster")).collect();
            assert_eq!(said.len(), places.len(), "{report:#?}");
            for (line, place) in said.iter().zip(places) {
                assert!(line.contains(&format!("{place}no static cluster is named \"nowhere\"")), "{line}");
            }
        }
    }
}

/// The warnings of a good file that say that.
fn warned(text: &str, of: &str) -> Vec<String> {
    let report = check::text(text.as_bytes());
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    report.warnings.iter().map(ToString::to_string).filter(|line| line.contains(of)).collect()
}

#[test]
fn where_statuses_are_retried_and_nobody_sees_the_attempts_that_is_said() {
    let shipped = std::fs::read_to_string("../envoy/envoy.yaml").unwrap();
    let unseen = |text: &str| warned(text, "no breaker is among");
    assert_eq!(unseen(&shipped), [""; 0]);
    let (before, rest) = shipped.split_once("            - name: breaker\n").unwrap();
    let (_, after) = rest.split_once("            - name: envoy.filters.http.upstream_codec").unwrap();
    let without = format!("{before}            - name: envoy.filters.http.upstream_codec{after}");
    let said = unseen(&without);
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].starts_with("static_resources.clusters[0]: statuses are retried"), "{said:?}");
    assert_eq!(
        unseen(&without.replace(
            "retriable_status_codes: [429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 525, 526, 529, 530]",
            ""
        )),
        [""; 0]
    );
}

#[test]
fn what_envoy_alone_knows_of_health_is_said_to_be_looked_at_by_nobody() {
    let shipped = std::fs::read_to_string("../envoy/envoy.yaml").unwrap();
    let unasked = |text: &str| warned(text, "does not look at it");
    assert_eq!(unasked(&shipped), [""; 0]);
    let ejecting = "connect_timeout: 1s\n      outlier_detection: { consecutive_5xx: 3 }\n";
    let said = unasked(&shipped.replacen("connect_timeout: 1s\n", ejecting, 1));
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("static_resources.clusters[0].outlier_detection: override_host"), "{said:?}");
    let replicas = std::fs::read_to_string("../envoy/replicas.yaml").unwrap();
    assert_eq!(unasked(&replicas), [""; 0], "of a scorer Envoy may know");
}
