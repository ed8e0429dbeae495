//! What can go wrong at a resource. The refusal has a type of its own: it is the point of all this.

use std::fmt;

use crate::error::untold;
use crate::text::printable;
use crate::{FencingToken, Name, Source};

/// The result of everything in this module that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The refusal of a token that is too old: a later holder of the lock has been here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[error(
    "token {presented} is refused at resource `{}`, which has seen {highest}; the lock was lost, or this \
     token has had its one effect: stop, and take the lock again",
    printable(resource)
)]
pub struct StaleToken {
    /// The resource that refused.
    pub resource: String,
    /// The token that it was shown.
    pub presented: FencingToken,
    /// The largest token that it has seen. Equal to `presented` where a token has one effect only and has had
    /// it.
    pub highest: FencingToken,
}

impl StaleToken {
    /// Makes a refusal, for resources of your own.
    pub fn new(resource: impl Into<String>, presented: FencingToken, highest: FencingToken) -> Self {
        Self { resource: resource.into(), presented, highest }
    }
}

/// Why a resource did not do what it was asked to. Its `source()` goes on where its message ends.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The token is too old. Nothing was written.
    Stale(StaleToken),

    /// A write was sent and its answer never came: it took effect, or will yet, or never will. Writing again
    /// with the same token is no cure: the first write may come late and undo the second. Take the lock again
    /// and activate its new token, which keeps the late write out; then read what is there. (A
    /// [one-shot write](super::Resource::write_once) may simply be repeated.)
    #[non_exhaustive]
    Uncertain {
        /// The resource.
        resource: Name,
        /// What came instead of the answer.
        source: Source,
    },

    /// The resource is out of reach, misconfigured, or was asked for something that makes no sense. Nothing
    /// was written.
    Failed(crate::Error),
}

impl Error {
    /// The refusal, if it is one.
    pub fn stale(&self) -> Option<&StaleToken> {
        match self {
            Self::Stale(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// A write whose answer never came, for resources of your own.
    pub fn uncertain(resource: &Name, source: impl Into<Source>) -> Self {
        Self::Uncertain { resource: resource.clone(), source: source.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Failed(crate::Error::invalid(message))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale(refusal) => refusal.fmt(f),
            Self::Uncertain { resource, source } => write!(
                f,
                "whether the write to resource `{}` took effect is unknown: {}; take the lock again and \
                 activate its token, which keeps a late write out, then read",
                printable(resource.as_str()),
                printable(&source.to_string())
            ),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Stale(_) => None,
            Self::Uncertain { source, .. } => untold(&self.to_string(), source),
            Self::Failed(error) => error.source(),
        }
    }
}

impl From<StaleToken> for Error {
    fn from(refusal: StaleToken) -> Self {
        Self::Stale(refusal)
    }
}

impl From<crate::Error> for Error {
    fn from(error: crate::Error) -> Self {
        Self::Failed(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_cannot_drive_a_terminal() {
        let why = "ERR \u{1b}]0;owned\u{7}\nfine";
        let error = Error::uncertain(&Name::new("a").unwrap(), why);
        assert!(error.to_string().contains(r"ERR \u{1b}]0;owned\u{7}\nfine; take the lock"), "{error}");
        assert!(!error.to_string().contains(char::is_control), "{error}");
    }
}
