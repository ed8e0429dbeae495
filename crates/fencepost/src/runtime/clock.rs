//! Time that counts system suspend. `std::time::Instant` and tokio's timers stop while a laptop sleeps, so a
//! lease would look valid for longer than it is; everything here reads `CLOCK_BOOTTIME` instead. The manual
//! clock is for tests.

use std::any::Any;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::sync::watch;

/// A point in time of one [`Clock`].
///
/// In nanoseconds, which last for centuries: a held lock has a dozen of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// Later than every other moment.
    pub const NEVER: Self = Self(u64::MAX);

    /// The moment `by` later.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(nanoseconds(by)))
    }

    /// The time from `earlier` to this moment; zero if `earlier` is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Time since the clock's origin (for the system clock: since boot).
    pub fn since_origin(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// The moment `since` after the clock's origin.
    pub fn at(since: Duration) -> Self {
        Self(nanoseconds(since))
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Where time comes from: the system, or a test.
#[derive(Clone, Debug, Default)]
pub struct Clock(Option<ManualClock>);

impl Clock {
    /// The system's suspend-aware monotonic clock.
    pub fn system() -> Self {
        Self(None)
    }

    /// The time now.
    pub fn now(&self) -> Moment {
        match &self.0 {
            None => boottime(),
            Some(manual) => manual.now(),
        }
    }

    /// Waits until `moment`. On the system clock this is as exact as tokio's timers, so it may be late by the
    /// length of a suspend; nothing that decides about validity waits here.
    pub async fn sleep_until(&self, moment: Moment) {
        match &self.0 {
            None => loop {
                let left = moment.since(boottime());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left).await;
            },
            Some(manual) => manual.reached(moment).await,
        }
    }

    /// Waits for `future`, at most until `deadline`.
    pub(crate) async fn within<T>(
        &self,
        deadline: Option<Moment>,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        let Some(deadline) = deadline else {
            return Some(future.await);
        };
        tokio::select! {
            biased;
            out = future => Some(out),
            () = self.sleep_until(deadline) => None,
        }
    }

    pub(crate) fn manual(&self) -> Option<&ManualClock> {
        self.0.as_ref()
    }
}

fn boottime() -> Moment {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let id = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let id = rustix::time::ClockId::Monotonic;
    let now = rustix::time::clock_gettime(id);
    // The clock counts up from boot: neither part is ever negative.
    Moment::at(Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0)))
}

/// Work that falls due at moments of a manual clock.
pub(crate) trait Due: Any + Debug + Send + Sync {
    /// Waits until nothing is due and nothing is under way; returns when the next thing falls due.
    fn settled(&self) -> Pin<Box<dyn Future<Output = Moment> + Send + '_>>;
}

/// A clock that moves only when told to. For tests, with [`memory::Store`](crate::memory::Store).
#[derive(Clone, Debug)]
pub struct ManualClock {
    now: Arc<watch::Sender<Moment>>,
    due: Arc<OnceLock<Weak<dyn Due>>>,
}

impl Default for ManualClock {
    fn default() -> Self {
        // Not zero, so that a test may subtract.
        let start = Moment::at(Duration::from_secs(1_000_000));
        Self { now: Arc::new(watch::Sender::new(start)), due: Arc::default() }
    }
}

impl ManualClock {
    /// A new clock, standing still.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn clock(&self) -> Clock {
        Clock(Some(self.clone()))
    }

    pub(crate) fn now(&self) -> Moment {
        *self.now.borrow()
    }

    /// Lets time pass as it does for a running process: every renewal that falls due on the way is made, at
    /// its time, before the clock goes on. Returns when all of them are answered.
    pub async fn advance(&self, by: Duration) {
        let target = self.now().plus(by);
        loop {
            let next = self.settled().await;
            if next > target {
                break;
            }
            self.set(next);
        }
        self.set(target);
        self.settled().await;
    }

    async fn settled(&self) -> Moment {
        match self.due() {
            Some(due) => due.settled().await,
            None => Moment::NEVER,
        }
    }

    /// Lets time leap, as it does for a process that was stopped or a machine that was suspended: nothing
    /// runs in between.
    pub fn leap(&self, by: Duration) {
        self.set(self.now().plus(by));
    }

    fn set(&self, moment: Moment) {
        self.now.send_modify(|now| *now = (*now).max(moment));
    }

    pub(crate) async fn reached(&self, moment: Moment) {
        let mut now = self.now.subscribe();
        // The sender lives in `self`, so the wait can only end by reaching the moment.
        let _ = now.wait_for(|now| *now >= moment).await;
    }

    pub(crate) fn due(&self) -> Option<Arc<dyn Due>> {
        self.due.get()?.upgrade()
    }

    /// Has [`advance`](Self::advance) wait for this work. Only the first call counts.
    pub(crate) fn wait_for(&self, due: Weak<dyn Due>) {
        let _ = self.due.set(due);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_moment_is_later_than_never() {
        let second = Moment::at(Duration::from_secs(1));
        assert_eq!(second.plus(Duration::MAX), Moment::NEVER);
        assert_eq!(Moment::at(Duration::MAX), Moment::NEVER);
        assert_eq!(Moment::NEVER.plus(Duration::from_secs(1)), Moment::NEVER);
        assert_eq!(second.since(Moment::NEVER), Duration::ZERO);
        assert_eq!(second.plus(Duration::new(1, 7)).since(second), Duration::new(1, 7));
    }

    #[test]
    fn the_system_clock_never_goes_back() {
        let clock = Clock::system();
        let first = clock.now();
        assert!(clock.now() >= first);
        assert!(first.since_origin() > Duration::ZERO);
    }

    #[tokio::test]
    async fn a_manual_clock_moves_only_when_told() {
        let manual = ManualClock::new();
        let clock = manual.clock();
        let start = clock.now();
        assert_eq!(clock.now(), start);
        let waits = clock.sleep_until(start.plus(Duration::from_secs(5)));
        tokio::pin!(waits);
        manual.leap(Duration::from_secs(4));
        assert!(clock.within(Some(clock.now()), &mut waits).await.is_none());
        manual.leap(Duration::from_secs(1));
        waits.await;
    }
}
