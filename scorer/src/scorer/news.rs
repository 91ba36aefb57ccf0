//! Proxies that choose by themselves: each says what happened there, and hears what happened elsewhere, in one call every few
//! milliseconds. What follows is the core's to know ([`weir::replicas::Listeners`]).

use super::{Refused, Scorer};
use weir::pool::{Message, Pools};
use weir::replicas::{Asking, LISTENS, Told};

/// Largest message accepted, in bytes: all leases of a busy proxy.
pub(super) const MOST_BYTES: usize = 4 << 20;

impl Scorer {
    /// Books what a proxy tells, and tells it the news.
    pub(super) fn news(&self, message: &[u8]) -> Result<Told, Refused> {
        let asking = Asking::decode(message).filter(|asking| asking.from & LISTENS != 0);
        let mut asking =
            asking.ok_or_else(|| Refused::Unreadable("no message of a proxy of this version".into()))?;
        self.with_pools(|pools, now| {
            let before = sent(pools);
            let heard = self.listeners().hear(pools, &mut asking, now).ok_or(Refused::Crowded)?;
            self.count(pools, &before, &heard.news);
            for (place, endpoint, moved) in &heard.moved {
                let name = pools.get(usize::from(*place)).map_or("", |(name, _)| name);
                self.moved(name, endpoint, *moved, "as a proxy says");
            }
            if let Some(link) = self.link() {
                heard.news.into_iter().for_each(|message| link.tell(message));
            }
            Ok(self.listeners().tell(pools, &asking, now))
        })
    }

    /// Counts what was booked elsewhere as if it had been chosen here.
    fn count(&self, pools: &Pools, before: &[(u64, u64)], news: &[Message]) {
        for ((place, ((name, _), before)), after) in pools.iter().zip(before).enumerate().zip(sent(pools)) {
            let is_booked = |message: &&Message| matches!(message, Message::Booked { pool, .. } if usize::from(*pool) == place);
            let booked = news.iter().filter(is_booked).count() as u64;
            let [prompt, cached] = [after.0.saturating_sub(before.0), after.1.saturating_sub(before.1)];
            self.metrics.booked(name, booked, prompt, cached);
        }
    }
}

/// Tokens sent to each pool so far, and those of them that were cached.
fn sent(pools: &Pools) -> Vec<(u64, u64)> {
    pools.iter().map(|(_, pool)| pool.sent()).collect()
}
