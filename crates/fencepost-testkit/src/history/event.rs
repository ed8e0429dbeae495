//! What one client says at one moment.

use serde::{Deserialize, Serialize};

use super::Moment;

/// Something that happened to a client. Clients do one thing after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, by the clock that all processes of a machine share.
    pub at: Moment,
    /// To whom.
    pub client: u32,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// It begins to ask for a lock.
    Invoke {
        /// Which.
        lock: String,
    },
    /// It was granted the lock that it asked for.
    Acquired {
        /// The fencing token.
        token: u64,
        /// Until when its guard says that the lock is valid; `None` if it has no end.
        until: Option<Moment>,
    },
    /// It was not granted the lock, or does not want it any more.
    GaveUp {
        /// Why, in a word or two.
        why: String,
        /// What the store said, if it failed.
        error: Option<String>,
    },
    /// Its guard was asked and said that the lock is held.
    Held {
        /// Until when, so far.
        until: Option<Moment>,
    },
    /// Its guard said that the lock is lost.
    Lost {
        /// Why, in a word or two.
        why: String,
        /// When the lock ended, by what the guard had said before.
        until: Moment,
    },
    /// It begins to give the lock back, and does not rely on it from here on.
    Released {
        /// Until when its guard said that the lock is valid.
        until: Option<Moment>,
    },
    /// The register answered its read. The guarded one notes the reader's token first, so that older ones cannot write any more.
    Read {
        /// Which register of the lock.
        register: Register,
        /// What it read; `None` if the register refused the token.
        value: Option<u64>,
    },
    /// The register answered its write of one more than it had read.
    Write {
        /// Which register of the lock.
        register: Register,
        /// What it had read.
        based_on: u64,
        /// Whether the register took it.
        accepted: bool,
    },
    /// It is alive, and has nothing to tell.
    Tick,
    /// It was killed.
    Died,
    /// At the end of all, the store has this entry of the run.
    Left {
        /// Of which lock.
        lock: String,
        /// What is left.
        what: String,
    },
}

/// The two registers beside each lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Register {
    /// Refuses a token that is smaller than one it has seen.
    Guarded,
    /// Takes everything, as a resource does that relies on the lock alone.
    Unguarded,
}
