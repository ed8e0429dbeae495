//! What the calls, the holds and the threads of one store share.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::config::Config;
use super::directory::Directory;
use super::failure::Failure;
use super::fork;
use super::keys::file_name;
use super::listener::{Listener, Watched};
use super::local_queue::LocalQueues;
use super::lockfile::LockFile;
use super::record::{Damage, Page, Record};
use super::timestamp::wall;
use super::waiters::WaiterSlots;
use crate::backends::common::backoff::Backoff;
use crate::runtime::clock::{Clock, Moment};
use crate::text::printable;
use crate::token::TOKEN_LIMIT;
use crate::{Error, FencingToken, Name, Owner, Result};

#[derive(Debug)]
pub(super) struct Client {
    pub(super) directory: Arc<Directory>,
    pub(super) durable: bool,
    timeout: Duration,
    pub(super) clock: Clock,
    /// The store, for messages.
    pub(super) label: String,
    /// What we hold, to be told when an operator takes it.
    pub(super) holds: Mutex<HashMap<Owner, Weak<dyn Watched>>>,
    pub(super) queues: LocalQueues,
    pub(super) waiters: WaiterSlots,
    pub(super) listener: Listener,
}

impl Client {
    pub(super) fn open(config: &Config) -> Result<Arc<Self>> {
        let directory = Directory::open(&config.directory, config.access)?;
        fork::install().map_err(|error| {
            Error::config(format!("the file store cannot protect its locks from forked children: {error}"))
        })?;
        Ok(Arc::new(Self {
            label: printable(&format!("file:{}", directory.path.display())).into_owned(),
            directory: Arc::new(directory),
            durable: config.durable,
            timeout: config.timeout,
            clock: Clock::system(),
            holds: Mutex::default(),
            queues: LocalQueues::default(),
            waiters: WaiterSlots::default(),
            listener: Listener::default(),
        }))
    }

    /// The lock file of a name, if there is one.
    pub(super) fn file(&self, name: &Name) -> std::io::Result<Option<LockFile>> {
        LockFile::open(&self.directory, &file_name(name))
    }

    /// The record in a page, if it is this lock's.
    pub(super) fn record<'a>(&self, page: &'a Page, name: &Name) -> Result<Option<Record<'a>>, Damage> {
        match page.record()? {
            Some(record) if record.name != name.as_str() => {
                Err(Damage::OtherLock(record.name.escape_debug().to_string()))
            }
            // Without a clock to fall back on, a counter that vanished is not to be started over.
            None if self.durable && page.len > 0 => Err(Damage::Truncated),
            record => Ok(record),
        }
    }

    /// One more than `last`, and not less than the wall clock in microseconds: so tokens also grow when the
    /// record was lost.
    pub(super) fn next_token(&self, last: u64) -> Result<FencingToken> {
        next_token(last, wall()).ok_or_else(|| Error::Backend {
            store: self.label.clone(),
            source: "fencing tokens have reached their limit of 2^53".into(),
        })
    }

    pub(super) fn patience(&self) -> Patience {
        let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(10));
        Patience { clock: self.clock.clone(), deadline: self.clock.now().plus(self.timeout), backoff }
    }

    /// The error of a step on the file of a lock.
    pub(super) fn error(&self, name: &Name, failure: impl Into<Failure>) -> Error {
        self.error_in(&file_name(name), name, failure.into())
    }

    /// The same for a file whose name may be another lock's.
    pub(super) fn error_in(&self, file_name: &str, name: &Name, failure: Failure) -> Error {
        let path = self.directory.path.join(file_name);
        let path = path.display();
        match failure {
            Failure::Told(error) => error,
            Failure::Lost(why) => Error::lost(name, why),
            Failure::Damaged(damage) => {
                // Another version may have it held.
                let first = match damage {
                    Damage::Version(_) => "use that version for this directory; or, ",
                    _ => "",
                };
                let source = format!("lock file `{path}`: {damage}; {first}{}", start_over(name)).into();
                Error::Backend { store: self.label.clone(), source }
            }
            Failure::System(error) => self.system_error(&format!("lock file `{path}`: {error}"), &error),
        }
    }

    /// The error of a step on the directory.
    pub(super) fn directory_error(&self, error: impl Into<std::io::Error>) -> Error {
        let (path, error) = (self.directory.path.display(), error.into());
        self.system_error(&format!("lock directory `{path}`: {error}"), &error)
    }

    /// An error of the system, sorted by what can be done about it.
    fn system_error(&self, message: &str, error: &std::io::Error) -> Error {
        let step = match error.kind() {
            ErrorKind::InvalidInput | ErrorKind::IsADirectory => {
                "look who has put it there, remove it, or name another directory as `file:///path`"
            }
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                "check who owns it and its directory, or name another one as `file:///path`"
            }
            _ if error.raw_os_error() == Some(libc::ELOOP) => "a lock file must not be a symbolic link",
            ErrorKind::NotFound => {
                let step = "the lock directory is gone, connect again to make it anew";
                return self.unavailable(format!("{message}; {step}"));
            }
            _ => return self.unavailable(message.to_owned()),
        };
        Error::config(format!("{message}; {step}"))
    }

    pub(super) fn unavailable(&self, source: String) -> Error {
        Error::Unavailable { store: self.label.clone(), source: source.into() }
    }
}

/// How long a call puts up with a file that another process keeps busy. That lasts for an instant, unless the
/// process was stopped.
pub(super) struct Patience {
    clock: Clock,
    deadline: Moment,
    backoff: Backoff,
}

impl Patience {
    /// Pauses before another look; `false` if there must be none.
    pub(super) async fn pause(&mut self) -> bool {
        if self.clock.now() >= self.deadline {
            return false;
        }
        self.backoff.sleep().await;
        true
    }
}

fn next_token(last: u64, wall: u64) -> Option<FencingToken> {
    let floor = if wall < TOKEN_LIMIT { wall } else { 0 };
    FencingToken::new(last.checked_add(1)?.max(floor))
}

/// What to do about a file that cannot be read.
fn start_over(name: &Name) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b":/@+,=._-".contains(&byte);
    let quoted = match name.as_str().bytes().all(is_plain) {
        true => name.to_string(),
        false => format!("'{}'", name.as_str().replace('\'', r"'\''")),
    };
    format!(
        "once you are sure that nobody holds the lock, start it over with `fencepost force-release {quoted} \
         --now --reason …`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_token_is_larger_than_the_last_and_not_behind_the_clock(
            last in 0u64..TOKEN_LIMIT - 1,
            wall in any::<u64>(),
        ) {
            let token = next_token(last, wall).unwrap().get();
            prop_assert!(token > last);
            prop_assert!(token >= wall || wall >= TOKEN_LIMIT);
        }
    }

    #[test]
    fn tokens_end_at_their_limit_and_a_mad_clock_does_not_use_them_up() {
        assert!(next_token(TOKEN_LIMIT - 1, 0).is_none());
        assert_eq!(next_token(7, u64::MAX).unwrap().get(), 8);
    }
}
