use super::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const CHAT: (&str, &str) = (":path", "/any/prefix/v1/chat/completions?x=/v1/messages");

fn config(json: &str) -> Config {
    crate::invalid::read(json.as_bytes()).unwrap()
}

fn planned(headers: &[(&str, &str)], config: &Config) -> Plan {
    plan(&Head::new([(":method", "POST")].into_iter().chain(headers.iter().copied()), config), false, config)
}

fn dialect(path: &str, config: &Config) -> Option<Dialect> {
    config.paths.dialect(path)
}

fn status(headers: &[(&str, &str)], config: &Config) -> (u16, String) {
    match planned(headers, config) {
        Plan::Refuse(refusal) => (refusal.status, refusal.message),
        other => panic!("{headers:?}: {other:?}"),
    }
}

#[test]
fn every_dialect_is_found_by_the_end_of_the_path() {
    let config = Config::default();
    for (path, name) in [
        ("/v1/chat/completions", "chat"),
        ("/v1/completions", "completions"),
        ("/openai/v1/responses", "responses"),
        ("/v1/embeddings", "embeddings"),
        ("/v1/moderations", "moderations"),
        ("/v1/images/generations", "images"),
        ("/v1/images/edits", "images"),
        ("/v1/images/variations", "images"),
        ("/v1/audio/speech", "speech"),
        ("/v1/audio/transcriptions", "transcriptions"),
        ("/v1/audio/translations", "transcriptions"),
        ("/v1/messages", "messages"),
        ("/v1/messages/count_tokens?beta=true", "count_tokens"),
        ("/inference/v1/generate", "tokens"),
        ("/generate", "generate"),
        ("/v2/rerank", "rerank"),
        ("/v1/score", "score"),
        ("/classify", "classify"),
        ("/pooling", "pooling"),
        ("/v1/chat/completion%73/?a", "chat"),
        ("/v1/chat%2Fcompletions", "chat"),
    ] {
        assert_eq!(dialect(path, &config).map(Dialect::name), Some(name), "{path}");
        assert_eq!(Dialect::of_name(name).map(Dialect::name), Some(name));
    }
    for path in [
        "/v1/models",
        "/v1/files",
        "/tokenize",
        "/v1/threads/t1/messages",
        "/v1/chat/completions/id",
        "/%zz",
        "/%",
        "/v1/messages/batches",
        "/?/v1/completions",
        "/v1/Chat/Completions",
        "*",
        "",
    ] {
        assert_eq!(dialect(path, &config), None, "{path}");
    }
    assert_eq!(Dialect::all().count(), 16);
}

#[test]
fn the_configuration_adds_paths_and_takes_them_away() {
    let config = config(r#"{"paths":{"/v2/chat":"chat","/score":"off","/internal/v1/completions":"off"}}"#);
    assert_eq!(dialect("/x/v2/chat", &config), Some(Dialect::Chat));
    assert_eq!(dialect("/v1/score", &config), None);
    assert_eq!(dialect("/internal/v1/completions", &config), None);
    assert_eq!(dialect("/v1/completions", &config), Some(Dialect::Completions));
    let again: Config = crate::invalid::read_value(serde_json::to_value(&config).unwrap()).unwrap();
    assert_eq!(again.paths, config.paths);
    for (paths, why) in [
        (r#"{"/x":"chet"}"#, "\"chet\" is unknown; expected off or one of chat, completions"),
        (r#"{"x":"chat"}"#, "starts with a slash"),
        (r#"{"/":"chat"}"#, "ends without one"),
        (r#"{"/x?y":"chat"}"#, "no ?"),
    ] {
        let json = format!(r#"{{"paths":{paths}}}"#);
        let wrong = crate::invalid::read::<Config>(json.as_bytes()).unwrap_err().to_string();
        assert!(wrong.starts_with("paths") && wrong.contains(why), "{wrong}");
    }
    let wrong = crate::invalid::read::<Config>(br#"{"session_headers":["a b"]}"#).unwrap_err().to_string();
    assert!(wrong.contains("session_headers") && wrong.contains("no name of a header"), "{wrong}");
}

#[test]
fn only_requests_for_inference_are_held() {
    let config = Config::default();
    let json = ("content-type", "application/json");
    assert!(matches!(planned(&[CHAT, json], &config), Plan::Read(_)));
    for method in ["GET", "HEAD", "OPTIONS", "DELETE", "PUT", "CONNECT"] {
        let head = Head::new([(":method", method), CHAT, ("upgrade", "websocket")], &config);
        assert_eq!(plan(&head, false, &config), Plan::Pass, "{method}");
    }
    for path in ["/v1/files", "/inference.GRPCInferenceService/ModelInfer"] {
        for more in
            [json, ("content-type", "application/grpc"), ("upgrade", "x"), ("content-encoding", "zip")]
        {
            assert_eq!(planned(&[(":path", path), more], &config), Plan::Pass, "{path} {more:?}");
        }
    }
    // On the path of a dialect they could only be a way around the gateway.
    assert_eq!(status(&[CHAT, ("upgrade", "websocket")], &config).0, 400);
    assert_eq!(status(&[CHAT, ("content-type", "application/grpc+proto")], &config).0, 415);
    let head = Head::new([(":method", "POST"), CHAT], &config);
    assert!(matches!(plan(&head, true, &config), Plan::Refuse(refusal) if refusal.status == 400));
    assert_eq!(status(&[CHAT, ("content-length", "999999999")], &config).0, 413);
}

#[test]
fn content_types_are_read_or_named() {
    let config = Config::default();
    for kind in [
        "application/json",
        "Application/JSON; charset=UTF-8",
        "application/json;",
        "application/json; charset=\"utf8\"",
        "application/vnd.x+json",
        "application/json; charset=us-ascii",
    ] {
        assert!(matches!(planned(&[CHAT, ("content-type", kind)], &config), Plan::Read(_)), "{kind}");
    }
    assert!(matches!(planned(&[CHAT], &config), Plan::Read(_)), "none is JSON");
    for (kind, named) in [
        ("text/plain", "text/plain"),
        ("application/x-www-form-urlencoded", "urlencoded"),
        ("application/json; charset=utf-16", "utf-16"),
        ("application/json; charset=latin1", "latin1"),
        ("application/json, application/json", "application/json, application/json"),
        ("application/json; charset", "cannot be understood"),
        ("multipart/form-data; boundary=x", "no multipart bodies"),
        ("multipart/mixed; boundary=x", "multipart/mixed"),
    ] {
        let (status, message) = status(&[CHAT, ("content-type", kind)], &config);
        assert!(status == 415 && message.contains(named), "{kind}: {status} {message}");
    }
    let audio = (":path", "/v1/audio/transcriptions");
    assert!(matches!(
        planned(&[audio, ("content-type", "multipart/form-data; boundary=x")], &config),
        Plan::Read(_)
    ));
    for kind in [
        "multipart/form-data",
        "multipart/form-data; boundary=\"\"",
        "multipart/form-data; boundary=a; boundary=b",
    ] {
        assert_eq!(status(&[audio, ("content-type", kind)], &config).0, 415, "{kind}");
    }
    let twice = [CHAT, ("content-type", "application/json"), ("content-type", "application/json")];
    assert_eq!(status(&twice, &config).0, 415);
}

#[test]
fn compressed_bodies_are_refused_unless_configured() {
    let (refuse, read) = (Config::default(), config(r#"{"compressed":"read"}"#));
    for coding in ["gzip", "x-gzip", "deflate", "br", "GZIP", "identity, gzip"] {
        let headers = [CHAT, ("content-encoding", coding)];
        let (status, message) = status(&headers, &refuse);
        assert!(status == 415 && message.contains(coding), "{message}");
        assert!(matches!(planned(&headers, &read), Plan::Read(_)), "{coding}");
    }
    for coding in ["zstd", "gzip, br", "gzip, gzip", "compress"] {
        assert_eq!(status(&[CHAT, ("content-encoding", coding)], &read).0, 415, "{coding}");
    }
    let layers = [CHAT, ("content-encoding", "gzip"), ("content-encoding", "br")];
    assert_eq!(status(&layers, &read).0, 415);
    let audio = [
        (":path", "/v1/audio/transcriptions"),
        ("content-type", "multipart/form-data; boundary=x"),
        ("content-encoding", "gzip"),
    ];
    assert!(status(&audio, &read).1.contains("on multipart bodies"));
    assert!(matches!(planned(&[CHAT, ("content-encoding", "identity")], &refuse), Plan::Read(_)));
}
