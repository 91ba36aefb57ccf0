//! Limits that many proxies share: who may use how much.
//!
//! With a store the ledger is there; without one, or while it is away and `failure_mode` is `open`, in this
//! scorer's memory. The memory is kept in step with what the store has said of the keys that came by here, so that
//! going on without it begins with what was known.

use super::Refused;
use super::store::{Config, Granted, Store};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weir::instant::Instant;
use weir::invalid::Invalid;
use weir::limit::{Claims, FailureMode, Grants, Ledger, Tally};

/// The ledger, wherever it is.
#[derive(Debug)]
pub(super) struct Shares {
    memory: Mutex<Memory>,
    store: Option<(Store, Config)>,
}

#[derive(Debug)]
struct Memory {
    ledger: Ledger,
    /// How much later it is in the store than here; zero as long as that is not known.
    ahead: Duration,
    up: bool,
    try_again: Instant,
}

impl Shares {
    /// Nothing is known yet.
    pub(super) fn new(store: Option<&Config>, now: Instant) -> Result<Self, Invalid> {
        let ledger = Ledger::new(now);
        let memory = Memory { ledger, ahead: Duration::ZERO, up: true, try_again: Instant::default() };
        let store = store.map(|config| Ok((Store::new(config)?, config.clone()))).transpose();
        let store = store.map_err(|invalid: Invalid| invalid.within("store"))?;
        Ok(Self { memory: Mutex::new(memory), store })
    }

    /// Hears claims and grants what is free; `clock` gives the time here.
    pub(super) async fn grant(
        &self,
        claims: &Claims,
        clock: impl Fn() -> Instant,
    ) -> Result<Grants, Refused> {
        let Some((store, config)) = &self.store else {
            return Ok(self.memory().ledger.grant(claims, clock()));
        };
        if self.worth_trying(config, clock()) {
            match store.grant(claims).await {
                Ok(granted) => return Ok(self.answered(claims, granted, clock())),
                Err(why) => self.failed(config, &why, clock()),
            }
        }
        match config.failure_mode {
            FailureMode::Closed => Err(Refused::NoStore),
            FailureMode::Open => {
                let mut memory = self.memory();
                let now = clock() + memory.ahead;
                Ok(memory.ledger.grant(claims, now))
            }
        }
    }

    /// Whether it is up, or due to be tried again; then nobody else tries for a while.
    fn worth_trying(&self, config: &Config, now: Instant) -> bool {
        let mut memory = self.memory();
        let due = memory.up || now >= memory.try_again;
        if due && !memory.up {
            memory.try_again = now + Duration::from_millis(config.retry_ms.get());
        }
        due
    }

    fn answered(&self, claims: &Claims, granted: Granted, now: Instant) -> Grants {
        let mut memory = self.memory();
        memory.ahead = granted.now.since(now);
        for (claim, record) in claims.keys.iter().zip(granted.records) {
            memory.ledger.put(claim, record, granted.now);
        }
        if !std::mem::replace(&mut memory.up, true) {
            log::info!("the store of shared limits answers again");
        }
        granted.grants
    }

    fn failed(&self, config: &Config, why: &str, now: Instant) {
        let mut memory = self.memory();
        memory.try_again = now + Duration::from_millis(config.retry_ms.get());
        if std::mem::replace(&mut memory.up, false) {
            let then = match config.failure_mode {
                FailureMode::Open => "limits are shared out from memory",
                FailureMode::Closed => "nothing is granted",
            };
            log::warn!("the store of shared limits fails, {then}: {why}");
        }
    }

    /// Keys in memory.
    pub(super) fn keys(&self) -> usize {
        self.memory().ledger.len()
    }

    /// What is shared out of the keys of which most is used.
    pub(super) fn tallies(&self, most: usize, now: Instant) -> Vec<Tally> {
        let memory = self.memory();
        memory.ledger.tallies(most, now + memory.ahead)
    }

    /// Whether the store answers; `None`: there is none.
    pub(super) fn store_up(&self) -> Option<bool> {
        self.store.as_ref().map(|_| self.memory().up)
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
