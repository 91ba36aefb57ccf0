//! Multipart and compressed bodies.

use super::*;
use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use std::io::Write;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const MODEL: &str = "Content-Disposition: form-data; name=\"model\"\r\n\r\nwhisper";

fn file(bytes: &str) -> String {
    format!(
        "Content-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\n{bytes}"
    )
}

fn form(parts: &[&str]) -> String {
    let parts: String = parts.iter().map(|part| format!("--XyZ\r\n{part}\r\n")).collect();
    format!("{parts}--XyZ--\r\n")
}

fn incoming(headers: &[(&str, &str)], config: &Config) -> Incoming {
    let head = Head::new([(":method", "POST")].iter().chain(headers).copied(), config);
    match plan(&head, false, config) {
        Plan::Read(incoming) => incoming,
        other => panic!("{other:?}"),
    }
}

fn upload() -> Incoming {
    let kind = ("content-type", "multipart/form-data; boundary=\"XyZ\"");
    incoming(&[(":path", "/v1/audio/transcriptions"), kind], &Config::default())
}

fn uploaded(body: &str) -> Result<Facts, String> {
    let read = upload().read(body.as_bytes(), &Config::default());
    read.map(|reading| reading.facts).map_err(|refusal| {
        assert_eq!(refusal.status, 400);
        refusal.message
    })
}

#[test]
fn the_model_may_come_after_a_large_file() {
    let sound = "\r\n-\r\n--Xy\0".repeat(300_000);
    let stream = "Content-Disposition: form-data; name=stream\r\n\r\ntrue";
    let prompt =
        "content-disposition:form-data;name=prompt\r\nContent-Type: text/plain; charset=utf-8\r\n\r\nTide.";
    let body = form(&[&file(&sound), stream, prompt, MODEL]);
    let config = Config::default();
    let incoming = upload();
    let reading = incoming.read(body.as_bytes(), &config).unwrap();
    assert_eq!((reading.facts.model.as_deref(), reading.facts.stream), (Some("whisper"), true));
    let prompt: Vec<_> = reading.prompt.iter().map(ToString::to_string).collect();
    assert_eq!(prompt, [format!("[file: {} bytes]", sound.len()), "prompt: Tide.".into()]);
    assert!(!reading.blocks.is_empty());
    let other = form(&[&file(&sound.replacen('-', "+", 1)), stream, MODEL]);
    assert_ne!(incoming.read(other.as_bytes(), &config).unwrap().blocks[0], reading.blocks[0]);
}

#[test]
fn preamble_and_epilogue_are_no_parts() {
    let body = form(&[MODEL]);
    for body in
        [body.clone(), format!("\r\n{body}"), format!("hello\r\n{body}bye"), body.trim_end().to_owned()]
    {
        assert_eq!(uploaded(&body).unwrap().model.as_deref(), Some("whisper"), "{body:?}");
    }
}

#[test]
fn parts_that_could_be_read_two_ways_are_refused() {
    let part = |head: &str, text: &str| format!("{head}\r\n\r\n{text}");
    let named = |name: &str, text: &str| part(&format!("Content-Disposition: form-data; {name}"), text);
    for (parts, why) in [
        (vec![file("x")], "model: missing"),
        (vec![MODEL.into(), MODEL.into()], "model: given more than once"),
        (vec![MODEL.into(), named("name=Model", "n")], "which some engines take for it"),
        (vec![named("name=model; filename=m", "n")], "model: a file"),
        (vec![named("name=model; filename*=utf-8''m", "n")], "model: a file"),
        (vec![named("name*=utf-8''model", "n"), MODEL.into()], "more than one way"),
        (vec![named("name=\"a\"; name=\"model\"", "n")], "more than one way"),
        (vec![named("name=\"mod\\el\"", "n"), MODEL.into()], "more than one way"),
        (vec![named("filename=x", "n"), MODEL.into()], "no name"),
        (vec![named("name=model", "a\r\nb")], "control character"),
        (vec![named("name=model", "")], "model: empty"),
        (vec![part("Content-Disposition: attachment; name=model", "n")], "more than one way"),
        (vec![part("Content-Disposition: form-data;\r\n name=model", "n")], "NAME: VALUE"),
        (vec![part("Content-Type: text/plain\r\n name=model", "n")], "NAME: VALUE"),
        (vec![part("Content-Disposition: form-data; name=model\nx: y", "n")], "NAME: VALUE"),
        (vec![part("nonsense", "n")], "NAME: VALUE"),
        (vec!["no headers".into()], "no headers"),
        (vec![String::new()], "no headers"),
        (
            vec![part(
                "Content-Disposition: form-data; name=model\r\nContent-Transfer-Encoding: base64",
                "bQ==",
            )],
            "UTF-8",
        ),
        (
            vec![part(
                "Content-Disposition: form-data; name=model\r\nContent-Type: text/plain; charset=utf-16",
                "m",
            )],
            "UTF-8",
        ),
    ] {
        let body = form(&parts.iter().map(String::as_str).collect::<Vec<_>>());
        let message = uploaded(&body).expect_err(&body);
        assert!(message.contains(why), "{parts:?}: {message}");
    }
    let latin: Vec<u8> =
        form(&[MODEL]).into_bytes().iter().map(|b| if *b == b'h' { 0xe9 } else { *b }).collect();
    assert!(upload().read(&latin, &Config::default()).unwrap_err().message.contains("not valid UTF-8"));
}

#[test]
fn the_boundary_stands_where_parts_begin_and_nowhere_else() {
    let good = form(&[&file("x"), MODEL]);
    for (body, why) in [
        (String::new(), "closing boundary"),
        ("{\"model\":\"m\"}".into(), "closing boundary"),
        (good.replace("--XyZ--", ""), "closing boundary"),
        (good.replace("x\r\n--XyZ", "x\n--XyZ"), "no part begins"),
        (good.replace("x\r\n--XyZ", "x--XyZ"), "no part begins"),
        (good.replace("x\r\n", "x\r\n--XyZa\r\n"), "no part begins"),
        (good.replace("x\r\n--XyZ\r\n", "x\r\n--XyZ\n"), "no part begins"),
        (good.replace("x\r\n--XyZ\r\n", "x\r\n--XyZ \r\n"), "no part begins"),
        (format!("{good}{good}"), "no part begins"),
        ("--XyZ\r\n--XyZ--".into(), "a part"),
    ] {
        let message = uploaded(&body).expect_err(&body);
        assert!(message.contains(why), "{body:?}: {message}");
    }
    let many = form(&vec![MODEL; 1001]);
    assert!(uploaded(&many).unwrap_err().contains("1000 parts"));
    for cut in 0..good.len() - 2 {
        let read = uploaded(&good[..cut]);
        assert!(read.is_err() || cut >= good.len() - 2, "cut at {cut}");
    }
}

const BODY: &str =
    r#"{"model":"m","messages":[{"role":"user","content":"so so so so so so so so so so so so"}]}"#;

fn packed(coding: &str, body: &[u8]) -> Vec<u8> {
    match coding {
        "gzip" => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(body).unwrap();
            encoder.finish().unwrap()
        }
        "zlib" => {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(body).unwrap();
            encoder.finish().unwrap()
        }
        _ => {
            let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(body).unwrap();
            encoder.finish().unwrap()
        }
    }
}

/// `BODY` in brotli, made by Google's encoder; nothing here can make it.
const BROTLI: &[u8] = include_bytes!("body.br");

fn decoded(coding: &str, body: &[u8], most: usize) -> Result<String, Refusal> {
    let config = Config { compressed: Compressed::Read, max_decoded_bytes: most, ..Config::default() };
    let headers = [(":path", "/v1/chat/completions"), ("content-encoding", coding)];
    let incoming = incoming(&headers, &config);
    incoming.decode(body, &config).map(|body| String::from_utf8(body.into_owned()).unwrap())
}

#[test]
fn each_coding_is_read() {
    let body = BODY.as_bytes();
    for (coding, packed) in [
        ("gzip", packed("gzip", body)),
        ("deflate", packed("zlib", body)),
        ("deflate", packed("raw", body)),
        ("br", BROTLI.to_vec()),
    ] {
        assert_eq!(decoded(coding, &packed, BODY.len()).as_deref(), Ok(BODY), "{coding}");
        assert_eq!(decoded(coding, &packed, BODY.len() - 1).unwrap_err().status, 413, "{coding}");
        for cut in 0..packed.len() {
            assert_eq!(
                decoded(coding, &packed[..cut], 1 << 20).unwrap_err().status,
                400,
                "{coding} cut at {cut}"
            );
        }
        let longer = [&packed[..], b"x"].concat();
        assert_eq!(decoded(coding, &longer, 1 << 20).unwrap_err().status, 400, "{coding} and more");
    }
}

#[test]
fn a_bomb_is_stopped_while_it_unpacks() {
    let bomb = packed("gzip", &vec![b' '; 50 << 20]);
    assert!(bomb.len() < 100_000);
    let refusal = decoded("gzip", &bomb, 1 << 20).unwrap_err();
    assert_eq!(refusal.status, 413);
    assert!(refusal.message.contains("1048576 bytes (max_decoded_bytes)"), "{}", refusal.message);
}

#[test]
fn what_an_engine_could_read_undecoded_is_refused() {
    for coding in ["gzip", "deflate", "br"] {
        let refusal = decoded(coding, format!(" \n{BODY}").as_bytes(), 1 << 20).unwrap_err();
        assert!(refusal.message.contains("plain JSON all the same"), "{coding}: {}", refusal.message);
    }
}
