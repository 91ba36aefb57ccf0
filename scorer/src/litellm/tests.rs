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
    assert_eq!((&rule["failure_condition"]["count"], &rule["trip_duration_ms"]), (&json!(4), &json!(30_000)));
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
fn one_odd_value_spoils_nothing_but_itself() {
    let (config, left_out) = imported(
        r#"
model_list:
  - model_name: llama
    litellm_params: { model: hosted_vllm/org/llama, api_base: 'http://10.0.0.1:8000/v1', rpm: "60", tpm: 100_000, order: 1, weight: 0.7,
                      max_parallel_requests: "8", max_input_tokens: 8192.0, input_cost_per_token: null }
  - model_name: llama
    litellm_params: { model: openai/org/llama, api_base: 'http://10.0.0.2/v1', order: first, weight: -1, rpm: os.environ/RPM, tpm: [1] }
  - { model_name: llama, litellm_params: { model: openai/org/llama, api_base: os.environ/LLAMA } }
  - { model_name: llama, litellm_params: { model: ollama/llama3, api_base: 'http://localhost:11434' } }
  - { model_name: '*', litellm_params: { model: 'openai/*', api_base: 'http://10.0.0.9:8000/v1' } }
  - { model_name: 12, litellm_params: { model: openai/x, api_base: 'http://10.0.0.4:8000' } }
  - just text
  - null
  - { model_name: six, litellm_params: { model: hosted_vllm/six, api_base: 'http://[fd00::1]:8000/v1' } }
router_settings:
  num_retries: "3"
  allowed_fails: 0
  cooldown_time: 0.5
  fallbacks: [{ llama: [gpt-4o] }]
  model_group_alias: { gpt-4: llama, six: llama }
litellm_settings: { num_retries: 3 }
"#,
    );
    let pools = &config["pick"]["pools"];
    assert_eq!(pools[0]["endpoints"], json!(["10.0.0.1:8000", "10.0.0.2:80"]));
    assert_eq!(
        pools[0]["attributes"],
        json!({
            "10.0.0.1:8000": {"rpm": 60, "tpm": 100_000, "priority": 1, "weight": 0.7, "max_in_flight": 8, "max_input_tokens": 8192},
            "10.0.0.2:80": {"priority": 2},
        })
    );
    assert_eq!(pools[1]["endpoints"], json!(["[fd00::1]:8000"]));
    let choose = &config["pick"]["choose"];
    assert_eq!((&choose["attempts"], &choose["breaker"]["hold_off_ms"]), (&json!(4), &json!(500)));
    assert_eq!(choose["breaker"]["rules"][0]["failure_condition"]["count"], 1);
    let places: Vec<&str> = left_out.iter().filter_map(|line| line.split(": ").next()).collect();
    assert_eq!(
        places,
        [
            "model_list[1].litellm_params.order",
            "model_list[1].litellm_params.rpm",
            "model_list[1].litellm_params.tpm",
            "model_list[1].litellm_params.weight",
            "model_list[2].litellm_params.api_base",
            "model_list[3].litellm_params.api_base",
            "model_list[4].model_name",
            "model_list[5].model_name",
            "model_list[6]",
            "model_list[7]",
            "router_settings.fallbacks",
            "litellm_settings.num_retries",
            "router_settings.model_group_alias.six",
        ],
        "{left_out:#?}"
    );
}

#[test]
fn two_groups_of_one_model_are_two_names_or_one_is_left_out() {
    let (config, left_out) = imported(
        "
model_list:
  - { model_name: a, litellm_params: { model: openai/m, api_base: 'http://10.0.0.1:1' } }
  - { model_name: b, litellm_params: { model: openai/m, api_base: 'http://10.0.0.1:1' } }
  - { model_name: c, litellm_params: { model: openai/m, api_base: 'http://10.0.0.2:1' } }
router_settings: { model_group_alias: { d: b }, num_retries: 99999999999, allowed_fails: -1, cooldown_time: x, disable_cooldowns: true }
",
    );
    assert_eq!(config["pick"]["pools"].as_array().unwrap().len(), 1);
    let rules = config["extract"]["rewrite"]["rules"].as_array().unwrap();
    let names: Vec<_> = rules.iter().map(|rule| (&rule["models"][0], &rule["targets"][0]["model"])).collect();
    assert_eq!(
        names,
        ["a", "b", "d"].map(|name| (json!(name), json!("m"))).iter().map(|(a, b)| (a, b)).collect::<Vec<_>>()
    );
    assert_eq!(
        config["pick"]["choose"],
        json!({"breaker": {"rules": [], "hold_off_ms": 0, "max_retry_after_ms": 0}})
    );
    assert!(left_out[0].starts_with("model_list: group \"c\""), "{left_out:?}");
    for key in ["num_retries", "allowed_fails", "cooldown_time"] {
        assert!(
            left_out.iter().any(|line| line.starts_with(&format!("router_settings.{key}: "))),
            "{left_out:?}"
        );
    }
}

#[test]
fn what_makes_no_gateway_is_an_error() {
    for (yaml, at) in [("{}", "model_list"), ("model_list: []", "model_list")] {
        assert_eq!(
            import(&crate::document::read_one(yaml.as_bytes()).unwrap(), None).unwrap_err().at,
            at,
            "{yaml}"
        );
    }
    // Who has nothing but providers is told of each.
    let providers = "
model_list:
  - { model_name: a, litellm_params: { model: azure/a, api_base: 'https://x.example.com/?key=s3cret' } }
  - { model_name: b, litellm_params: { model: openai/b, api_base: 'http://me:s3cret@10.0.0.1:1/v2' } }
  - { model_name: c, litellm_params: { model: openai/c } }
";
    let why =
        import(&crate::document::read_one(providers.as_bytes()).unwrap(), None).unwrap_err().to_string();
    let lines: Vec<&str> = why.lines().collect();
    assert_eq!(lines[0], "model_list: no deployment can be carried over");
    assert!(
        lines[1].starts_with("model_list[0].litellm_params.api_base: \"https://x.example.com/\" is not http")
    );
    assert!(lines[2].starts_with("model_list[1].litellm_params.api_base: \"…@10.0.0.1:1/v2\" has a path"));
    assert!(lines[3].starts_with("model_list[2].litellm_params.api_base: missing"));
    let (config, left_out) = imported(
        "model_list: [{model_name: a, litellm_params: {model: openai/a, api_base: 'http://10.0.0.1:1'}}, {model_name: b, litellm_params: {model: openai/b}}]\nrouter_settings: {routing_strategy: guess}",
    );
    assert_eq!(config["pick"]["pools"].as_array().unwrap().len(), 1);
    assert!(left_out[0].starts_with("model_list[1].litellm_params.api_base: missing"), "{left_out:?}");
    assert!(left_out[1].starts_with("router_settings.routing_strategy: unknown policy"), "{left_out:?}");
}
