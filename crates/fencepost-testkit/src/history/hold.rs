//! One time that a client had a lock.

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
    /// The end of validity that the guard told last, or that the lock had when it was lost; `None` if there is none.
    pub said: Option<Moment>,
    /// When the client last asked its guard, and was told.
    pub seen: Moment,
    /// When the client had done with it, or was found dead; `None` while it goes on.
    pub gone: Option<Moment>,
    /// How it ended, in a word or two.
    pub how: String,
}

impl Hold {
    /// A hold that begins.
    pub fn new(grant: Grant, said: Option<Moment>) -> Self {
        Self { grant, said, seen: grant.at, gone: None, how: String::new() }
    }

    /// Until when it counts: the client relied on it, and its guard said that it may. A client that was killed counts until it
    /// was last heard of.
    pub fn end(&self) -> Moment {
        self.said.map_or(self.seen, |said| said.min(self.seen)).max(self.grant.at)
    }

    /// The time in which both counted, if there is one.
    pub fn overlap(&self, other: &Self) -> Option<(Moment, Moment)> {
        let from = self.grant.at.max(other.grant.at);
        let to = self.end().min(other.end());
        (from < to).then_some((from, to))
    }
}
