//! What the scripts do on a node, without time and quarantine.

/// Who owns a lock key: an attempt, by index; nobody; somebody whom revocations are after and who is gone;
/// or, in one mutant, any revocation.
pub(crate) type Key = u8;
pub(crate) const NOBODY: Key = 255;
pub(crate) const ANY_REVOCATION: Key = 254;
pub(crate) const GONE: Key = 253;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Node {
    pub(crate) counter: u8,
    pub(crate) key: Key,
    /// So many requests for the lock are still under way of attempts that nobody waits for any more (see
    /// `reduce`).
    pub(crate) strays: u8,
}

impl Node {
    pub(crate) const NEW: Self = Self { counter: 0, key: NOBODY, strays: 0 };

    /// `ops.lua`, to take the lock: the counter, or nothing if the key is somebody else's.
    pub(crate) fn acquire(&mut self, who: Key, proposal: u8) -> Option<u8> {
        if self.key == NOBODY {
            self.key = who;
            self.counter = proposal.max(self.counter + 1);
        }
        (self.key == who).then_some(self.counter)
    }

    /// `revoke.lua`: takes a free key, or one that is the victim's or an earlier revocation's of it.
    pub(crate) fn revoke(&mut self, who: Key, victims: bool, proposal: u8) -> Option<u8> {
        if self.key != who && victims {
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

    /// `hold.lua`, `extend` and `mend`: makes a lost key anew, and never mind a larger counter.
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
