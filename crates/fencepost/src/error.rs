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
///
/// The message has all that is known, with the words of its `source` field. So
/// [`source()`](std::error::Error::source) goes on where the message ends: a report of the whole chain says
/// nothing twice.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Somebody else has the lock and the caller did not want to wait.
    #[non_exhaustive]
    Busy {
        /// The lock.
        name: Name,
        /// Who has it, if the store could tell.
        holder: Option<Box<Holder>>,
    },
    /// Somebody else kept the lock for as long as the caller was willing to wait.
    #[non_exhaustive]
    Timeout {
        /// The lock.
        name: Name,
        /// How long the caller has waited.
        waited: Duration,
        /// Who had it at the last look, if the store could tell.
        holder: Option<Box<Holder>>,
    },
    /// The lock was held and is not any more.
    #[non_exhaustive]
    Lost {
        /// The lock.
        name: Name,
        /// Why.
        why: Loss,
    },
    /// Another holder than the one that was to lose the lock has it by now, and keeps it.
    #[non_exhaustive]
    Changed {
        /// The lock.
        name: Name,
        /// Who has it, if the store could tell.
        holder: Option<Box<Holder>>,
    },
    /// The store did not answer, or could not be reached. Nothing was acquired.
    #[non_exhaustive]
    Unavailable {
        /// The store, without its password.
        store: String,
        /// What the attempt ran into.
        source: Source,
    },
    /// A request was sent and its answer never came. For a release: the lock ends by itself when its ttl
    /// does, and the release is still being tried in the background.
    #[non_exhaustive]
    Uncertain {
        /// The lock.
        name: Name,
        /// What came instead of the answer.
        source: Source,
    },
    /// This store cannot do that.
    #[non_exhaustive]
    Unsupported {
        /// What was asked for.
        what: String,
        /// What to do instead.
        instead: String,
    },
    /// An argument is wrong. Nothing was done.
    #[non_exhaustive]
    Invalid {
        /// What is wrong with it and what would be right.
        message: String,
    },
    /// The store is not fit for locks as it is configured, or refuses us.
    #[non_exhaustive]
    Config {
        /// What is wrong and what to change.
        message: String,
    },
    /// The store answered with an error of its own, or with something we cannot read.
    #[non_exhaustive]
    Backend {
        /// The store, without its password.
        store: String,
        /// Its error.
        source: Source,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lock = |name: &Name| format!("lock `{}`", printable(name.as_str()));
        let who = |holder: &Option<Box<Holder>>| {
            holder.as_ref().map(|holder| format!("; held by {holder}")).unwrap_or_default()
        };
        let said = |source: &Source| printable(&source.to_string()).into_owned();
        match self {
            Self::Busy { name, holder } => write!(f, "{} is busy{}", lock(name), who(holder)),
            Self::Timeout { name, waited, holder } => {
                write!(f, "{} was not free within {}{}", lock(name), format_duration(*waited), who(holder))
            }
            Self::Lost { name, why } => write!(f, "{} was lost: {why}", lock(name)),
            Self::Changed { name, holder } => {
                write!(f, "{} has changed hands; nothing was done{}", lock(name), who(holder))
            }
            Self::Unavailable { store, source } => {
                write!(f, "store {} is out of reach: {}", printable(store), said(source))
            }
            Self::Uncertain { name, source } => {
                write!(f, "outcome for {} is unknown: {}", lock(name), said(source))
            }
            Self::Unsupported { what, instead } => {
                write!(f, "{} is not supported here; {}", printable(what), printable(instead))
            }
            Self::Invalid { message } | Self::Config { message } => f.write_str(&printable(message)),
            Self::Backend { store, source } => {
                write!(f, "store {} answered with an error: {}", printable(store), said(source))
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unavailable { source, .. }
            | Self::Uncertain { source, .. }
            | Self::Backend { source, .. } => untold(&self.to_string(), source),
            _ => None,
        }
    }
}

/// The first in the chain of `source` that `message` has not told.
pub(crate) fn untold<'a>(message: &str, source: &'a Source) -> Option<&'a (dyn std::error::Error + 'static)> {
    let is_told = |cause: &dyn std::error::Error| message.contains(&*printable(&cause.to_string()));
    std::iter::successors(source.source(), |cause| cause.source()).find(|cause| !is_told(*cause))
}

/// Constructors, for stores and wrappers of your own.
impl Error {
    /// A wrong argument.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into() }
    }

    /// A store that is not fit for locks, or refuses us.
    pub fn config(message: impl Into<String>) -> Self {
        Self::Config { message: message.into() }
    }

    /// Something that the store cannot do, and what to do instead.
    pub fn unsupported(what: impl Into<String>, instead: impl Into<String>) -> Self {
        Self::Unsupported { what: what.into(), instead: instead.into() }
    }

    /// A lock that another one has than was meant.
    pub fn changed(name: &Name, holder: impl Into<Option<Holder>>) -> Self {
        Self::Changed { name: name.clone(), holder: holder.into().map(Box::new) }
    }

    /// A lock that was held and is not any more.
    pub fn lost(name: &Name, why: Loss) -> Self {
        Self::Lost { name: name.clone(), why }
    }

    /// A store that does not answer.
    pub fn unavailable(store: impl Into<String>, source: impl Into<Source>) -> Self {
        Self::Unavailable { store: store.into(), source: source.into() }
    }

    /// A request whose answer never came.
    pub fn uncertain(name: &Name, source: impl Into<Source>) -> Self {
        Self::Uncertain { name: name.clone(), source: source.into() }
    }

    /// A store that answered with an error of its own.
    pub fn backend(store: impl Into<String>, source: impl Into<Source>) -> Self {
        Self::Backend { store: store.into(), source: source.into() }
    }

    /// What a release or an extension ran into: its outcome is unknown if the store may have carried it out.
    pub(crate) fn of_change(self, name: &Name) -> Self {
        match self {
            Self::Unavailable { .. } => Self::uncertain(name, self),
            other => other,
        }
    }

    /// The same error once more, for each of several that a single request was made for. The source is kept
    /// as text, but for what [`nodes`](Self::nodes) needs.
    #[allow(dead_code)] // for some stores
    pub(crate) fn copy(&self) -> Self {
        let copied = |source: &Source| match source.downcast_ref::<NoMajority>() {
            Some(none) => Box::new(none.clone()) as Source,
            None => source.to_string().into(),
        };
        match self {
            Self::Busy { name, holder } => Self::Busy { name: name.clone(), holder: holder.clone() },
            Self::Timeout { name, waited, holder } => {
                Self::Timeout { name: name.clone(), waited: *waited, holder: holder.clone() }
            }
            Self::Lost { name, why } => Self::lost(name, why.clone()),
            Self::Changed { name, holder } => Self::Changed { name: name.clone(), holder: holder.clone() },
            Self::Unavailable { store, source } => Self::unavailable(store, copied(source)),
            Self::Uncertain { name, source } => Self::uncertain(name, copied(source)),
            Self::Unsupported { what, instead } => Self::unsupported(what, instead),
            Self::Invalid { message } => Self::invalid(message),
            Self::Config { message } => Self::config(message),
            Self::Backend { store, source } => Self::backend(store, copied(source)),
        }
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

    /// Who holds the lock, for [`Busy`](Self::Busy), [`Timeout`](Self::Timeout) and
    /// [`Changed`](Self::Changed).
    pub fn holder(&self) -> Option<&Holder> {
        match self {
            Self::Busy { holder, .. } | Self::Timeout { holder, .. } | Self::Changed { holder, .. } => {
                holder.as_deref()
            }
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
    #[non_exhaustive]
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

impl Loss {
    /// A lock that an operator took back, and why.
    pub fn force_released(reason: impl Into<String>) -> Self {
        Self::ForceReleased { reason: reason.into() }
    }

    /// The cause as one word for programs and logs, such as `force_released`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Taken => "taken",
            Self::ForceReleased { .. } => "force_released",
            Self::SessionEnded => "session_ended",
            Self::Unreachable => "unreachable",
            Self::Paused => "paused",
            Self::MaxHold => "max_hold",
            Self::Forked => "forked",
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_of_errors_says_nothing_twice_and_leaves_nothing_out() {
        #[derive(Debug)]
        struct Outer(std::io::Error, bool);
        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                if self.1 { write!(f, "no connection: {}", self.0) } else { f.write_str("no connection") }
            }
        }
        impl std::error::Error for Outer {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                Some(&self.0)
            }
        }
        for tells in [false, true] {
            let source = Outer(std::io::Error::other("refused"), tells);
            let error = Error::unavailable("x:", source).of_change(&Name::new("a").unwrap());
            assert!(error.to_string().contains("no connection"));
            let rest = std::error::Error::source(&error).map(ToString::to_string);
            assert_eq!(rest.as_deref(), (!tells).then_some("refused"));
        }
    }

    #[test]
    fn no_message_drives_a_terminal_or_forges_a_line() {
        let hostile = "\u{1b}[2J\n2026 ERROR forged \u{202e}txt.exe\u{2028}\u{200b}";
        let (name, source) = (Name::new(hostile).unwrap(), || Source::from(hostile));
        let mut holder = Holder::unknown(name.clone());
        holder.host = Some(hostile.to_owned());
        holder.note = Some(hostile.to_owned());
        let (store, holder, waited) = (hostile.to_owned(), Some(Box::new(holder)), Duration::ZERO);
        let unavailable = || Error::Unavailable { store: store.clone(), source: source() };
        for error in [
            Error::Busy { name: name.clone(), holder: holder.clone() },
            Error::Timeout { name: name.clone(), waited, holder: holder.clone() },
            Error::Changed { name: name.clone(), holder },
            Error::lost(&name, Loss::ForceReleased { reason: hostile.to_owned() }),
            unavailable(),
            unavailable().of_change(&name),
            Error::Uncertain { name: name.clone(), source: source() },
            Error::unsupported(hostile, hostile),
            Error::invalid(hostile),
            Error::config(hostile),
            Error::Backend { store: store.clone(), source: source() },
        ] {
            let message = error.to_string();
            assert!(!message.contains(['\u{1b}', '\n', '\u{202e}', '\u{2028}', '\u{200b}']), "{message:?}");
            assert!(message.contains("forged"), "{message:?}");
        }
    }
}
