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
        /// When it shall have an answer, if it set itself a limit.
        #[serde(default)]
        by: Option<Moment>,
    },
    /// It was granted the lock that it asked for.
    Acquired {
        /// The fencing token.
        token: u64,
        /// Until when its guard says that the lock is valid; `None` if it has no end. Earlier than the event
        /// if the guard says that it is lost already.
        until: Option<Moment>,
    },
    /// It was not granted the lock, or does not want it any more; or could not even connect.
    GaveUp {
        /// Why, in a word or two.
        why: String,
        /// What the store said, if it failed.
        error: Option<String>,
    },
    /// Its guard was asked, at this moment or just behind it, and said that the lock is held.
    Held {
        /// Until when, so far.
        until: Option<Moment>,
    },
    /// Its guard said that the lock is lost.
    Lost {
        /// Why, in a word or two. `taken`, `force-released`, `session ended` and `expired` are checked: they
        /// must not come before the end that the guard has told, unless something was broken.
        why: String,
        /// When the lock ended, by what the guard had said before.
        until: Moment,
    },
    /// It begins to give the lock back, and does not rely on it from here on. Its guard was asked as for
    /// `Held`, and the request is sent after that.
    Released {
        /// Until when its guard said that the lock is valid.
        until: Option<Moment>,
    },
    /// The store answered its release: the lock was not its own any more.
    Gone {
        /// Why, in a word or two.
        why: String,
    },
    /// The register answered its read. The guarded one notes the reader's token first, so that older ones
    /// cannot write any more.
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
    /// It was told to end and did not.
    Hung,
    /// When all clients have ended, the store has this entry of the run.
    Left {
        /// Of which lock.
        lock: String,
        /// What is left.
        what: String,
    },
    /// At the end of all, a lock that nobody holds cannot be taken.
    Stuck {
        /// Which.
        lock: String,
        /// What the store said.
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
