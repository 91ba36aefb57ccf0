//! Prefill and decode by two endpoints: `disagg-profile-handler` and what decides for it.
//!
//! The profile `decode` chooses where the request goes. Then the decider says whether its prompt is worth computing
//! elsewhere, and the profile `prefill` chooses where; `pick` names that in `x-prefiller-host-port`, on which the engine's
//! side acts.
//!
//! ```text
//! prefix-based-pd-decider    the uncached part on the decode endpoint is nonCachedTokens or more, the prompt promptTokens
//! load-based-pd-decider      (ours) the decode endpoint has queuedTokens or more waiting before this prompt
//! always-disagg-pd-decider   always
//! ```
//!
//! With `stageOrder: prefill-first` the decider is not asked: always. Neither profile here goes by what the other chose, so
//! which of them chooses first makes no difference.
//!
//! The first two may be had together: either is reason enough (`load-based-pd-decider` takes a `nonCachedTokens` too).
//! Without an endpoint for prefill the decode endpoint does it all; or with `onNoPrefill: refuse` (ours) there is no
//! choice, and the request is answered 503. llm-d's first releases went the first way without saying so, later ones the second.

use super::super::choose::Profile;
use super::super::{Candidate, Demand};
use crate::invalid::{Invalid, read_value};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;

/// How prefill is split off.
#[derive(Debug)]
pub(in crate::policy) struct Split {
    pub(in crate::policy) profile: Profile,
    pub(in crate::policy) decider: Box<dyn Decider>,
    pub(in crate::policy) no_prefill: NoPrefill,
}

/// Says whether a prompt is worth computing elsewhere than on the endpoint that decodes.
pub(in crate::policy) trait Decider: fmt::Debug + Send {
    fn splits(&self, demand: &Demand, decode: &Candidate) -> bool;
}

/// What happens when nobody can prefill.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::policy) enum NoPrefill {
    #[default]
    DecodeOnly,
    Refuse,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Handler {
    pub(super) stage_order: StageOrder,
    pub(super) profiles: Names,
    pub(super) deciders: Deciders,
    pub(super) on_no_prefill: NoPrefill,
}

impl Handler {
    /// The name of who decides; nobody does where prefill is always split off.
    pub(super) fn decider(&self) -> Option<&str> {
        self.deciders.prefill.as_deref().filter(|_| self.stage_order == StageOrder::DecodeFirst)
    }

    /// Whether prefill may be split off at all.
    pub(super) fn splits(&self) -> bool {
        self.decider().is_some() || self.stage_order == StageOrder::PrefillFirst
    }
}

/// Which profile chooses first.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum StageOrder {
    /// The one for decode: a decider looks at its choice.
    #[default]
    #[serde(alias = "DecodeFirst")]
    DecodeFirst,
    /// The one for prefill: nobody decides.
    #[serde(alias = "PrefillFirst")]
    PrefillFirst,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Names {
    pub(super) decode: String,
    pub(super) prefill: String,
}

impl Default for Names {
    fn default() -> Self {
        Self { decode: "decode".to_owned(), prefill: "prefill".to_owned() }
    }
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Deciders {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prefill: Option<String>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct ByPrefix {
    /// Never, when 0.
    non_cached_tokens: u32,
    prompt_tokens: u32,
}

impl Decider for ByPrefix {
    fn splits(&self, demand: &Demand, decode: &Candidate) -> bool {
        self.non_cached_tokens > 0
            && demand.prompt_tokens >= self.prompt_tokens
            && decode.uncached_tokens(demand) >= self.non_cached_tokens
    }
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct ByLoad {
    queued_tokens: u64,
    /// Reason enough by itself; never, when 0.
    non_cached_tokens: u32,
}

impl Default for ByLoad {
    fn default() -> Self {
        Self { queued_tokens: 16_384, non_cached_tokens: 0 }
    }
}

impl Decider for ByLoad {
    fn splits(&self, demand: &Demand, decode: &Candidate) -> bool {
        let long = self.non_cached_tokens > 0 && decode.uncached_tokens(demand) >= self.non_cached_tokens;
        long || decode.queued_tokens >= self.queued_tokens
    }
}

#[derive(Debug)]
struct Always;

impl Decider for Always {
    fn splits(&self, _: &Demand, _: &Candidate) -> bool {
        true
    }
}

pub(super) fn by_prefix(parameters: Value) -> Result<Box<dyn Decider>, Invalid> {
    Ok(Box::new(read_value::<ByPrefix>(parameters)?))
}

pub(super) fn by_load(parameters: Value) -> Result<Box<dyn Decider>, Invalid> {
    Ok(Box::new(read_value::<ByLoad>(parameters)?))
}

pub(super) fn always(_: Value) -> Result<Box<dyn Decider>, Invalid> {
    Ok(Box::new(Always))
}
