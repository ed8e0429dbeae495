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
    /// No token is handed out twice.
    UniqueTokens,
    /// A later grant has a larger token.
    OrderedTokens,
    /// What a guarded register accepted is not overwritten unread.
    LostUpdate,
    /// The store has nothing of the run at the end.
    LeftBehind,
    /// Events make sense: nobody releases what they do not hold. A fault of whoever wrote the history.
    Nonsense,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Exclusion,
        Self::UniqueTokens,
        Self::OrderedTokens,
        Self::LostUpdate,
        Self::LeftBehind,
        Self::Nonsense,
    ];

    /// Its name, for tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exclusion => "exclusion",
            Self::UniqueTokens => "unique tokens",
            Self::OrderedTokens => "ordered tokens",
            Self::LostUpdate => "lost updates",
            Self::LeftBehind => "left behind",
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
    /// The holds that show it: two at most.
    pub holds: Vec<Hold>,
    /// Why it is legitimate, if it is: what was broken on purpose lets it happen, as the store's promises say.
    pub excused: Option<String>,
    /// When the history began, from which the story counts.
    pub start: Moment,
}

impl Violation {
    /// Why one of the faults makes it legitimate, if one does. Tokens and registers have no excuse.
    pub fn excuse<'a>(&self, faults: &'a [Fault]) -> Option<&'a str> {
        let earlier = self.holds.first().filter(|_| self.rule == Rule::Exclusion)?;
        faults.iter().find_map(|fault| fault.excuses(earlier.grant.invoked, self.from, self.to))
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
