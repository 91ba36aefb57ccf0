//! What another says, taken into one's own book.

use super::{Heard, ReplicaId};
use crate::instant::Instant;
use crate::pool::{LeaseId, Message, Pools};
use std::collections::{BTreeMap, HashSet};

/// Messages of one whose pools are named so, with the places that the pools have here. Pools have the same names everywhere, and
/// maybe other places; what is about none that is known here is left out.
pub(super) fn here(
    pools: &Pools,
    names: &[String],
    messages: Vec<Message>,
) -> impl Iterator<Item = Message> + use<> {
    let places: Vec<Option<u16>> =
        names.iter().map(|name| pools.of_name(name).and_then(|at| u16::try_from(at).ok())).collect();
    messages.into_iter().filter_map(move |message| {
        if matches!(message, Message::Said { .. }) {
            return Some(message);
        }
        let place = *places.get(message.pool()?)?;
        Some(message.at(place?))
    })
}

/// Books what `from` says. Times in it are counted from now.
pub(super) fn take(pools: &mut Pools, from: ReplicaId, message: Message, now: Instant, heard: &mut Heard) {
    let message = match message {
        Message::Out { pool, endpoint, snapshot } => {
            Message::Out { pool, endpoint, snapshot: snapshot.at(now) }
        }
        Message::Said { endpoint, report } => Message::Said { endpoint, report: report.heard(now) },
        other => other,
    };
    let known = match &message {
        Message::Outstanding { pool, lease, .. } => {
            pools.get(usize::from(*pool)).is_some_and(|(_, pool)| pool.is_out(lease.id))
        }
        _ => false,
    };
    let moved = pools.hear(&message, now);
    match &message {
        Message::Booked { pool, lease, .. } => {
            if let Some((_, pool)) = pools.get(usize::from(*pool)) {
                pool.owned(*lease, from);
            }
        }
        Message::Outstanding { pool, lease, .. } if !known => {
            if let Some((_, pool)) = pools.get(usize::from(*pool)) {
                pool.owned(lease.id, lease.owner.unwrap_or(from));
            }
        }
        Message::Attempted { pool, endpoint, .. } => {
            heard.moved.extend(moved.map(|moved| (*pool, endpoint.clone(), moved)));
        }
        _ => {}
    }
    heard.news.push(message);
}

/// `from` has these leases out, and no others.
pub(super) fn reconcile(
    pools: &mut Pools,
    from: ReplicaId,
    messages: impl Iterator<Item = Message>,
    now: Instant,
    heard: &mut Heard,
) {
    let mut named: BTreeMap<u16, HashSet<LeaseId>> = BTreeMap::new();
    for message in messages {
        let Message::Outstanding { pool: at, ref endpoint, lease } = message else { continue };
        named.entry(at).or_default().insert(lease.id);
        let Some((_, pool)) = pools.get(usize::from(at)) else { continue };
        if pool.has_ended(lease.id) {
            heard.tell.push(Message::End { pool: at, lease: lease.id, answered: None });
        } else if !pool.is_out(lease.id) {
            pool.book_outstanding(endpoint, &lease, now);
            pool.owned(lease.id, from);
            heard.news.push(message);
        }
    }
    for ((_, pool), at) in pools.iter_mut().zip(0_u16..) {
        let is_over = |lease: &LeaseId| !named.get(&at).is_some_and(|named| named.contains(lease));
        let of_from = pool.outstanding(now).filter(|(_, lease)| lease.owner == Some(from));
        let over: Vec<LeaseId> = of_from.map(|(_, lease)| lease.id).filter(is_over).collect();
        for lease in over {
            pool.let_go(lease);
            heard.news.push(Message::End { pool: at, lease, answered: None });
        }
    }
}
