//! What a node does: the scripts beside `quorum.rs`, for one resource.

use super::rules::{Counter, Rules};
use super::state::{Confirmation, Node, Reply};
use crate::quorum::Kept;

/// Who asks, and when.
#[derive(Clone, Copy)]
pub(super) struct Call<'r> {
    pub(super) rules: &'r Rules,
    pub(super) now: u8,
    pub(super) node: usize,
    pub(super) attempt: usize,
}

impl Call<'_> {
    fn owner(&self) -> u8 {
        self.rules.owner(self.attempt)
    }

    fn expires(&self) -> u8 {
        self.now + self.rules.ttl
    }
}

impl Node {
    /// `acquire.lua`, for an attempt that started at `start`.
    pub(super) fn acquire(&mut self, call: Call<'_>, start: u8) -> Reply {
        if call.now < self.ready || call.now > call.rules.acquire_limit(start) {
            return Reply::Silent;
        }
        match self.owner {
            None => {
                let value = call.rules.next_counter(self.counter, call.node, call.attempt, start, call.now);
                self.owner = Some(call.owner());
                self.expires = call.expires();
                if !(self.amnesiac && call.rules.counter == Counter::Resync) {
                    self.counter = value;
                }
                Reply::Granted { value, amnesiac: self.amnesiac }
            }
            Some(owner) if owner == call.owner() => {
                self.expires = self.expires.max(call.expires());
                Reply::Granted { value: self.counter, amnesiac: self.amnesiac }
            }
            Some(_) => Reply::Denied,
        }
    }

    /// `hold.lua` with `confirm`.
    pub(super) fn confirm(&mut self, call: Call<'_>, token: u8) -> Confirmation {
        if self.owner != Some(call.owner()) || self.counter > token {
            return Confirmation::No(token);
        }
        self.expires = self.expires.max(call.expires());
        self.counter = token;
        self.amnesiac = false;
        Confirmation::Yes(token)
    }

    /// `hold.lua` with `extend`.
    pub(super) fn extend(&mut self, call: Call<'_>, token: u8, limit: u8) -> Kept {
        if call.now > limit {
            return Kept::Silent;
        }
        match self.owner {
            Some(owner) if owner == call.owner() => {}
            Some(_) => return Kept::No,
            None if !call.rules.remake || call.now < self.ready => return Kept::Silent,
            None => self.owner = Some(call.owner()),
        }
        self.expires = self.expires.max(call.expires());
        self.counter = self.counter.max(token);
        Kept::Yes
    }

    /// `release.lua`.
    pub(super) fn release(&mut self, owner: u8) {
        if self.owner == Some(owner) {
            self.owner = None;
            self.expires = 0;
        }
    }

    /// Everything is gone. `greet.lua` keeps the node from voting for a while, counted from when somebody notices: at
    /// once is the soonest.
    pub(super) fn restart(&mut self, now: u8, rules: &Rules) {
        let amnesiac = rules.counter == Counter::Resync;
        *self = Self { ready: now + rules.quarantine, amnesiac, ..Self::default() };
    }

    pub(super) fn tick(&mut self, now: u8) {
        if self.owner.is_some() && self.expires <= now {
            self.owner = None;
            self.expires = 0;
        }
    }
}
