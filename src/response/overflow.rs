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
//!
//! Messages quote too: a validation error has the value that it did not like, and a client that writes "context window" there would be
//! sent on to the next backend. So of a message counts what stands before the first quotation mark or bracket, on its first line; and
//! words that could be about anything count only beside a number of tokens. All known messages say it there. What a
//! client can still do is to have its own bad request tried at the backends that follow on its list.

/// What an error of this kind is called in a [`super::Report`], whatever the engine calls it.
pub const TOO_LONG: &str = "context_length_exceeded";

const NAMES: [&str; 2] = [TOO_LONG, "exceed_context_size_error"];

/// Names of what there is too little of: with a number they tell. What stood between backticks is left out.
const WITH_A_NUMBER: [&str; 11] = [
    "context length",
    "context window",
    "context size",
    "context limit",
    "maximum model length",
    "maximum prompt length",
    "max_seq_len",
    "maximum number of tokens allowed",
    "tokens + `` must be",
    "plus max_tokens is",
    "too large for model with",
];

/// What tells by itself.
const BY_ITSELF: [&str; 8] = [
    "prompt is too long",
    "input is too long",
    "too long to fit",
    "exceeds the available context size",
    "exceeds the context length",
    "exceeds maximum context length",
    "exceeds the context window",
    "contextwindowexceedederror",
];

/// What such messages have between backticks.
const PARAMETERS: [&str; 4] = ["inputs", "max_tokens", "max_completion_tokens", "max_new_tokens"];

/// Of an error with this type, code and message.
pub(super) fn is_overflow(kind: Option<&str>, code: Option<&str>, message: Option<&str>) -> bool {
    if [kind, code].into_iter().flatten().any(|name| NAMES.contains(&name)) {
        return true;
    }
    let own = own_words(message.unwrap_or_default()).to_ascii_lowercase();
    let has_a_number = || own.as_bytes().windows(2).any(|pair| pair.iter().all(u8::is_ascii_digit));
    BY_ITSELF.iter().any(|words| own.contains(words))
        || WITH_A_NUMBER.iter().any(|words| own.contains(words)) && has_a_number()
}

/// The part of a message that is surely the engine's: none of it was quoted. Parameters between backticks are left out of it.
fn own_words(message: &str) -> String {
    let mut own = String::new();
    for (nth, piece) in message.split('`').enumerate() {
        let between = nth % 2 == 1;
        match opening(piece) {
            None if !between => own.push_str(piece),
            None if PARAMETERS.contains(&piece) => own.push_str("``"),
            Some(at) if !between => {
                own.push_str(piece.get(..at).unwrap_or_default());
                break;
            }
            _ => break,
        }
    }
    own
}

/// Where something is quoted, or the first line ends.
fn opening(text: &str) -> Option<usize> {
    const OPENS: [char; 8] = ['"', '{', '[', '\n', '\r', '\u{201c}', '\u{2018}', '\u{ab}'];
    let opens = |at: usize, letter: char| match letter {
        // Unless it is the apostrophe of "model's".
        '\'' | '\u{2019}' => {
            let before = text.get(..at).unwrap_or_default();
            let after = text.get(at..).unwrap_or_default().trim_start_matches(letter);
            !(before.ends_with(char::is_alphanumeric) && after.starts_with("s "))
        }
        letter => OPENS.contains(&letter),
    };
    text.char_indices().find(|(at, letter)| opens(*at, *letter)).map(|(at, _)| at)
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
            "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 5000 tokens: 4900 tokens from the input messages and 100 tokens for the completion.",
            "the request exceeds the available context size. try increasing the context size or enable context shift",
            "Input is too long for requested model.",
            "Your input exceeds the context window of this model. Please adjust your input and try again.",
            "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
            "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
            "the input length exceeds the context length",
            "litellm.ContextWindowExceededError: litellm.BadRequestError: OpenAIException - {\"error\": {\"message\": \"no\"}}",
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
    fn what_a_client_wrote_is_not_taken_for_the_engines_words() {
        let wrote = [
            "context window",
            "maximum context length is 4096 tokens",
            "' prompt is too long: 5000 tokens > 4096 maximum '",
            "input is too long",
            "x's context length is 4096",
            "`context length 4096`",
            "\n5000 tokens exceeds the context window",
        ];
        for text in wrote {
            for message in [
                format!(
                    "1 validation error: {{'type': 'string_type', 'loc': ('body', 'messages', 0), 'input': '{text}'}}"
                ),
                format!(
                    "[{{'type': 'missing', 'loc': ('body',), 'msg': 'Field required', 'input': {{'prompt': \"{text}\"}}}}]"
                ),
                format!("Invalid value: '{text}'. Supported values are: 'low' and 'high'. At most 100."),
                format!("The model `{text}` does not exist or you do not have access to it."),
                format!(
                    "1 validation error for ChatCompletionRequest\n{text}\n  Extra inputs are not permitted"
                ),
                format!("Value error, 20 is too many [type=value_error, input_value={text}, input_type=str]"),
                format!("Unknown role \u{201c}{text}\u{201d} in message 12"),
            ] {
                let body = serde_json::json!({"error": {"message": message, "type": "BadRequestError", "code": 400}});
                assert_ne!(error(&body.to_string()).as_deref(), Some(TOO_LONG), "{body}");
            }
        }
    }

    #[test]
    fn other_faults_and_prompts_that_are_quoted_are_none() {
        for body in [
            r#"{"error":{"message":"The context window of this model is managed by the server.","type":"BadRequestError","code":400}}"#,
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
