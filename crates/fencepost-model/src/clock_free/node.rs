//! What the scripts do on a node, without time and quarantine.

use super::state::Values;

/// Who owns a lock key: an attempt, by index; nobody; or, in one mutant, any revocation.
pub(crate) type Key = u8;
pub(crate) const NOBODY: Key = 255;
pub(crate) const ANY_REVOCATION: Key = 254;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Node {
    pub(crate) counter: u8,
    pub(crate) key: Key,
    /// So many requests for the lock are still under way of attempts that nobody waits for any more (see `reduce`).
    pub(crate) strays: u8,
}

impl Node {
    pub(crate) const NEW: Self = Self { counter: 0, key: NOBODY, strays: 0 };

    /// `acquire.lua`: the counter, or nothing if the key is somebody else's.
    pub(crate) fn acquire(&mut self, who: Key, proposal: u8) -> Option<u8> {
        if self.key == NOBODY {
            self.key = who;
            self.counter = proposal.max(self.counter + 1);
        }
        (self.key == who).then_some(self.counter)
    }

    /// `revoke.lua`: takes a free key, or the key of `holder`.
    pub(crate) fn revoke(&mut self, who: Key, holder: Key, proposal: u8) -> Option<u8> {
        if self.key == holder {
            self.key = NOBODY;
        }
        self.acquire(who, proposal)
    }

    /// `hold.lua`, `confirm`: whether the key is the caller's and the counter is now exactly the token.
    pub(crate) fn confirm(&mut self, who: Key, token: u8) -> bool {
        let fits = self.key == who && self.counter <= token;
        if fits {
            self.counter = token;
        }
        fits
    }

    /// `hold.lua`, `extend`: makes a lost key anew, and never mind a larger counter.
    pub(crate) fn extend(&mut self, who: Key, token: u8) {
        if self.key == NOBODY || self.key == who {
            self.key = who;
            self.counter = self.counter.max(token);
        }
    }

    /// `attach.lua`: as `confirm`, but by a holder.
    pub(crate) fn attach(&mut self, who: Key, token: u8) {
        self.confirm(who, token);
    }
}

/// A set of small numbers: tokens, values of counters.
impl Values {
    pub(crate) const NONE: Self = Self(0);

    pub(crate) fn only(value: u8) -> Self {
        Self::NONE.with(value)
    }

    pub(crate) fn with(self, value: u8) -> Self {
        assert!(value < 16, "counters stay below 16 in these models");
        Self(self.0 | 1 << value)
    }

    pub(crate) fn without(self, value: u8) -> Self {
        Self(self.0 & !(1 << value))
    }

    pub(crate) fn has(self, value: u8) -> bool {
        self.0 >> value & 1 == 1
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn len(self) -> u32 {
        self.0.count_ones()
    }

    pub(crate) fn largest(self) -> u8 {
        (15 - self.0.leading_zeros().min(15)) as u8
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = u8> {
        (0..16).filter(move |&value| self.has(value))
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(u8) -> bool) {
        *self = self.iter().filter(|value| keep(*value)).fold(Self::NONE, Self::with);
    }
}
