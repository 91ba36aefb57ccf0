//! The accounts that share one stored value.
//!
//! What a proxy's workers share is a map of bytes from which nothing can be removed, so a key of a client's must not
//! become a key of that map. A rule has a fixed number of books, a key's hash says in which one it is, and
//! every write leaves out the accounts that are idle. Reading costs by the call, hardly by the byte: sixteen accounts
//! take no longer than one.
//!
//! A book that is full of accounts in use gives up the one that has used least of its limit: so a flood of invented keys
//! pushes out its own like, and not the one who has spent much.

use super::account::Account;
use super::rule::Rule;
use crate::instant::Instant;
use crate::varint::{read_number, write_number};

/// Most accounts in a book.
pub(super) const MOST: usize = 16;

/// The form that is written. Another one reads as empty.
const FORM: u8 = 1;

/// A book, opened at one account.
#[derive(Debug)]
pub(super) struct Book<'a> {
    key: u64,
    others: Vec<Slot<'a>>,
    /// The account it is opened at.
    pub(super) account: Account,
}

/// An account that nobody looks at now.
#[derive(Clone, Copy, Debug)]
struct Slot<'a> {
    key: u64,
    fill: u16,
    idle_at: u64,
    account: &'a [u8],
}

impl<'a> Book<'a> {
    /// Opens a book at the account of `key`, a new one if there is none. What cannot be read is left out.
    pub(super) fn open(bytes: &'a [u8], key: u64, rule: &Rule, now: Instant) -> Self {
        let mut others = Vec::new();
        let mut account = None;
        let mut rest = match bytes.split_first() {
            Some((&FORM, rest)) => rest,
            _ => &[],
        };
        while let Some(slot) = Slot::read(&mut rest) {
            if slot.key == key {
                account = Account::read(rule, slot.account);
            } else if slot.idle_at > now.nanos() {
                others.push(slot);
            }
        }
        let mut account = account.unwrap_or_else(|| Account::new(rule));
        account.forget(rule, now);
        Self { key, others, account }
    }

    /// The book as bytes, and whether an account in use had to go.
    pub(super) fn close(mut self, rule: &Rule) -> (Vec<u8>, bool) {
        let idle_at = self.account.idle_at(rule);
        let evicts = idle_at.is_some() && self.others.len() >= MOST;
        if evicts {
            let least = self.others.iter().enumerate().min_by_key(|(_, slot)| (slot.fill, slot.idle_at));
            if let Some((least, _)) = least {
                self.others.swap_remove(least);
            }
        }
        let mut bytes = vec![FORM];
        self.others.iter().for_each(|slot| slot.write(&mut bytes));
        if let Some(idle_at) = idle_at {
            let mut account = Vec::new();
            self.account.write(&mut account);
            let slot = Slot {
                key: self.key,
                fill: self.account.fill(rule),
                idle_at: idle_at.nanos(),
                account: &account,
            };
            slot.write(&mut bytes);
        }
        (bytes, evicts)
    }
}

impl<'a> Slot<'a> {
    fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.key.to_le_bytes());
        to.extend_from_slice(&self.fill.to_le_bytes());
        write_number(to, self.idle_at);
        write_number(to, self.account.len() as u64);
        to.extend_from_slice(self.account);
    }

    fn read(from: &mut &'a [u8]) -> Option<Self> {
        let (key, rest) = from.split_first_chunk()?;
        let (fill, mut rest) = rest.split_first_chunk()?;
        let idle_at = read_number(&mut rest)?;
        let length = usize::try_from(read_number(&mut rest)?).ok()?;
        let (account, rest) = rest.split_at_checked(length)?;
        *from = rest;
        Some(Self { key: u64::from_le_bytes(*key), fill: u16::from_le_bytes(*fill), idle_at, account })
    }
}
