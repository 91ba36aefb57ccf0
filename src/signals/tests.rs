use super::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

#[test]
fn what_is_absent_is_unknown_and_never_zero() {
    let reading = read("vllm:num_requests_running{engine=\"0\"} 9\nvllm:num_requests_waiting NaN\n");
    assert_eq!((reading.waiting, reading.running, reading.kv_usage), (None, Some(9.0), None));
    assert_eq!(read("process_resident_memory_bytes 5\n"), Reading::default());
    assert!(!read("<html>not found</html>").says_anything());
}

#[test]
fn ranks_are_summed_where_they_differ_and_not_where_they_repeat() {
    let text = "sglang:num_queue_reqs{tp_rank=\"0\",dp_rank=\"0\"} 3\nsglang:num_queue_reqs{tp_rank=\"1\",dp_rank=\"0\"} 3\n\
                sglang:num_queue_reqs{tp_rank=\"0\",dp_rank=\"1\"} 4\nsglang:token_usage{tp_rank=\"0\",dp_rank=\"0\"} 0.9\n\
                sglang:token_usage{tp_rank=\"0\",dp_rank=\"1\"} 0.1\n";
    let reading = read(text);
    assert_eq!((reading.waiting, reading.kv_usage), (Some(7.0), Some(0.9)));
    let ranks = reading.ranks.unwrap();
    assert_eq!((ranks["0"].waiting, ranks["1"].kv_usage), (Some(3.0), Some(0.1)));
}

/// With DP attention SGLang's ranks are numbered through: the second data-parallel rank of four begins at `tp_rank` 2.
#[test]
fn the_first_rank_of_each_data_parallel_rank_counts_whatever_its_number() {
    let line = |metric: &str, tp: u8, dp: u8, value: f64| {
        format!("sglang:{metric}{{tp_rank=\"{tp}\",pp_rank=\"0\",dp_rank=\"{dp}\"}} {value}\n")
    };
    let queue = [(0, 0, 0.0), (1, 0, 0.0), (2, 1, 90.0), (3, 1, 90.0)];
    let usage = [(0, 0, 0.1), (2, 1, 0.97)];
    let of = |metric: &str, rows: &[(u8, u8, f64)]| {
        rows.iter().map(|(tp, dp, value)| line(metric, *tp, *dp, *value)).collect::<String>()
    };
    let reading = read(&(of("num_queue_reqs", &queue) + &of("token_usage", &usage)));
    assert_eq!((reading.waiting, reading.kv_usage), (Some(90.0), Some(0.97)));
    let ranks = reading.ranks.unwrap();
    assert_eq!((ranks["1"].waiting, ranks["1"].kv_usage), (Some(90.0), Some(0.97)));
}

#[test]
fn a_counter_that_a_rank_does_not_show_for_once_is_not_fewer() {
    let of = |rows: &[(u8, &str)]| {
        let rows = rows
            .iter()
            .map(|(rank, count)| format!("vllm:prompt_tokens_total{{engine=\"{rank}\"}} {count}\n"));
        read(&format!("vllm:num_requests_running 1\n{}", rows.collect::<String>())).totals
    };
    let both = of(&[(0, "50"), (1, "70")]);
    assert_eq!(both.len(), 2);
    for partial in [of(&[(0, "51")]), of(&[(0, "51"), (1, "NaN")])] {
        assert_eq!(partial.len(), 1, "of the other nothing is known");
        assert!(partial.iter().all(|(what, count)| both[what] <= *count));
    }
}

#[test]
fn a_rank_and_an_adapter_per_line_are_read_in_one_pass() {
    let line = |n: u32| format!("vllm:num_requests_waiting{{engine=\"{n}\"}} 1\n");
    let names: Vec<String> = (0..20_000).map(|n| format!("a{n}")).collect();
    let adapters = format!("vllm:lora_requests_info{{running_lora_adapters=\"{}\"}} 1\n", names.join(","));
    let reading = read(&(adapters + &(0..20_000).map(line).collect::<String>()));
    assert_eq!((reading.waiting, reading.ranks.unwrap().len()), (Some(20_000.0), 20_000));
    assert_eq!(reading.adapters.unwrap().running, names);
}

#[test]
fn the_newest_row_of_adapters_counts_for_each_rank() {
    let row = |engine: u8, running: &str, at: f64| {
        format!(
            "vllm:lora_requests_info{{engine=\"{engine}\",max_lora=\"2\",running_lora_adapters=\"{running}\",waiting_lora_adapters=\"\"}} {at}\n"
        )
    };
    let rows = [row(0, "old", 1.0), row(0, "a,b", 3.0), row(1, "", 9.0), row(1, "c", 2.0)].concat();
    let lora = read(&format!("vllm:num_requests_running 1\n{rows}")).adapters.unwrap();
    assert_eq!((lora.running, lora.max), (vec!["a".to_owned(), "b".to_owned()], Some(2)));
}

#[test]
fn the_size_of_kv_memory_is_found_for_each_engine() {
    let tokens = |text: &str| read(text).kv_tokens;
    let vllm =
        "vllm:num_requests_running 1\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"10\"} 1\n";
    assert_eq!(tokens(vllm), Some(160));
    assert_eq!(tokens("sglang:num_running_reqs 1\nsglang:max_total_num_tokens 500\n"), Some(500));
    let trt =
        "trtllm_num_requests_running 1\ntrtllm_kv_cache_tokens_per_block 32\ntrtllm_kv_cache_max_blocks 10\n";
    assert_eq!(tokens(trt), Some(320));
    assert_eq!(tokens("llamacpp:requests_processing 1\n"), None);
}

#[test]
fn a_number_that_no_count_has_is_unknown() {
    for wrong in ["-8", "NaN", "+Inf", "1e300"] {
        let reading = read(&format!("vllm:num_requests_running {wrong}\nvllm:num_requests_waiting 3\n"));
        assert_eq!((reading.running, reading.waiting), (None, Some(3.0)), "{wrong}");
    }
}
