//! Which pool a request belongs to, and which endpoint of it serves it.

use super::config::Config;
use super::hint::Subset;
use super::lease::Lease;
use super::message::{self, Headers};
use super::outcome::{Outcome, Refused};
use super::room::Room;
use crate::clock;
use crate::scorer::{self, Scorer};
use crate::tokens::{Reader, Unread};
use envoy_types::pb::google::protobuf::Struct;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weir::breaker::Shut;
use weir::kv;
use weir::pool::Spec;
use weir::random::Random;
use weir::request::{Dialect, Facts, Ratios, Refusal, Size};
use weir::wire::{self, Reserve, Reserved};

/// The pool has no endpoint, or none of those that the gateway allows. That may change soon.
const NOBODY: Shut = Shut { wait: Duration::from_secs(1), status: 503 };

/// The picker: the scorer's book, and what it takes to ask it for a request that nobody has read yet.
pub struct Picker {
    pub(super) scorer: Arc<Scorer>,
    pub(super) config: Config,
    by_model: HashMap<String, Arc<str>>,
    fallback: Option<Arc<str>>,
    /// Of bodies.
    pub(super) room: Arc<Room>,
    ratios: Mutex<Ratios>,
    ids: Mutex<Random>,
}

/// What is known of a request that wants an endpoint.
pub(super) struct Wish<'a> {
    /// What its body told.
    pub(super) facts: Option<&'a Facts>,
    /// Its dialect, or the one whose errors it is answered in.
    pub(super) dialect: Dialect,
    pub(super) blocks: &'a [u64],
    /// Its tokens, or why there are none, where the pool wants them.
    pub(super) tokens: Option<&'a Result<kv::Tokens, Unread>>,
    /// The bytes of its body, as far as they are known, where nothing has been read of it.
    pub(super) bytes: u64,
    /// The pool that the gateway has named.
    pub(super) pool: Option<&'a str>,
    /// The endpoints that the gateway allows.
    pub(super) hint: Option<&'a Subset>,
    /// The endpoints that a conformance test wants.
    pub(super) wanted: Option<&'a Subset>,
}

/// An endpoint is booked.
pub(super) struct Chosen {
    pub(super) lease: Lease,
    pub(super) metadata: Struct,
}

impl Picker {
    /// A picker of a scorer's pools, as they are configured.
    pub fn new(scorer: Arc<Scorer>, pools: &[Spec], config: &Config) -> Self {
        let named = |spec: &Spec| {
            let name: Arc<str> = spec.name.as_str().into();
            spec.models.iter().map(move |model| (model.clone(), Arc::clone(&name))).collect::<Vec<_>>()
        };
        scorer.picker().know();
        Self {
            scorer,
            by_model: pools.iter().flat_map(named).collect(),
            fallback: config.fallback(pools).map(Arc::from),
            room: Arc::new(Room::new(config.held())),
            ratios: Mutex::new(Ratios::new(config.request.bytes_per_token.get())),
            ids: Mutex::new(Random::new(clock::seed())),
            config: config.clone(),
        }
    }

    /// Chooses for a request and books it; sets its headers. `None`: it is none of any pool's, and passes.
    pub(super) fn choose(
        &self,
        wish: &Wish<'_>,
        headers: &mut Headers,
    ) -> Result<Option<Chosen>, Box<Refused>> {
        let pool = match (
            self.pool_of(wish.pool, wish.facts),
            wish.facts.and_then(|facts| facts.model.as_deref()),
        ) {
            (Some(pool), _) => pool,
            (None, Some(model)) => {
                let why = format!("no pool serves the model {model:?}");
                return Err(Refused::of(&Refusal::new(wish.dialect, 404, why), &[]));
            }
            (None, None) => return Ok(None),
        };
        let facts = wish.facts.cloned().unwrap_or_else(|| self.unread(wish));
        let id = self.ids.lock().unwrap_or_else(PoisonError::into_inner).next();
        let ask = Reserve::of(&pool, id, &facts.ask(wish.blocks));
        let reserved = match wish.wanted.map(|wanted| self.reserve(&ask, wish.tokens, Some(wanted))) {
            // As GIE's own picker for tests has it: a wish that nobody can fulfil is none.
            Some(Ok(reserved)) if reserved.shut.is_none() => Ok(reserved),
            _ => self.reserve(&ask, wish.tokens, wish.hint),
        };
        let reserved = match reserved {
            Ok(Reserved { shut: Some(shut), .. }) => {
                return Err(self.refuse(&pool, &facts, &shut.into()));
            }
            Ok(reserved) => reserved,
            Err(_) => return Err(self.refuse(&pool, &facts, &NOBODY)),
        };
        let list = reserved.endpoints.join(",");
        headers.set(wire::DESTINATION, &list);
        for (header, name) in [(wire::MODEL, &facts.model), (wire::BASE_MODEL, &facts.base_model)] {
            if let Some(name) = name {
                headers.set(header, &wire::encode(name));
            }
        }
        if let Some(prefill) = &reserved.prefill {
            headers.set(wire::PREFILLER, prefill);
        }
        let line = line(&reserved, &facts);
        let fields = [
            message::metadata(message::LB, wire::DESTINATION, list),
            message::metadata(message::LOG, "pick", line),
        ];
        let lease = Lease::new(Arc::clone(&self.scorer), pool, id, reserved.endpoints);
        Ok(Some(Chosen { lease, metadata: Struct { fields: fields.into() } }))
    }

    /// What turns a request into tokens, where its pool wants them.
    pub(super) fn reader(&self, named: Option<&str>, facts: &Facts) -> Option<Reader> {
        self.scorer.reader(&self.pool_of(named, Some(facts))?).cloned()
    }

    /// The gateway's word first, then the model's, then the model's that it is an adapter of.
    fn pool_of(&self, named: Option<&str>, facts: Option<&Facts>) -> Option<Arc<str>> {
        if let Some(named) = named {
            return Some(named.into());
        }
        let models = facts.into_iter().flat_map(|facts| [&facts.model, &facts.base_model]);
        let known = models.flatten().find_map(|model| self.by_model.get(model));
        known.or(self.fallback.as_ref()).cloned()
    }

    /// A request of which nothing but its length is known.
    fn unread(&self, wish: &Wish<'_>) -> Facts {
        let tokens = wish.bytes / u64::from(self.config.request.bytes_per_token.get());
        // Its first token will be seen, whether it asks for a stream or not.
        Facts {
            prompt_tokens: u32::try_from(tokens).unwrap_or(u32::MAX),
            stream: true,
            ..Facts::of(wish.dialect)
        }
    }

    fn reserve(
        &self,
        ask: &Reserve,
        tokens: Option<&Result<kv::Tokens, Unread>>,
        subset: Option<&Subset>,
    ) -> Result<Reserved, scorer::Refused> {
        let start = self.scorer.now();
        let reserved = match subset {
            Some(subset) => self.scorer.reserve_for(ask, tokens, Some(&|address| subset.allows(address))),
            None => self.scorer.reserve_for(ask, tokens, None),
        };
        self.scorer.took(self.scorer.now().since(start));
        if let Err(refused) = &reserved {
            self.scorer.refused(refused);
        }
        reserved
    }

    /// No endpoint may be sent to: 429 where all are full or busy, 503 where nobody is there; with llm-d's word for it.
    fn refuse(&self, pool: &str, facts: &Facts, shut: &Shut) -> Box<Refused> {
        // A prompt that nobody can hold does not fit later either.
        if let Some(most) = self.scorer.too_long(pool, &facts.ask(&[]).demand) {
            let refusal = Refusal::too_long(facts.dialect, facts.prompt_tokens, most);
            return Refused::new(Outcome::TooLong, message::refused(&refusal, &[]));
        }
        let (outcome, reason, details) = match shut.status {
            429 => (Outcome::Saturated, "rejected-saturated", "weir_saturated"),
            _ => (Outcome::NoEndpoints, "rejected-no-endpoints", "weir_no_endpoint"),
        };
        let answer = shut.answer(facts.dialect);
        let more = answer.headers.iter().map(|(name, value)| (*name, value.as_str()));
        let more: Vec<(&str, &str)> = more.chain([(wire::DROPPED_REASON, reason)]).collect();
        Refused::new(outcome, message::immediate(answer.status, &more, answer.body, details))
    }

    /// The tokens of a client's prompt of this size.
    pub(super) fn tokens(&self, model: Option<&str>, client: Option<u64>, size: Size) -> u32 {
        size.tokens(self.ratios().of(model, client))
    }

    /// Whether an answer of that model to this client is to be learned from.
    pub(super) fn wants(&self, model: &str, client: Option<u64>) -> bool {
        self.ratios().wants(model, client)
    }

    /// An engine has counted a client's prompt of this size.
    pub(super) fn learn(&self, model: &str, client: Option<u64>, size: Size, counted: u64) {
        self.ratios().learn(model, client, size, counted);
    }

    fn ratios(&self) -> MutexGuard<'_, Ratios> {
        self.ratios.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For the access log, as `pick` has it.
fn line(reserved: &Reserved, facts: &Facts) -> String {
    let endpoint = reserved.endpoints.first().map_or("", String::as_str);
    let mut line = format!(
        "endpoint={endpoint} by=picker policy={} prompt_tokens={} cached_tokens={} queued_tokens={} in_flight={}",
        reserved.policy,
        facts.prompt_tokens,
        reserved.cached_tokens,
        reserved.queued_tokens,
        reserved.in_flight
    );
    if let Some(prefill) = &reserved.prefill {
        line += &format!(" prefill={prefill}");
    }
    if reserved.probe {
        line += " probe=1";
    }
    if let Some(spill) = &reserved.spill {
        line += &format!(" spillover_to={} spillover_reason={}", spill.to, spill.reason.name());
    }
    line
}
