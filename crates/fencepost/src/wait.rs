//! How long to wait for a lock, and how: deadline, back-off and jitter in one place.

use std::time::Duration;

/// How long a caller that was already waiting sits out an outage of the store.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait for a lock that is held by somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Wait {
    /// Until it is free.
    #[default]
    Forever,
    /// Not at all: [`Error::Busy`](crate::Error::Busy) at once.
    No,
    /// At most this long, then [`Error::Timeout`](crate::Error::Timeout).
    For(Duration),
}

impl From<Duration> for Wait {
    fn from(duration: Duration) -> Self {
        if duration.is_zero() { Self::No } else { Self::For(duration) }
    }
}

/// A schedule of tries, for callers that want to poll instead of queueing.
///
/// ```
/// use std::time::Duration;
/// use fencepost::Retry;
///
/// let ms = Duration::from_millis;
/// let fixed = Retry::fixed(ms(100)).attempts(5);
/// let doubling = Retry::exponential(ms(10), ms(500)).jitter();
/// let listed = Retry::after([ms(10), ms(50), ms(200)]);      // three retries, then the caller is told
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a schedule does nothing until a lock has it"]
pub struct Retry {
    delays: Delays,
    attempts: Option<u32>,
    jitter: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Delays {
    Exponential { first: Duration, most: Duration },
    Listed(Vec<Duration>),
}

/// Polling faster than this helps nobody.
const FLOOR: Duration = Duration::from_millis(1);

impl Retry {
    /// Tries again after the same pause each time.
    pub fn fixed(pause: Duration) -> Self {
        Self::exponential(pause, pause)
    }

    /// Tries again after `first`, then twice that, and so on, up to `most` between two tries.
    pub fn exponential(first: Duration, most: Duration) -> Self {
        let first = first.max(FLOOR);
        Self { delays: Delays::Exponential { first, most: most.max(first) }, attempts: None, jitter: false }
    }

    /// Tries again after each of these pauses in turn, and then no more.
    pub fn after(pauses: impl IntoIterator<Item = Duration>) -> Self {
        let pauses = pauses.into_iter().map(|pause| pause.max(FLOOR)).collect();
        Self { delays: Delays::Listed(pauses), attempts: None, jitter: false }
    }

    /// At most this many tries in all, the first one included. Default: no limit but the pauses and `wait`.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = Some(attempts.max(1));
        self
    }

    /// Shortens each pause at random by up to a half, so that many clients do not try in step.
    pub fn jitter(mut self) -> Self {
        self.jitter = true;
        self
    }

    /// The pause after the `tried`-th try (counted from 1); `None` when there must be no other.
    pub(crate) fn pause(&self, tried: u32) -> Option<Duration> {
        if self.attempts.is_some_and(|attempts| tried >= attempts) {
            return None;
        }
        let pause = match &self.delays {
            Delays::Exponential { first, most } => {
                first.saturating_mul(1 << tried.saturating_sub(1).min(30)).min(*most)
            }
            Delays::Listed(pauses) => *pauses.get(usize::try_from(tried).ok()?.checked_sub(1)?)?,
        };
        Some(if self.jitter { jittered(pause) } else { pause })
    }
}

/// Somewhere between half of `duration` and all of it.
pub(crate) fn jittered(duration: Duration) -> Duration {
    duration.mul_f64(0.5 + random() / 2.0)
}

/// A number in [0, 1), from the operating system, so that forked processes do not draw the same.
pub(crate) fn random() -> f64 {
    let (bits, ..) = uuid::Uuid::new_v4().as_fields();
    f64::from(bits) / 2f64.powi(32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn pauses(retry: &Retry) -> Vec<u128> {
        (1..8).map_while(|tried| retry.pause(tried)).map(|pause| pause.as_millis()).collect()
    }

    #[test]
    fn schedules_are_what_they_say() {
        assert_eq!(pauses(&Retry::fixed(ms(20)).attempts(4)), [20, 20, 20]);
        assert_eq!(pauses(&Retry::exponential(ms(10), ms(50)).attempts(6)), [10, 20, 40, 50, 50]);
        assert_eq!(pauses(&Retry::after([ms(10), ms(50), ms(200)])), [10, 50, 200]);
        assert_eq!(pauses(&Retry::after([ms(10), ms(50), ms(200)]).attempts(2)), [10]);
        assert_eq!(pauses(&Retry::fixed(ms(5)).attempts(1)), [0u128; 0]);
    }

    #[test]
    fn jitter_stays_between_half_and_all() {
        let retry = Retry::fixed(ms(1000)).jitter();
        let seen: Vec<_> = (1..200).filter_map(|tried| retry.pause(tried)).collect();
        assert!(seen.iter().all(|pause| (ms(500)..=ms(1000)).contains(pause)));
        assert!(seen.iter().any(|pause| *pause != seen[0]));
    }

    #[test]
    fn a_wait_of_zero_is_no_wait() {
        assert_eq!(Wait::from(Duration::ZERO), Wait::No);
        assert_eq!(Wait::from(ms(1)), Wait::For(ms(1)));
    }
}
