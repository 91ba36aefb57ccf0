//! The LoRA adapters in an engine's list of models.
//!
//! ```text
//! {"data": [{"id": "base", "parent": null}, {"id": "my-lora", "parent": "base"}]}
//! ```
//!
//! A model that has a `parent` is an adapter of it: vLLM and SGLang list so what they would serve under a name of its own. The
//! list says which adapters an engine knows, not which are in its memory at the moment; that is in its metrics.

use serde::Deserialize;

#[derive(Deserialize)]
struct List {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
    #[serde(default)]
    parent: Option<String>,
}

/// Most adapters of one engine that are read. Of a longer list nothing is known: those that were cut off would count as
/// not served.
const MOST: usize = 4_096;

/// The names of the adapters that a list of models has. `None` for what is no such list, or too long a one: then nothing
/// is known.
pub fn read(json: &[u8]) -> Option<Vec<String>> {
    let List { data } = serde_json::from_slice(json).ok()?;
    let adapters = data.into_iter().filter(|model| model.parent.is_some());
    let names: Vec<String> = adapters.map(|model| model.id).collect();
    (names.len() <= MOST).then_some(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn what_has_a_parent_is_an_adapter_and_what_is_no_list_says_nothing() {
        let list = br#"{"object":"list","data":[
            {"id":"demo-chat-8b","object":"model","root":"/models/demo","parent":null,"max_model_len":4096},
            {"id":"fin-notes-lora","object":"model","root":"/loras/fin","parent":"demo-chat-8b"},
            {"id":"other"}]}"#;
        assert_eq!(read(list), Some(vec!["fin-notes-lora".to_owned()]));
        assert_eq!(read(br#"{"data":[]}"#), Some(vec![]));
        for nothing in [&b"<html>"[..], b"{}", br#"{"data":[{"parent":"x"}]}"#, b"", b"[]"] {
            assert_eq!(read(nothing), None);
        }
        let of = |count: usize| {
            let models: Vec<String> =
                (0..count).map(|n| format!(r#"{{"id":"a{n}","parent":"b"}}"#)).collect();
            read(format!(r#"{{"data":[{}]}}"#, models.join(",")).as_bytes()).map(|names| names.len())
        };
        assert_eq!(
            (of(MOST), of(MOST + 1)),
            (Some(MOST), None),
            "of a list that is too long nothing is known"
        );
    }
}
