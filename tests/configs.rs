//! Every configuration that is shipped is right, and a misspelt one is refused where it is wrong.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use rig::{envoy_binary, filter_config, find_all, repository, shipped};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What envoy/backends.yaml has Envoy read.
const KEY: (&str, &str) = ("PROVIDER_API_KEY", "a key");

/// Runs `weir check` on files of the repository.
fn check(files: &[PathBuf]) -> Output {
    let weir = repository().join("dist/weir");
    assert!(weir.exists(), "no {}: run ./build.sh native", weir.display());
    Command::new(weir).current_dir(repository()).env(KEY.0, KEY.1).arg("check").args(files).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// Every YAML file under a directory.
fn yaml_files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(yaml_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            files.push(path);
        }
    }
    files
}

fn strings(value: &Value) -> Vec<&str> {
    value
        .as_array()
        .unwrap_or_else(|| panic!("no list: {value}"))
        .iter()
        .map(|value| value.as_str().unwrap())
        .collect()
}

#[test]
fn every_file_parses_and_weir_check_accepts_it() {
    let files = yaml_files(&repository().join("envoy"));
    assert!(files.len() >= 6, "{files:?}");
    let mut checked = Vec::new();
    for file in files {
        for document in serde_yaml_ng::Deserializer::from_str(&std::fs::read_to_string(&file).unwrap()) {
            let document: Value =
                serde::Deserialize::deserialize(document).unwrap_or_else(|e| panic!("{file:?}: {e}"));
            assert!(document.is_object(), "{file:?}");
        }
        if !file.ends_with("docker-compose.yaml") {
            checked.push(file);
        }
    }
    let output = check(&checked);
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn envoy_itself_accepts_what_is_shipped() {
    for file in ["envoy/envoy.yaml", "envoy/compare.yaml", "envoy/backends.yaml", "envoy/picker.yaml"] {
        let mut envoy = Command::new(envoy_binary().unwrap());
        envoy.env(KEY.0, KEY.1);
        envoy.current_dir(repository()).args(["--mode", "validate", "--disable-hot-restart", "-c", file]);
        let output = envoy.output().unwrap();
        assert!(output.status.success(), "{file}: {}", said(&output));
    }
}

/// Frames are of the client's cutting, and all requests share the connection that Envoy closes at its limit of them.
#[test]
fn one_clients_tiny_pieces_do_not_close_the_connection_to_the_picker() {
    let mut envoy = shipped("envoy/picker.yaml").unwrap();
    let named =
        find_all(&mut envoy, &|value| value["name"] == "picker" && value["load_assignment"].is_object());
    assert_eq!(named.len(), 1);
    let cluster = &named[0];
    let options = &cluster["typed_extension_protocol_options"]["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"];
    let most = &options["explicit_http_config"]["http2_protocol_options"]["max_outbound_frames"];
    // A body of the largest size in pieces of a byte.
    assert!(most.as_u64() > Some(32 << 20), "{most}");
}

#[test]
fn a_misspelt_file_is_refused_with_the_path_of_the_word() {
    const CHAIN: &str = "static_resources.listeners[0].filter_chains[0].filters[0].typed_config";
    let filter = |place: usize| format!("{CHAIN}.http_filters[{place}].typed_config.config");
    let cases = [
        (
            "envoy.yaml",
            "connect_timeout: 0.25s",
            "conect_timeout: 0.25s",
            "static_resources.clusters[2].conect_timeout".into(),
        ),
        ("envoy.yaml", "merge_slashes:", "merge_slash:", format!("{CHAIN}.merge_slash")),
        (
            "envoy.yaml",
            "max_body_bytes\"",
            "max_body_byte\"",
            format!("{}.configuration.value.request.max_body_byte", filter(0)),
        ),
        (
            "envoy.yaml",
            "\"timeout_ms\"",
            "\"timeot_ms\"",
            format!("{}.configuration.value.scorer.timeot_ms", filter(1)),
        ),
        (
            "envoy.yaml",
            "\"least_prefill\"",
            "\"lest_prefill\"",
            format!("{}.configuration.value.choose.policy", filter(1)),
        ),
        ("envoy.yaml", "{ \"models\"", "{ \"model\"", format!("{}.configuration.value.model", filter(2))),
        (
            "envoy.yaml",
            "stop_iteration: true",
            "stop_iteration: false",
            format!("{}.allow_on_headers_stop_iteration", filter(0)),
        ),
        (
            "compare.yaml",
            "\"demo-small\", \"weight\": 90",
            "\"demo-small\", \"wait\": 90",
            format!("{}.configuration.value.rewrite.rules[0].targets[0].wait", filter(0)),
        ),
        (
            "compare.yaml",
            "\"weight\": 10",
            "\"weight\": 0",
            format!("{}.configuration.value.rewrite.rules[0].targets[1].weight", filter(0)),
        ),
        (
            "compare.yaml",
            "\"policy\": \"least_prefill\"",
            "\"policy\": \"lest_prefill\"",
            format!("{}.configuration.value.pools[0].choose.policy", filter(1)),
        ),
        ("scorer.yaml", "policy:", "polici:", "choose.polici".into()),
        ("scorer.yaml", "\"127.0.0.1:8002\"", "\"localhost:8002\"", "pools[0].endpoints[1]".into()),
        ("scorer.yaml", "listen:", "lissen:", "lissen".into()),
        (
            "istio/pick-and-meter.yaml",
            "timeout_ms:",
            "timeout:",
            "documents[0].spec.pluginConfig.scorer.timeout".into(),
        ),
        (
            "limit.yaml",
            "{ \"tokens\": 100000",
            "{ \"token\": 100000",
            "typed_config.config.configuration.value.limits[0].windows[0].token".into(),
        ),
        ("istio/limit.yaml", "per_s: 60", "per_m: 1", "spec.pluginConfig.limits[0].windows[0].per_m".into()),
        ("istio/extract.yaml", "max_body_bytes\"", "max\"", "configuration.value.request.max".into()),
    ];
    let directory = tempfile::tempdir().unwrap();
    for (file, right, wrong, path) in cases {
        let text = std::fs::read_to_string(repository().join("envoy").join(file)).unwrap();
        assert!(text.contains(right), "{file} has no {right}");
        let changed = directory.path().join("changed.yaml");
        std::fs::write(&changed, text.replace(right, wrong)).unwrap();
        let output = check(&[changed]);
        assert!(!output.status.success(), "{file} is accepted with {wrong}");
        assert!(said(&output).contains(&format!("{path}: ")), "{path} expected:\n{}", said(&output));
    }
}

/// The configuration of a filter in envoy.yaml.
fn filter(envoy: &Value, name: &str) -> Value {
    let found = std::cell::RefCell::new(Value::Null);
    filter_config(&mut envoy.clone(), name, |config| *found.borrow_mut() = config.clone());
    found.into_inner()
}

#[test]
fn what_is_said_twice_is_said_the_same() {
    let (envoy, scorer) = (shipped("envoy/envoy.yaml").unwrap(), shipped("envoy/scorer.yaml").unwrap());
    let pick = filter(&envoy, "pick");
    assert_eq!(pick["pools"], scorer["pools"]);
    assert_eq!(pick["choose"], scorer["choose"]);
    assert_eq!(filter(&envoy, "extract")["request"]["block_tokens"], pick["choose"]["block_tokens"]);

    let clusters = envoy["static_resources"]["clusters"].as_array().unwrap();
    let addresses = |name: &str| -> Vec<String> {
        let cluster =
            clusters.iter().find(|cluster| cluster["name"] == name).unwrap_or_else(|| panic!("no {name}"));
        let endpoints = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"].as_array().unwrap().iter();
        let address = |endpoint: &Value| {
            let socket = &endpoint["endpoint"]["address"]["socket_address"];
            format!("{}:{}", socket["address"].as_str().unwrap(), socket["port_value"])
        };
        endpoints.map(address).collect()
    };
    let mut models = Vec::new();
    for pool in pick["pools"].as_array().unwrap() {
        assert_eq!(addresses(pool["name"].as_str().unwrap()), strings(&pool["endpoints"]));
        models.extend(strings(&pool["models"]));
    }
    assert_eq!(addresses(pick["scorer"]["cluster"].as_str().unwrap()), [scorer["listen"].as_str().unwrap()]);
    assert_eq!(strings(&filter(&envoy, "meter")["models"]), models);
}

/// The file that is mounted at a path of a container, and the container's other paths.
fn mounts(service: &Value) -> Vec<(PathBuf, String)> {
    let mount = |mount: &str| {
        let mut parts = mount.split(':');
        let (from, to) = (parts.next().unwrap(), parts.next().unwrap());
        (repository().join("envoy").join(from), to.to_owned())
    };
    service["volumes"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|volume| mount(volume.as_str().unwrap()))
        .collect()
}

#[test]
fn the_compose_file_starts_what_the_configurations_expect() {
    let text = std::fs::read_to_string(repository().join("envoy/docker-compose.yaml")).unwrap();
    let mut compose: serde_yaml_ng::Value = serde_yaml_ng::from_str(&text).unwrap();
    compose.apply_merge().unwrap();
    let compose = serde_json::to_value(compose).unwrap();
    let services = compose["services"].as_object().unwrap();
    let mut engines = Vec::new();
    for (name, service) in services {
        let command = strings(&service["command"]);
        let mounts = mounts(service);
        for (file, _) in &mounts {
            assert!(file.exists(), "{name}: {} is mounted and does not exist", file.display());
        }
        // A path on the command line, or in Envoy's configuration, is one that is mounted.
        let directory = service["working_dir"].as_str().unwrap_or("/");
        for file in command.iter().filter(|word| word.ends_with(".yaml")) {
            let path = Path::new(directory).join(file).display().to_string();
            assert!(mounts.iter().any(|(_, to)| *to == path), "{name}: nothing is mounted at {path}");
        }
        match service["network_mode"].as_str() {
            Some(mode) => {
                assert!(services.contains_key(mode.strip_prefix("service:").unwrap()), "{name}: {mode}")
            }
            None => assert_eq!(strings(&service["ports"]), ["8080:8080"]),
        }
        if service["image"].is_null() {
            let build = &service["build"];
            let context = repository().join("envoy").join(build["context"].as_str().unwrap());
            let dockerfile =
                std::fs::read_to_string(context.join(build["dockerfile"].as_str().unwrap())).unwrap();
            let stage = format!(" AS {}\n", build["target"].as_str().unwrap());
            assert!(dockerfile.contains(&stage), "{name}: the Dockerfile has no stage{stage}");
        }
        let option =
            |name: &str| command.iter().position(|word| *word == name).map(|place| command[place + 1]);
        engines
            .extend(option("--port").map(|port| (option("--model").unwrap(), format!("127.0.0.1:{port}"))));
    }
    let modules = shipped("envoy/envoy.yaml").unwrap().to_string();
    assert!(modules.contains("\"dist/extract.wasm\""), "found in the working directory");
    let scorer = shipped("envoy/scorer.yaml").unwrap();
    let mut expected = Vec::new();
    for pool in scorer["pools"].as_array().unwrap() {
        let model = pool["models"][0].as_str().unwrap();
        expected.extend(strings(&pool["endpoints"]).into_iter().map(|address| (model, address.to_owned())));
    }
    engines.sort_unstable();
    expected.sort_unstable();
    assert_eq!(engines, expected);
}
