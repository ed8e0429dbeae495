//! What must not be, as the smallest piece of the history that shows it.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Fault, Hold, Moment, Timeline};

/// Which promise was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// At most one guard is valid at a time.
    Exclusion,
    /// A guard says that its lock is lost when its lease has ended.
    LateLoss,
    /// A lock is not lost before that, unless something was broken.
    EarlyLoss,
    /// No token is handed out twice.
    UniqueTokens,
    /// A lock that was asked for later has a larger token.
    OrderedTokens,
    /// A lock that was held later has a larger token.
    TokensInTurn,
    /// A guarded register takes the token of a valid holder.
    RefusedHolder,
    /// What a guarded register accepted is not overwritten unread.
    LostUpdate,
    /// Who asks has an answer in time, and ends when told to.
    Deadline,
    /// The store has nothing of the run at the end.
    LeftBehind,
    /// A lock that nobody holds can be taken.
    Stuck,
    /// Events make sense: nobody releases what they do not hold. A fault of whoever wrote the history.
    Nonsense,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Exclusion,
        Self::LateLoss,
        Self::EarlyLoss,
        Self::UniqueTokens,
        Self::OrderedTokens,
        Self::TokensInTurn,
        Self::RefusedHolder,
        Self::LostUpdate,
        Self::Deadline,
        Self::LeftBehind,
        Self::Stuck,
        Self::Nonsense,
    ];

    /// Its name, for tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exclusion => "exclusion",
            Self::LateLoss => "late losses",
            Self::EarlyLoss => "early losses",
            Self::UniqueTokens => "unique tokens",
            Self::OrderedTokens => "ordered tokens",
            Self::TokensInTurn => "tokens in turn",
            Self::RefusedHolder => "refused holders",
            Self::LostUpdate => "lost updates",
            Self::Deadline => "deadlines",
            Self::LeftBehind => "left behind",
            Self::Stuck => "stuck locks",
            Self::Nonsense => "broken history",
        }
    }
}

/// A broken promise.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Which.
    pub rule: Rule,
    /// Of which lock.
    pub lock: String,
    /// From when to when.
    pub from: Moment,
    /// The end of it.
    pub to: Moment,
    /// What happened, a sentence each, with times since `start`.
    pub story: Vec<String>,
    /// The holds that show it: two at most, the one that the store granted first in front.
    pub holds: Vec<Hold>,
    /// Why it is legitimate, if it is: what was broken on purpose lets it happen, as the store's promises
    /// say.
    pub excused: Option<String>,
    /// When the history began, from which the story counts.
    pub start: Moment,
}

impl Violation {
    /// Why the faults make it legitimate, if they do. The first of the holds is the one that the store
    /// granted first. Unique tokens, their order and registers have no excuse.
    pub fn excuse<'a>(&self, faults: &'a [Fault]) -> Option<&'a str> {
        let hold = self.holds.first()?;
        match self.rule {
            Rule::Exclusion | Rule::TokensInTurn | Rule::RefusedHolder => {
                faults.iter().find_map(|fault| fault.excuses(hold, self.from, self.to, faults))
            }
            Rule::EarlyLoss => faults
                .iter()
                .any(|fault| fault.ends_early(hold, self.to))
                .then_some("a server, or the client's own link, was broken"),
            Rule::Deadline => {
                let stopped = |fault: &Fault| fault.stopped(hold.grant.client, hold.grant.invoked, self.to);
                let stopped: Duration = faults.iter().map(stopped).sum();
                (stopped >= self.to.since(self.from)).then_some("the client was stopped for as long")
            }
            _ => None,
        }
    }

    /// The piece as a picture, with the faults that touch it.
    pub fn timeline<'a>(&self, faults: &'a [Fault]) -> Timeline<'a> {
        let begin = self.holds.iter().map(|hold| hold.grant.at).fold(self.from, Moment::min);
        let end = self.holds.iter().map(Hold::end).fold(self.to, Moment::max);
        let margin = (end.since(begin) / 6).max(Duration::from_millis(1));
        Timeline {
            holds: self.holds.clone(),
            faults,
            from: begin.minus(margin),
            to: end.plus(margin),
            mark: Some((self.from, self.to)),
            start: self.start,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on `{}`", self.rule.name(), self.lock)?;
        for sentence in &self.story {
            write!(f, "\n  {sentence}")?;
        }
        match &self.excused {
            Some(why) => write!(f, "\n  legitimate: {why}"),
            None => Ok(()),
        }
    }
}
