//! What was broken on purpose, and what that excuses.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Moment;

/// Something that was broken for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// What was done, in a word: `pause`, `kill`, `cut`, …
    pub kind: String,
    /// To whom.
    pub target: Target,
    /// From when.
    pub from: Moment,
    /// Until when; `None` while it lasts.
    pub to: Option<Moment>,
    /// Which breaks of exclusion it makes legitimate, if any.
    pub excuse: Option<Excuse>,
}

/// Who is broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// A client, or the link of one.
    Client(u32),
    /// A server, by a name for people.
    Server(String),
}

/// Why two may believe that they hold a lock, and for how long after the fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Excuse {
    /// What the store's promises say about it.
    pub why: String,
    /// How long after the fault's end the last of them has noticed.
    pub lasts: Duration,
}

impl Fault {
    /// Why two holds may have overlapped in this time, if they may. `invoked` is when the earlier of them was asked for: what
    /// was asked for when all was well again has no excuse.
    pub fn excuses(&self, invoked: Moment, from: Moment, to: Moment) -> Option<&str> {
        let excuse = self.excuse.as_ref()?;
        let over = self.to.unwrap_or(Moment(u64::MAX));
        let explained = invoked <= over && self.from <= from && to <= over.plus(excuse.lasts);
        explained.then_some(excuse.why.as_str())
    }

    /// Whether some of it happened in this time.
    pub fn touches(&self, from: Moment, to: Moment) -> bool {
        self.from <= to && self.to.is_none_or(|end| end >= from)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(client) => write!(f, "client {client}"),
            Self::Server(name) => f.write_str(name),
        }
    }
}
