//! The options of a lock, shared by [`Lock`](crate::Lock), [`LockSet`](crate::LockSet) and their blocking
//! twins.

use std::sync::Arc;
use std::time::Duration;

use crate::runtime::clock::Clock;
use crate::{Error, Result, Retry, Wait};

/// The ttl of a lock that names none.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

const MIN_TTL: Duration = Duration::from_millis(50);
const MAX_TTL: Duration = Duration::from_secs(30 * 86_400);
/// Of a note or a reason, which others read with the lock.
const MAX_TEXT: usize = 1024;
const MIN_CADENCE: Duration = Duration::from_millis(10);

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) ttl: Duration,
    /// Nobody has named the ttl.
    pub(crate) is_default_ttl: bool,
    pub(crate) wait: Wait,
    pub(crate) retry: Option<Retry>,
    pub(crate) note: Arc<str>,
    pub(crate) renew: bool,
    pub(crate) renew_every: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
}

impl Options {
    pub(crate) fn new(ttl: Duration) -> Self {
        let (wait, note) = (Wait::Forever, "".into());
        Self {
            ttl,
            is_default_ttl: true,
            wait,
            retry: None,
            note,
            renew: true,
            renew_every: None,
            max_hold: None,
        }
    }

    /// Refuses what cannot work, before anything is sent.
    pub(crate) fn check(&self) -> Result<()> {
        check_ttl(self.ttl)?;
        check_text("note", &self.note)?;
        if self.renew_every.is_some_and(|every| every < MIN_CADENCE || every > self.ttl * 4 / 5) {
            return Err(Error::invalid("renew_every must lie between 10ms and four fifths of the ttl"));
        }
        if self.max_hold.is_some_and(|hold| hold.is_zero()) {
            return Err(Error::invalid("max_hold must be longer than zero"));
        }
        Ok(())
    }

    /// How often to renew: as told, or a third of the ttl, a little less at random so that many guards
    /// spread.
    pub(crate) fn cadence(&self, clock: &Clock) -> Duration {
        match self.renew_every {
            Some(every) => every,
            None if clock.manual().is_some() => self.ttl / 3,
            None => self.ttl / 3 - (self.ttl / 30 - crate::wait::jittered(self.ttl / 30)),
        }
    }
}

/// Refuses a note or a reason that cannot be kept with a lock.
pub(crate) fn check_text(what: &str, text: &str) -> Result<()> {
    if text.contains('\0') {
        return Err(Error::invalid(format!("a {what} is text without NUL characters")));
    }
    let length = text.len();
    if length > MAX_TEXT {
        let why = format!("a {what} may have at most {MAX_TEXT} bytes, this one has {length}");
        return Err(Error::invalid(why));
    }
    Ok(())
}

pub(crate) fn check_ttl(ttl: Duration) -> Result<()> {
    if (MIN_TTL..=MAX_TTL).contains(&ttl) {
        return Ok(());
    }
    let [least, most, this] = [MIN_TTL, MAX_TTL, ttl].map(crate::format_duration);
    Err(Error::invalid(format!("a ttl lies between {least} and {most}, this one is {this}")))
}

/// Writes the chaining methods once for every type with [`Options`] at the path `$options`.
macro_rules! chained_options {
    ($($options:ident).+) => {
        /// How long the lease lasts without renewal. Default: the store's `ttl` parameter, else 30 s.
        ///
        /// Shorter: a crashed holder is replaced sooner. Longer: the lock outlives longer outages of the
        /// store.
        pub fn ttl(mut self, ttl: std::time::Duration) -> Self {
            self.$($options).+.ttl = ttl;
            self.$($options).+.is_default_ttl = false;
            self
        }

        /// How long to wait while somebody else has the lock. Default: forever.
        pub fn wait(mut self, wait: impl Into<$crate::Wait>) -> Self {
            self.$($options).+.wait = wait.into();
            self
        }

        /// Polls by this schedule instead of queueing at the store; `wait` still bounds it. Default: queue.
        pub fn retry(mut self, retry: $crate::Retry) -> Self {
            self.$($options).+.retry = Some(retry);
            self
        }

        /// Free text that others see while the lock is held. At most 1024 bytes; no secrets. Default: none.
        pub fn note(mut self, note: impl Into<std::sync::Arc<str>>) -> Self {
            self.$($options).+.note = note.into();
            self
        }

        /// Lets the lock end with its ttl. Default: the keeper renews it while the guard lives.
        pub fn without_renewal(mut self) -> Self {
            self.$($options).+.renew = false;
            self
        }

        /// How often to renew. Default: a third of the ttl, which leaves room for two failures.
        pub fn renew_every(mut self, every: std::time::Duration) -> Self {
            self.$($options).+.renew_every = Some(every);
            self
        }

        /// The longest the lock may be held: renewal stops so that validity ends there, and the guard is at
        /// risk and then lost. Catches a holder that hangs. Default: no limit.
        pub fn max_hold(mut self, hold: std::time::Duration) -> Self {
            self.$($options).+.max_hold = Some(hold);
            self
        }
    };
}
pub(crate) use chained_options;
