//! What filters behind `extract` act on.

use super::body::Body;
use super::caller::{Kind, word};
use super::{Config, Dialect, Incoming};

/// What the request told us, without a byte of the prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The API the client speaks.
    pub dialect: Dialect,
    /// The model to be served: the one asked for, unless [`crate::rewrite`] chose another. `None` only in dialects where a
    /// request may leave it out.
    pub model: Option<String>,
    /// The model asked for, where another is served.
    pub rewritten_from: Option<String>,
    /// The model that `model` is an adapter of.
    pub base_model: Option<String>,
    /// The client asks for a stream. A hint: what comes is decided by the answer's content type.
    pub stream: bool,
    /// Estimate of the prompt, in tokens: its bytes, templated, by what is learned of the model ([`super::Ratios`]).
    pub prompt_tokens: u32,
    /// By what is configured, where that is less. What is learned is in part others' to say, so nobody is refused for it alone.
    pub firm_prompt_tokens: Option<u32>,
    /// The prompt in units of prefix blocks, one begun counted whole: what share of it blocks are. See [`crate::block`].
    pub prompt_units: u32,
    /// The most output tokens the client allows over all choices; `None` when it set no bound.
    pub max_output_tokens: Option<u32>,
    /// The fewest output tokens that it asks for, over all choices (vLLM's `min_tokens`); 0 when it does not say.
    pub min_output_tokens: u32,
    /// Answers asked for, over all prompts; `None` when nobody knows.
    pub choices: Option<u32>,
    /// How hard the model shall think, in the API's word.
    pub effort: Option<String>,
    /// The most tokens it may think. They are part of the output.
    pub thinking_tokens: Option<u32>,
    /// Milliseconds to the first token that the client asks for.
    pub slo_ttft_ms: Option<u32>,
    /// Milliseconds per further token that it asks for.
    pub slo_tpot_ms: Option<u32>,
    /// How often it has been tried before, by the client's library or by a proxy on the way here, as they say.
    pub retries: u32,
    /// Milliseconds that the client gives it, from its first byte to the end of the answer.
    pub timeout_ms: Option<u32>,
    /// Somebody who may is to be told why the request went where it did.
    pub explain: bool,
    /// vLLM's priority: lower comes first.
    pub priority: Option<i32>,
    /// The name of an objective.
    pub objective: Option<String>,
    /// The service tier asked for, as `flex`.
    pub tier: Option<String>,
    /// Hash of who pays.
    pub tenant: Option<u64>,
    /// Hash of the conversation, or of an agent's run.
    pub session: Option<u64>,
    /// Hash of the tenant's user.
    pub user: Option<u64>,
}

impl Facts {
    /// Nothing is known but the dialect.
    pub fn of(dialect: Dialect) -> Self {
        Self {
            dialect,
            model: None,
            rewritten_from: None,
            base_model: None,
            stream: false,
            prompt_tokens: 0,
            firm_prompt_tokens: None,
            prompt_units: 0,
            max_output_tokens: None,
            min_output_tokens: 0,
            choices: Some(1),
            effort: None,
            thinking_tokens: None,
            slo_ttft_ms: None,
            slo_tpot_ms: None,
            retries: 0,
            timeout_ms: None,
            explain: false,
            priority: None,
            objective: None,
            tier: None,
            tenant: None,
            session: None,
            user: None,
        }
    }

    /// Takes another estimate of the prompt, a learned one.
    pub fn estimate(&mut self, learned: u32) {
        let configured = std::mem::replace(&mut self.prompt_tokens, learned);
        self.firm_prompt_tokens = Some(configured).filter(|configured| *configured < learned);
    }

    /// All but the session and the prompt's size.
    pub(super) fn new(incoming: &Incoming, model: Option<String>, body: &Body<'_>, config: &Config) -> Self {
        let Incoming { dialect, caller, .. } = incoming;
        Self {
            base_model: model.as_ref().and_then(|model| config.adapters.get(model)).cloned(),
            model,
            stream: body.stream,
            max_output_tokens: dialect.output_bound(body),
            min_output_tokens: dialect.output_floor(body),
            choices: dialect.choices(body),
            effort: body.effort().and_then(|text| word(&text)),
            thinking_tokens: body.thinking_tokens().map(|most| u32::try_from(most).unwrap_or(u32::MAX)),
            priority: body.priority(),
            slo_ttft_ms: caller.slo_ms(0),
            slo_tpot_ms: caller.slo_ms(1),
            retries: caller.retries(),
            timeout_ms: caller.timeout_ms(body.stream),
            objective: caller.objective(),
            tier: body.service_tier.as_deref().and_then(word),
            tenant: caller.tenant(),
            user: body.user().map(|name| config.id(Kind::User, &name)),
            ..Self::of(*dialect)
        }
    }
}
