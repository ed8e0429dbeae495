//! Counters that can be read at any time. The events themselves are emitted where they happen, with
//! `tracing`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

use crate::Loss;

/// Upper bounds of the histogram buckets, in microseconds: powers of four from 16 us to about 19 hours.
const BUCKETS: usize = 17;

fn bound(bucket: usize) -> Duration {
    Duration::from_micros(16 << (2 * bucket))
}

/// Durations counted in buckets that grow by a factor of four.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    counts: [AtomicU64; BUCKETS],
    total_us: AtomicU64,
}

impl Histogram {
    pub(crate) fn record(&self, duration: Duration) {
        let bucket = (0..BUCKETS - 1).find(|&bucket| duration <= bound(bucket)).unwrap_or(BUCKETS - 1);
        add(&self.counts[bucket], 1);
        add(&self.total_us, u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
    }

    fn read(&self) -> Distribution {
        let counts: Vec<u64> = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        Distribution {
            count: counts.iter().sum(),
            total: Duration::from_micros(self.total_us.load(Ordering::Relaxed)),
            buckets: (0..BUCKETS).map(bound).zip(counts).collect(),
        }
    }
}

/// How durations were distributed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Distribution {
    /// How many there were.
    pub count: u64,
    /// Their sum.
    pub total: Duration,
    /// Upper bound of each bucket and how many fell into it; the last bucket takes everything longer, too.
    pub buckets: Vec<(Duration, u64)>,
}

/// Locks lost, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Losses {
    /// [`Loss::Expired`]
    pub expired: u64,
    /// [`Loss::Taken`]
    pub taken: u64,
    /// [`Loss::ForceReleased`]
    pub force_released: u64,
    /// [`Loss::SessionEnded`]
    pub session_ended: u64,
    /// [`Loss::Unreachable`]
    pub unreachable: u64,
    /// [`Loss::Paused`]
    pub paused: u64,
    /// [`Loss::MaxHold`]
    pub max_hold: u64,
}

/// What one [`Locks`](crate::Locks) has done so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// Locks acquired, attached ones included.
    pub acquired: u64,
    /// Locks released, by call or by drop.
    pub released: u64,
    /// Tries that found the lock held.
    pub busy: u64,
    /// Waits that ran into their deadline.
    pub timed_out: u64,
    /// Attempts that failed because of the store.
    pub failed: u64,
    /// Renewals answered.
    pub renewed: u64,
    /// Renewals that failed and were tried again.
    pub renewals_failed: u64,
    /// Store round trips that took more than a quarter of the ttl: the ttl is too short for this store.
    pub slow: u64,
    /// Locks lost, by cause.
    pub lost: Losses,
    /// Guards alive now.
    pub held_now: u64,
    /// Callers waiting now.
    pub waiting_now: u64,
    /// From the call of acquire to the guard.
    pub waiting: Distribution,
    /// From the guard to its release.
    pub holding: Distribution,
    /// From the send of a request to its answer, for grants and renewals.
    pub round_trips: Distribution,
}

/// The live counters behind [`Stats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) acquired: AtomicU64,
    pub(crate) released: AtomicU64,
    pub(crate) busy: AtomicU64,
    pub(crate) timed_out: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) renewed: AtomicU64,
    pub(crate) renewals_failed: AtomicU64,
    pub(crate) slow: AtomicU64,
    lost: [AtomicU64; 7],
    pub(crate) held_now: AtomicU64,
    pub(crate) waiting_now: AtomicU64,
    pub(crate) waiting: Histogram,
    pub(crate) holding: Histogram,
    pub(crate) round_trips: Histogram,
}

pub(crate) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

pub(crate) fn subtract(counter: &AtomicU64, by: u64) {
    counter.fetch_sub(by, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn lost(&self, why: &Loss) {
        let index = match why {
            Loss::Expired => 0,
            Loss::Taken => 1,
            Loss::ForceReleased { .. } => 2,
            Loss::SessionEnded => 3,
            Loss::Unreachable => 4,
            Loss::Paused => 5,
            Loss::MaxHold => 6,
            // Not lost where it is held.
            Loss::Forked => return,
        };
        add(&self.lost[index], 1);
    }

    pub(crate) fn read(&self) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let [expired, taken, force_released, session_ended, unreachable, paused, max_hold] =
            std::array::from_fn(|index| get(&self.lost[index]));
        Stats {
            acquired: get(&self.acquired),
            released: get(&self.released),
            busy: get(&self.busy),
            timed_out: get(&self.timed_out),
            failed: get(&self.failed),
            renewed: get(&self.renewed),
            renewals_failed: get(&self.renewals_failed),
            slow: get(&self.slow),
            lost: Losses { expired, taken, force_released, session_ended, unreachable, paused, max_hold },
            held_now: get(&self.held_now),
            waiting_now: get(&self.waiting_now),
            waiting: self.waiting.read(),
            holding: self.holding.read(),
            round_trips: self.round_trips.read(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_into_the_first_bucket_that_takes_them() {
        let histogram = Histogram::default();
        for duration in [Duration::ZERO, Duration::from_micros(16), Duration::from_micros(17), Duration::MAX]
        {
            histogram.record(duration);
        }
        let read = histogram.read();
        assert_eq!(read.count, 4);
        assert_eq!(read.buckets[0].1, 2);
        assert_eq!(read.buckets[1].1, 1);
        assert_eq!(read.buckets[BUCKETS - 1].1, 1);
        assert!(bound(BUCKETS - 1) > Duration::from_secs(60_000));
    }
}
