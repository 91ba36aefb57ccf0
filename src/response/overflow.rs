//! Whether an engine's error says that the request does not fit into the model's context.
//!
//! That is the one fault of a client's that another backend may not find in the same request, and no status tells it from the others: it is a
//! 400 among many. Some APIs have a code for it (OpenAI `context_length_exceeded`, llama.cpp `exceed_context_size_error`); the others
//! say it in the message only, each version in its own words. So words are looked for that such messages have had, in the
//! message and nowhere else, since what else an error quotes may be the prompt.
//!
//! | API | its words |
//! |---|---|
//! | OpenAI, Azure, older vLLM | `maximum context length is 8192 tokens` |
//! | vLLM | `the model's context length is only …`, `longer than the maximum model length of …` |
//! | SGLang | `longer than the model's context length` |
//! | Anthropic | `prompt is too long: … tokens > … maximum`, `exceed context limit` |
//! | llama.cpp, llm-d's simulator | `exceeds the available context size`, `Prompt plus max_tokens is …, the limit is …` |
//! | TGI | `` `inputs` tokens + `max_new_tokens` must be <= … `` |
//! | Gemini, Bedrock | `exceeds the maximum number of tokens allowed`, `Input is too long` |

/// What an error of this kind is called in a [`super::Report`], whatever the engine calls it.
pub const TOO_LONG: &str = "context_length_exceeded";

const NAMES: [&str; 2] = [TOO_LONG, "exceed_context_size_error"];

const WORDS: [&str; 13] = [
    "context length",
    "context window",
    "context size",
    "context limit",
    "maximum model length",
    "max_seq_len",
    "prompt is too long",
    "input is too long",
    "too long to fit",
    "maximum number of tokens allowed",
    "tokens + `max_new_tokens` must be",
    "plus max_tokens is",
    "too large for model with",
];

/// Of an error with this type, code and message.
pub(super) fn is_overflow(kind: Option<&str>, code: Option<&str>, message: Option<&str>) -> bool {
    if [kind, code].into_iter().flatten().any(|name| NAMES.contains(&name)) {
        return true;
    }
    let message = message.unwrap_or_default().to_ascii_lowercase();
    WORDS.iter().any(|words| message.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::response::Reader;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn error(body: &str) -> Option<String> {
        let mut reader = Reader::new("application/json", "");
        reader.feed(body.as_bytes());
        reader.end(true).error
    }

    #[test]
    fn an_overflow_is_known_in_the_words_of_every_engine() {
        let messages = [
            "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4900 in the messages, 100 in the completion).",
            "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that `max_model_len` is no smaller.",
            "You passed 5000 input tokens and requested 10 output tokens. However, the model's context length is only 4096 tokens",
            "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
            "prompt is too long: 208310 tokens > 200000 maximum",
            "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000",
            "The input token count (1100000) exceeds the maximum number of tokens allowed (1048576).",
            "Prompt plus max_tokens is 2900, the limit is 2048.",
        ];
        for message in messages {
            let shapes = [
                serde_json::json!({"error": {"message": message, "type": "BadRequestError", "param": null, "code": 400}}),
                serde_json::json!({"object": "error", "message": message, "type": "BadRequestError", "code": 400}),
                serde_json::json!({"type": "error", "error": {"type": "invalid_request_error", "message": message}}),
            ];
            for body in shapes {
                assert_eq!(error(&body.to_string()).as_deref(), Some(TOO_LONG), "{body}");
            }
        }
        for body in [
            r#"{"error":{"message":"too many","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
            r#"{"error":{"code":400,"message":"try again","type":"exceed_context_size_error","n_ctx":4096}}"#,
            r#"{"error":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000","error_type":"validation"}"#,
        ] {
            assert_eq!(error(body).as_deref(), Some(TOO_LONG), "{body}");
        }
    }

    #[test]
    fn other_faults_and_prompts_that_are_quoted_are_none() {
        for body in [
            r#"{"error":{"message":"max_tokens must be at least 1","type":"BadRequestError","code":400}}"#,
            r#"{"error":{"message":"bad","type":"BadRequestError","input":"what is the context length?","code":400}}"#,
            r#"{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","code":404}}"#,
            r#"{"message":"prompt is too long"}"#,
            r#"{"choices":[{"message":{"content":"context length"}}]}"#,
        ] {
            assert_ne!(error(body).as_deref(), Some(TOO_LONG), "{body}");
        }
    }
}
