//! One time that a client had a lock.

use std::time::Duration;

use super::Moment;

/// That a token was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// To whom.
    pub client: u32,
    /// Which token.
    pub token: u64,
    /// When it was asked for.
    pub invoked: Moment,
    /// When the client knew.
    pub at: Moment,
}

/// A grant, and how long its guard said that it is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The grant.
    pub grant: Grant,
    /// The end of validity that the guard told last, or that the lock had when it was lost; `None` if there
    /// is none.
    pub said: Option<Moment>,
    /// The last end that the guard told while it was held: what a later loss does not change.
    pub promised: Option<Moment>,
    /// When the client last asked its guard, and was told, or last used the lock before the end that it had
    /// been told.
    pub seen: Moment,
    /// When the client had done with it, or was found dead; `None` while it goes on.
    pub gone: Option<Moment>,
    /// How it ended, in a word or two.
    pub how: String,
    /// When the guarded register first refused its token.
    pub refused: Option<Moment>,
}

impl Hold {
    /// A hold that begins.
    pub fn new(grant: Grant, said: Option<Moment>) -> Self {
        Self { grant, said, promised: said, seen: grant.at, gone: None, how: String::new(), refused: None }
    }

    /// Until when it counts: the client relied on it, and its guard said that it may. A client that was
    /// killed counts until it was last heard of.
    pub fn end(&self) -> Moment {
        self.said.map_or(self.seen, |said| said.min(self.seen)).max(self.grant.at)
    }

    /// Whether the guard said that the lock is held when the client knew of it. An answer may come when its
    /// lease has ended.
    pub fn was_valid(&self) -> bool {
        self.promised.is_none_or(|promised| promised >= self.grant.at)
    }

    /// Its client used the lock: it has been heard of, and if its guard had not ended it still held.
    pub(super) fn used(&mut self, at: Moment) {
        if self.said.is_none_or(|said| at <= said) {
            self.seen = self.seen.max(at);
        }
    }

    /// When the request was sent, at the earliest, on whose answer it last relied. Validity counts from the
    /// send and lasts for a ttl at most, and nothing was sent before the client asked.
    pub(super) fn sent(&self, ttl: Duration) -> Moment {
        self.promised.map_or(self.grant.at, |promised| promised.minus(ttl)).max(self.grant.invoked)
    }

    /// The time in which both counted, if there is one. A client that was killed at once held its lock for no
    /// time that can be measured; if it was granted in the middle of another hold, that moment counts.
    pub fn overlap(&self, other: &Self) -> Option<(Moment, Moment)> {
        let from = self.grant.at.max(other.grant.at);
        let to = self.end().min(other.end());
        let instant = |one: &Self, other: &Self| {
            one.was_valid() && one.end() == one.grant.at && other.grant.at < from && from < other.end()
        };
        (from < to || (from == to && (instant(self, other) || instant(other, self)))).then_some((from, to))
    }
}
