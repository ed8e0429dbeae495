//! What each node of a deployment said, where a store has several.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::text::printable;
use crate::{Error, format_duration};

/// What one node said to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It gave its vote.
    Granted,
    /// Somebody else has its key.
    #[non_exhaustive]
    Held {
        /// Who, in a phrase.
        by: String,
    },
    /// It may have lost data and does not vote for now.
    #[non_exhaustive]
    Quarantined {
        /// For how much longer.
        left: Duration,
        /// Why: it is new, was restarted, or its deployment was changed.
        why: String,
    },
    /// It did not answer.
    #[non_exhaustive]
    Unreachable {
        /// What the attempt ran into.
        why: String,
    },
    /// It is not fit for this deployment, or refuses us: a wrong password, a replica, a member of another
    /// deployment, the same server under another name.
    #[non_exhaustive]
    Refused {
        /// What is wrong and what to change.
        why: String,
    },
}

impl Verdict {
    /// What an error of one node means for the whole.
    #[allow(dead_code)] // for some stores
    pub(crate) fn of(error: &Error) -> Self {
        match error {
            Error::Config { message } | Error::Invalid { message } => Self::Refused { why: message.clone() },
            Error::Unavailable { source, .. } => Self::Unreachable { why: source.to_string() },
            other => Self::Unreachable { why: other.to_string() },
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted => f.write_str("granted"),
            Self::Held { by } => write!(f, "held by {by}"),
            Self::Quarantined { left, why } => {
                write!(f, "does not vote for another {} ({why})", format_duration(*left))
            }
            Self::Unreachable { why } => write!(f, "does not answer: {}", printable(why)),
            Self::Refused { why } => write!(f, "not usable: {}", printable(why)),
        }
    }
}

/// One node and what it said.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeReport {
    /// The node's URL, without its password.
    pub node: String,
    /// What it said.
    pub verdict: Verdict,
}

/// No majority voted for us: what each node said instead. The source of an
/// [`Unavailable`](crate::Error::Unavailable) error.
#[derive(Clone, Debug)]
pub(crate) struct NoMajority {
    pub(crate) nodes: Vec<NodeReport>,
    /// What to do about it, where that is known.
    pub(crate) next: Option<&'static str>,
}

impl fmt::Display for NoMajority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.nodes.len();
        write!(f, "no majority ({} of {n}) of the nodes can vote", n / 2 + 1)?;
        for report in &self.nodes {
            write!(f, "; {} {}", report.node, report.verdict)?;
        }
        self.next.map_or(Ok(()), |next| write!(f, "; {next}"))
    }
}

impl std::error::Error for NoMajority {}

/// What one node has of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NodeView {
    /// The node's URL, without its password.
    pub node: String,
    /// Whether its key is the holder's.
    pub holds: bool,
    /// Its token counter.
    pub counter: Option<u64>,
    /// When its key expires, in milliseconds.
    pub expires_in_ms: Option<u64>,
    /// What stands in the way, if it cannot be asked or does not vote.
    pub problem: Option<String>,
}
