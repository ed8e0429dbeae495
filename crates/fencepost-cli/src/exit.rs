//! How the command ends: one place that turns what went wrong into a message, an exit code and a next step.

use std::ffi::OsString;
use std::io;

use fencepost::{Error, Holder, Name, NodeReport, Verdict};
use serde::Serialize;

use crate::output::one_line;

/// `show` found that the lock is free.
pub(crate) const FREE: u8 = 1;
/// The user did not agree.
pub(crate) const DECLINED: u8 = 1;
/// `list` could not read every lock.
pub(crate) const INCOMPLETE: u8 = 1;
/// `torture` has found what must not be.
#[cfg(feature = "torture")]
pub(crate) const VIOLATION: u8 = 1;
/// `torture` has found nothing, and too little happened for that to mean anything.
#[cfg(feature = "torture")]
pub(crate) const INCONCLUSIVE: u8 = 2;
/// Wrong arguments, a wrong URL, or a store that is not fit for locks.
pub(crate) const USAGE: u8 = 64;
/// The store is out of reach.
pub(crate) const UNAVAILABLE: u8 = 69;
/// The lock was lost and the command was ended.
pub(crate) const LOST: u8 = 70;
/// The operating system refused something we need.
pub(crate) const SYSTEM: u8 = 71;
/// Somebody else has the lock.
pub(crate) const BUSY: u8 = 75;
/// The command exists and cannot be run.
pub(crate) const CANNOT_RUN: u8 = 126;
/// There is no such command.
pub(crate) const NOT_FOUND: u8 = 127;

/// The exit codes, for `--help`.
pub(crate) const HELP: &str = "\
Exit codes:
  the command's own under `run` (128 + N if signal N killed it; 126, 127 as in a shell)
  1   `show`: the lock is free; `list` could not read every lock; `force-release` was not agreed to;
      `torture` found a violation
  2   `torture` found none, but saw too little to say anything
  64  wrong usage or configuration
  69  the store is out of reach, or answered with an error
  70  the lock was lost (under `run`: and the command was ended)
  71  the operating system refused a process, file or descriptor
  75  the lock is busy, was not free in time, or has changed hands";

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The library said so.
    Lock(Error),
    /// As `Lock`, of somebody else's lock, with the exit code that the user has chosen for it.
    Busy(Error, u8),
    /// An argument is wrong.
    Usage(String),
    /// The lock went away under a running command, which was ended.
    Ended { name: Name, message: String, cause: &'static str },
    /// The lock is held by a `run` that this process runs under.
    Nested { holder: Box<Holder>, code: u8 },
    /// The command could not be started.
    CannotRun { command: OsString, error: io::Error },
    /// A signal ended the waiting.
    Interrupted(i32),
    /// The operating system refused something.
    System { doing: &'static str, error: io::Error },
}

/// A result with the exit code in both arms.
pub(crate) type Outcome = Result<u8, Failure>;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

/// For `map_err`: what was being done when the system refused.
pub(crate) fn system<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Failure {
    move |error| Failure::System { doing, error: error.into() }
}

/// An error as `--json` shows it.
#[derive(Serialize)]
pub(crate) struct Report<'a> {
    pub(crate) error: &'static str,
    pub(crate) message: String,
    pub(crate) name: Option<&'a str>,
    pub(crate) holder: Option<&'a Holder>,
    /// Of a loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<&'static str>,
}

impl Failure {
    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Lock(error) => match error {
                Error::Busy { .. } | Error::Timeout { .. } | Error::Changed { .. } => BUSY,
                Error::Lost { .. } => LOST,
                Error::Invalid { .. } | Error::Config { .. } | Error::Unsupported { .. } => USAGE,
                _ => UNAVAILABLE,
            },
            Self::Busy(_, code) | Self::Nested { code, .. } => *code,
            Self::Usage(_) => USAGE,
            Self::Ended { .. } => LOST,
            Self::CannotRun { error, .. } if error.kind() == io::ErrorKind::NotFound => NOT_FOUND,
            Self::CannotRun { .. } => CANNOT_RUN,
            Self::Interrupted(signal) => by_signal(*signal),
            // Whoever read our output has had enough of it.
            Self::System { error, .. } if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Self::System { .. } => SYSTEM,
        }
    }

    /// What to tell; `None` if the exit code says it all.
    pub(crate) fn report(&self) -> Option<Report<'_>> {
        let (error, message) = match self {
            Self::Interrupted(_) => return None,
            Self::System { error, .. } if error.kind() == io::ErrorKind::BrokenPipe => return None,
            Self::Lock(error) | Self::Busy(error, _) => (kind(error), error.to_string()),
            Self::Usage(message) => ("usage", message.clone()),
            Self::Ended { message, .. } => ("lost", message.clone()),
            Self::Nested { holder, .. } => {
                let name = one_line(holder.name.as_str());
                let message = format!(
                    "lock `{name}` is held by the `fencepost run` that this runs under ({holder}): \
                     waiting for it may never end"
                );
                ("busy", message)
            }
            Self::CannotRun { command, error } => {
                ("cannot-run", format!("cannot run `{}`: {error}", command.to_string_lossy().escape_debug()))
            }
            Self::System { doing, error } => ("system", format!("{doing} failed: {error}")),
        };
        let (name, holder) = (self.name().map(Name::as_str), self.holder());
        Some(Report { error, message, name, holder, cause: self.cause() })
    }

    /// What the user can do about it.
    pub(crate) fn next_step(&self) -> Option<String> {
        let error = match self {
            Self::Lock(error) | Self::Busy(error, _) => error,
            Self::Usage(_) => return Some("see `fencepost --help`".to_owned()),
            Self::Ended { name, .. } => return Some(who_has(name)),
            Self::Nested { .. } => {
                let step = "take the lock once, in the outermost command; or unset FENCEPOST_OUTER, if that \
                            command ends without this one";
                return Some(step.to_owned());
            }
            Self::CannotRun { error, .. } if error.kind() == io::ErrorKind::NotFound => {
                let step = "after the lock's name comes a program, by its path or from PATH; a second lock \
                            is given as `--also NAME`";
                return Some(step.to_owned());
            }
            _ => return None,
        };
        Some(match error {
            // A client of other make: nothing tells more of it.
            Error::Busy { holder: None, .. } => "wait with `--wait 30s`".to_owned(),
            Error::Busy { name, .. } => {
                format!("wait with `--wait 30s`, or look with `fencepost show {}`", quoted(name.as_str()))
            }
            Error::Timeout { name, .. } => format!(
                "wait longer, or take the lock back with `fencepost force-release {} --reason TEXT`",
                quoted(name.as_str())
            ),
            // The store runs, and its error says what it needs.
            Error::Unavailable { .. } if most_are_up(error.nodes()) => return None,
            Error::Unavailable { .. } => {
                "check that the store runs and that `--store` or FENCEPOST_STORE names it".to_owned()
            }
            Error::Lost { name, .. } | Error::Changed { name, .. } => who_has(name),
            _ => return None,
        })
    }

    fn holder(&self) -> Option<&Holder> {
        match self {
            Self::Lock(error) | Self::Busy(error, _) => error.holder(),
            Self::Nested { holder, .. } => Some(holder),
            _ => None,
        }
    }

    fn cause(&self) -> Option<&'static str> {
        match self {
            Self::Ended { cause, .. } => Some(cause),
            Self::Lock(Error::Lost { why, .. }) => Some(why.as_str()),
            _ => None,
        }
    }

    fn name(&self) -> Option<&Name> {
        match self {
            Self::Ended { name, .. } => Some(name),
            Self::Nested { holder, .. } => Some(&holder.name),
            Self::Lock(error) | Self::Busy(error, _) => match error {
                Error::Busy { name, .. }
                | Error::Timeout { name, .. }
                | Error::Lost { name, .. }
                | Error::Changed { name, .. }
                | Error::Uncertain { name, .. } => Some(name),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Whether most of several nodes answered.
fn most_are_up(nodes: &[NodeReport]) -> bool {
    let up = nodes.iter().filter(|node| !matches!(node.verdict, Verdict::Unreachable { .. }));
    up.count() > nodes.len() / 2
}

fn kind(error: &Error) -> &'static str {
    match error {
        Error::Busy { .. } => "busy",
        Error::Timeout { .. } => "timeout",
        Error::Lost { .. } => "lost",
        Error::Changed { .. } => "changed",
        Error::Unavailable { .. } => "unavailable",
        Error::Uncertain { .. } => "uncertain",
        Error::Unsupported { .. } => "unsupported",
        Error::Invalid { .. } => "invalid",
        Error::Config { .. } => "config",
        _ => "store",
    }
}

fn who_has(name: &Name) -> String {
    format!("see who has it now with `fencepost show {}`", quoted(name.as_str()))
}

/// 128 + N, as shells say it.
pub(crate) fn by_signal(signal: i32) -> u8 {
    u8::try_from(signal).map_or(u8::MAX, |signal| 128u8.saturating_add(signal))
}

/// A name as a shell takes it.
pub(crate) fn quoted(name: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_.:/@%+,".contains(c);
    if name.chars().all(plain) && !name.starts_with('-') {
        name.to_owned()
    } else {
        format!("'{}'", name.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_command_ends_with_128_and_its_signal() {
        assert_eq!((by_signal(2), by_signal(15), by_signal(64), by_signal(900)), (130, 143, 192, 255));
    }

    #[test]
    fn a_name_in_a_hint_can_be_pasted_into_a_shell() {
        assert_eq!(quoted("order:42"), "order:42");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted("$(rm x)"), "'$(rm x)'");
    }
}
