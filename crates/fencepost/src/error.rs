//! What can go wrong. One enum; never one variant for two different situations.

use std::fmt;
use std::time::Duration;

use crate::report::NoMajority;
use crate::text::printable;
use crate::{Holder, Name, NodeReport, format_duration};

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Where an error came from.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// What went wrong. Messages name the lock and the next step and never contain a password.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Somebody else has the lock and the caller did not want to wait.
    #[error("lock `{}` is busy{}", printable(name.as_str()), holder_phrase(holder))]
    Busy {
        /// The lock.
        name: Name,
        /// Who has it, if the store could tell.
        holder: Option<Box<Holder>>,
    },

    /// Somebody else kept the lock for as long as the caller was willing to wait.
    #[error(
        "lock `{}` was not free within {}{}",
        printable(name.as_str()), format_duration(*waited), holder_phrase(holder)
    )]
    Timeout {
        /// The lock.
        name: Name,
        /// How long the caller has waited.
        waited: Duration,
        /// Who had it at the last look, if the store could tell.
        holder: Option<Box<Holder>>,
    },

    /// The lock was held and is not any more.
    #[error("lock `{}` was lost: {why}", printable(name.as_str()))]
    Lost {
        /// The lock.
        name: Name,
        /// Why.
        why: Loss,
    },

    /// The store did not answer, or could not be reached. Nothing was acquired.
    #[error("store {store} is out of reach: {source}")]
    Unavailable {
        /// The store, without its password.
        store: String,
        /// What the attempt ran into.
        source: Source,
    },

    /// A request was sent and its answer never came. For a release: the lock ends by itself when its ttl does,
    /// and the release is still being tried in the background.
    #[error("outcome for lock `{}` is unknown: {source}", printable(name.as_str()))]
    Uncertain {
        /// The lock.
        name: Name,
        /// What came instead of the answer.
        source: Source,
    },

    /// This store cannot do that.
    #[error("{what} is not supported here; {instead}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// What to do instead.
        instead: String,
    },

    /// An argument is wrong. Nothing was done.
    #[error("{message}")]
    Invalid {
        /// What is wrong with it and what would be right.
        message: String,
    },

    /// The store is not fit for locks as it is configured, or refuses us.
    #[error("{message}")]
    Config {
        /// What is wrong and what to change.
        message: String,
    },

    /// The store answered with an error of its own, or with something we cannot read.
    #[error("store {store} answered with an error: {source}")]
    Backend {
        /// The store, without its password.
        store: String,
        /// Its error.
        source: Source,
    },
}

fn holder_phrase(holder: &Option<Box<Holder>>) -> String {
    holder.as_ref().map(|holder| format!("; held by {holder}")).unwrap_or_default()
}

impl Error {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into() }
    }

    pub(crate) fn config(message: impl Into<String>) -> Self {
        Self::Config { message: message.into() }
    }

    pub(crate) fn unsupported(what: impl Into<String>, instead: impl Into<String>) -> Self {
        Self::Unsupported { what: what.into(), instead: instead.into() }
    }

    pub(crate) fn lost(name: &Name, why: Loss) -> Self {
        Self::Lost { name: name.clone(), why }
    }

    /// Whether trying again later, with nothing changed, can help.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Busy { .. } | Self::Timeout { .. } | Self::Unavailable { .. } | Self::Uncertain { .. }
        )
    }

    /// What each node said, for an [`Unavailable`](Self::Unavailable) of a store with several; else nothing.
    pub fn nodes(&self) -> &[NodeReport] {
        match self {
            Self::Unavailable { source, .. } => {
                source.downcast_ref::<NoMajority>().map_or(&[], |none| &none.nodes)
            }
            _ => &[],
        }
    }

    /// Who holds the lock, for [`Busy`](Self::Busy) and [`Timeout`](Self::Timeout).
    pub fn holder(&self) -> Option<&Holder> {
        match self {
            Self::Busy { holder, .. } | Self::Timeout { holder, .. } => holder.as_deref(),
            _ => None,
        }
    }
}

/// Why a lock was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// The lease ended and was not to be renewed.
    Expired,
    /// Somebody else has the lock: its entry was deleted, evicted or overwritten.
    Taken,
    /// An operator took it back.
    ForceReleased {
        /// The reason the operator gave.
        reason: String,
    },
    /// The session or connection that carried the lock ended.
    SessionEnded,
    /// The lease ended while the store did not answer renewals.
    Unreachable,
    /// This process, or the whole machine, stood still for longer than the lease.
    Paused,
    /// The lock was held for its `max_hold`.
    MaxHold,
    /// This process was forked from the one that holds the lock, and does not hold it.
    Forked,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("its lease ended"),
            Self::Taken => f.write_str("its entry in the store is gone or belongs to somebody else"),
            Self::ForceReleased { reason } => {
                write!(f, "force-released by an operator: {}", printable(reason))
            }
            Self::SessionEnded => f.write_str("the session that carried it ended"),
            Self::Unreachable => f.write_str("the store did not answer renewals until the lease ended"),
            Self::Paused => f.write_str("this process stood still for longer than the lease"),
            Self::MaxHold => f.write_str("it was held for its max_hold"),
            Self::Forked => {
                f.write_str("the process that this one was forked from holds it; acquire it anew")
            }
        }
    }
}

/// Why a lock is at risk: still held, but it will be lost unless something changes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Risk {
    /// A renewal is overdue and has not been answered yet.
    RenewalLate,
    /// The store does not answer renewals, or refuses them for now.
    Unreachable,
    /// The lock is not renewed (any more) and its lease nears its end.
    Ending,
    /// The lock nears its `max_hold`.
    MaxHold,
}

impl fmt::Display for Risk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RenewalLate => "its renewal is late",
            Self::Unreachable => "the store does not answer renewals",
            Self::Ending => "its lease nears its end and is not renewed",
            Self::MaxHold => "it nears its max_hold",
        })
    }
}
