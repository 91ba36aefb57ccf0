//! `label-selector-filter`, `by-label`, and the filters by role: endpoints by their labels.
//!
//! Labels are `attributes.ADDRESS.labels` of the pool. Roles are the label `llm-d.ai/role`: `prefill`, `decode`,
//! `encode`, `prefill-decode`, `encode-prefill`, `encode-prefill-decode`. An endpoint without a role decodes, and neither
//! prefills nor encodes for others. If nobody matches nobody is left.

use crate::invalid::Invalid;
use crate::policy::{Each, Keep, Known, Round};
use crate::random::Random;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

const ROLE: &str = "llm-d.ai/role";

type Labels = BTreeMap<String, String>;

/// The label of roles and an endpoint's in it, where that is a role which no filter knows.
pub fn odd_role(labels: &Labels) -> Option<(&'static str, &str)> {
    let role = labels.get(ROLE)?;
    let is_known = |part: &str| matches!(part, "prefill" | "decode" | "encode" | "both");
    (!role.split('-').all(is_known)).then_some((ROLE, role))
}

/// A selector as Kubernetes has it; all of it must hold.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Selector {
    match_labels: Labels,
    match_expressions: Vec<Expression>,
    #[serde(skip)]
    matches: Each<bool>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Expression {
    key: String,
    operator: Operator,
    #[serde(default)]
    values: Vec<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl Expression {
    fn holds(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        let listed = value.is_some_and(|value| self.values.contains(value));
        match self.operator {
            Operator::In => listed,
            Operator::NotIn => !listed,
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

impl Keep for Selector {
    fn keep(&mut self, round: &Round<'_>, keep: &mut [bool], _: &mut Random) {
        matching(&self.matches, round, keep);
    }

    fn meet(&mut self, endpoints: &[Known<'_>]) {
        let Self { match_labels, match_expressions, matches } = self;
        learn(matches, endpoints, |labels| {
            match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
                && match_expressions.iter().all(|expression| expression.holds(labels))
        });
    }
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ByLabel {
    label: String,
    #[serde(default)]
    valid_values: Vec<String>,
    #[serde(default)]
    allows_no_label: bool,
    #[serde(skip)]
    matches: Each<bool>,
}

impl Keep for ByLabel {
    fn keep(&mut self, round: &Round<'_>, keep: &mut [bool], _: &mut Random) {
        matching(&self.matches, round, keep);
    }

    fn meet(&mut self, endpoints: &[Known<'_>]) {
        let Self { label, valid_values, allows_no_label, matches } = self;
        learn(matches, endpoints, |labels| {
            labels.get(label).map_or(*allows_no_label, |value| valid_values.contains(value))
        });
    }
}

/// Those of a role, by the word that it has in the label.
fn role(word: &'static str, without: bool) -> Box<dyn Keep> {
    Box::new(Role { word, without, matches: Each::default() })
}

pub(super) fn decode(_: Value) -> Result<Box<dyn Keep>, Invalid> {
    Ok(role("decode", true))
}

pub(super) fn prefill(_: Value) -> Result<Box<dyn Keep>, Invalid> {
    Ok(role("prefill", false))
}

pub(super) fn encode(_: Value) -> Result<Box<dyn Keep>, Invalid> {
    Ok(role("encode", false))
}

#[derive(Debug)]
struct Role {
    word: &'static str,
    /// Those without a label have it.
    without: bool,
    matches: Each<bool>,
}

impl Keep for Role {
    fn keep(&mut self, round: &Round<'_>, keep: &mut [bool], _: &mut Random) {
        matching(&self.matches, round, keep);
    }

    fn meet(&mut self, endpoints: &[Known<'_>]) {
        let Self { word, without, matches } = self;
        learn(matches, endpoints, |labels| {
            labels.get(ROLE).map_or(*without, |roles| {
                roles == "both" && *word != "encode" || roles.split('-').any(|role| role == *word)
            })
        });
    }
}

fn learn(matches: &mut Each<bool>, endpoints: &[Known<'_>], holds: impl Fn(&Labels) -> bool) {
    matches.meet(endpoints);
    for (place, known) in endpoints.iter().enumerate() {
        if let Some(matches) = matches.at_mut(place) {
            *matches = holds(&known.attributes.labels);
        }
    }
}

fn matching(matches: &Each<bool>, round: &Round<'_>, keep: &mut [bool]) {
    for (keep, candidate) in keep.iter_mut().zip(round.candidates) {
        *keep = matches.at(candidate.place).copied().unwrap_or(false);
    }
}
