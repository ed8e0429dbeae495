//! What a node does: the scripts beside `quorum.rs`, for one resource.

use super::rules::{Counter, Flaw, Rules};
use super::state::{Confirmation, Node, Record, Reply};
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

impl Record {
    pub(super) fn free(&mut self) {
        (self.owner, self.expires) = (None, 0);
    }
}

impl Node {
    /// `ops.lua`, to take the lock for an attempt that started at `start`.
    pub(super) fn acquire(&mut self, call: Call<'_>, start: u8) -> Reply {
        if call.now < self.ready || call.now > call.rules.acquire_limit(start) {
            return Reply::Silent;
        }
        match self.live.owner {
            None => {
                let value =
                    call.rules.next_counter(self.live.counter, call.node, call.attempt, start, call.now);
                self.live.owner = Some(call.owner());
                self.live.expires = call.expires();
                if !(self.amnesiac && call.rules.counter == Counter::Resync) {
                    self.live.counter = value;
                }
                Reply::Granted { value, amnesiac: self.amnesiac }
            }
            Some(owner) if owner == call.owner() => {
                self.live.expires = self.live.expires.max(call.expires());
                Reply::Granted { value: self.live.counter, amnesiac: self.amnesiac }
            }
            Some(_) => Reply::Denied,
        }
    }

    /// `hold.lua` with `confirm`.
    pub(super) fn confirm(&mut self, call: Call<'_>, token: u8) -> Confirmation {
        if call.now < self.ready || self.live.owner != Some(call.owner()) || self.live.counter > token {
            return Confirmation::No(token);
        }
        self.live.expires = self.live.expires.max(call.expires());
        self.live.counter = token;
        self.amnesiac = false;
        Confirmation::Yes(token)
    }

    /// `hold.lua` with `extend` and, where the key is gone, `mend`: a client may do both at once here, and
    /// count it.
    pub(super) fn extend(&mut self, call: Call<'_>, token: u8, limit: u8) -> Kept {
        if call.now < self.ready || call.now > limit {
            return Kept::Silent;
        }
        match self.live.owner {
            Some(owner) if owner == call.owner() => {}
            Some(_) => return Kept::No,
            None if !call.rules.remake => return Kept::Silent,
            None => self.live.owner = Some(call.owner()),
        }
        self.live.expires = self.live.expires.max(call.expires());
        self.live.counter = self.live.counter.max(token);
        Kept::Yes
    }

    /// `attach.lua`, and what whoever asked makes of the answer. `None`: nothing was done.
    pub(super) fn attach(&mut self, call: Call<'_>, from: u8, token: u8) -> Option<Kept> {
        if call.now < self.ready || self.live.owner != Some(from) {
            return None;
        }
        if call.rules.flaw != Flaw::OneIdentity {
            self.live.owner = Some(call.owner());
        }
        self.live.expires = self.live.expires.max(call.expires());
        let counts = self.live.counter == token || call.rules.flaw == Flaw::AnyCounter;
        Some(if counts { Kept::Yes } else { Kept::Silent })
    }

    /// `ops.lua`, to undo that.
    pub(super) fn put_back(&mut self, owner: u8, from: u8) {
        if self.live.owner == Some(owner) {
            self.live.owner = Some(from);
        }
    }

    /// `ops.lua`, to give it back.
    pub(super) fn release(&mut self, owner: u8) {
        if self.live.owner == Some(owner) {
            self.live.free();
        }
    }

    /// Everything since the last snapshot is gone. `greet.lua` keeps the node from voting for a while,
    /// counted from when somebody notices: at once is the soonest.
    pub(super) fn restart(&mut self, now: u8, rules: &Rules) {
        self.live = self.saved;
        self.ready = now + rules.quarantine;
        self.amnesiac = rules.counter == Counter::Resync;
        self.tick(now);
    }

    /// Keys run out.
    pub(super) fn tick(&mut self, now: u8) {
        for record in [&mut self.live, &mut self.saved] {
            if record.owner.is_some() && record.expires <= now {
                record.free();
            }
        }
    }
}
