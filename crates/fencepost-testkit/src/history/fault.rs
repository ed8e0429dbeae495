//! What was broken on purpose, and what that excuses.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Hold, Moment};

/// Something that was broken for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// What was done, in a word: `pause`, `kill`, `cut`, …
    pub kind: String,
    /// To whom.
    pub target: Target,
    /// From when.
    pub from: Moment,
    /// When it was seen to have its effect: the process stood still, was dead, or data was held up. `None` if
    /// that was never seen.
    pub struck: Option<Moment>,
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

/// Why two may believe that they hold a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Excuse {
    /// What it takes.
    pub cause: Cause,
    /// What the store's promises say about it.
    pub why: String,
    /// How long a lease of the run lasts.
    pub ttl: Duration,
}

/// How a fault of a server lets a second one in, as the store's promises word it. In each case the later of
/// the two was granted after the fault began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The server forgot all locks: the earlier one relies on what was sent before that.
    Forgot,
    /// It forgot what was no older than this, and the earlier holder, which was stopped or cut off itself,
    /// could not be told.
    ForgotTheNewest(Duration),
    /// It led the others, was replaced, and ended leases when it went on, which the next leader kept.
    WokeUp,
    /// It answered the earlier holder and did not tell the leader, so that the holder believes for so much
    /// too long at most.
    DidNotTell(Duration),
}

/// How long an answer may take of which only the send is known.
const ROUND_TRIP: Duration = Duration::from_millis(200);
/// How long a leader that was replaced may take until it looks at its leases and ends some: it does so twice
/// a second.
const WAKING: Duration = Duration::from_secs(1);
/// How long after a fault a session may be found dead: a heartbeat of five seconds, or two seconds until a
/// waiter ends the session of a holder that stood still.
const AFTERMATH: Duration = Duration::from_secs(5);

impl Fault {
    /// Why two may have believed in this time that they hold a lock, if they may. `earlier` is the one that
    /// the store granted first. What it relies on must have been sent before the servers were well again,
    /// whatever else was broken since.
    pub fn excuses(&self, earlier: &Hold, from: Moment, to: Moment, faults: &[Self]) -> Option<&str> {
        let excuse = self.excuse.as_ref()?;
        let struck = self.struck?;
        let over = self.to.unwrap_or(Moment(u64::MAX));
        let sent = earlier.sent(excuse.ttl);
        // A hold without an end is a command's. One that runs for long has a wrapper that its client stopped
        // or killed.
        let unaware = earlier.promised.is_none()
            || faults.iter().any(|fault| {
                fault.target == Target::Client(earlier.grant.client) && fault.touches(self.from, from)
            });
        // It learns at its next renewal, a third of a ttl later, unless it cannot hear.
        let soon = unaware || to.since(from) <= excuse.ttl / 2;
        let explained = match excuse.cause {
            Cause::Forgot => sent <= struck && soon,
            Cause::ForgotTheNewest(age) => {
                let renewed = sent > earlier.grant.at;
                let written = if renewed { sent.plus(ROUND_TRIP) } else { earlier.grant.at };
                sent <= struck && self.from <= written.plus(age) && unaware
            }
            // Leases are a client's, and older than its locks: also one that was granted since may end.
            Cause::WokeUp => over <= from.plus(ROUND_TRIP) && sent <= over.plus(WAKING) && soon,
            Cause::DidNotTell(most) => sent <= over && to.since(from) <= most,
        };
        (explained && self.from <= from).then_some(excuse.why.as_str())
    }

    /// The time in which an overlap can begin that it excuses, if it excuses any.
    pub fn cover(&self) -> Option<(Moment, Moment)> {
        let (excuse, struck) = (self.excuse.as_ref()?, self.struck?);
        let over = self.to.unwrap_or(struck);
        Some(match excuse.cause {
            Cause::Forgot | Cause::ForgotTheNewest(_) => (self.from, struck.plus(excuse.ttl)),
            Cause::WokeUp => (over, over.plus(WAKING + excuse.ttl)),
            Cause::DidNotTell(_) => (self.from, over.plus(excuse.ttl)),
        })
    }

    /// Whether it can be why a lock ended before its time. A server that was broken can; a client's own
    /// troubles end its session, or repeat its release, but take no lock from it.
    pub fn ends_early(&self, hold: &Hold, at: Moment) -> bool {
        let possible = match self.target {
            Target::Server(_) => true,
            Target::Client(client) => {
                client == hold.grant.client
                    && (hold.how == "lost: session ended" || hold.how.starts_with("released"))
            }
        };
        possible && self.struck.is_some() && self.touches(hold.grant.invoked.minus(AFTERMATH), at)
    }

    /// For how long a client was stopped by it within this time.
    pub fn stopped(&self, client: u32, from: Moment, to: Moment) -> Duration {
        let hit = self.kind == "pause" && self.target == Target::Client(client);
        if hit { self.to.unwrap_or(to).min(to).since(self.from.max(from)) } else { Duration::ZERO }
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
