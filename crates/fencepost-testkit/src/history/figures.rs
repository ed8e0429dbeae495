//! What happened in a history, in numbers.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

/// Counts of what happened.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures {
    /// Locks granted.
    pub acquisitions: u64,
    /// Of these, to another client than the one before.
    pub handovers: u64,
    /// Attempts that ended without the lock, by reason.
    pub gave_up: BTreeMap<String, u64>,
    /// What the store said the first time, for those that failed.
    pub errors: BTreeMap<String, String>,
    /// Locks lost, by reason.
    pub losses: BTreeMap<String, u64>,
    /// Releases to which the store said that the lock was gone, by reason.
    pub gone: BTreeMap<String, u64>,
    /// Locks granted to each client.
    #[serde(skip)]
    pub clients: BTreeMap<u32, u64>,
    /// Writes that the guarded registers took.
    pub guarded_writes: u64,
    /// Requests that the guarded registers refused, since they had seen a larger token.
    pub guarded_refusals: u64,
    /// Writes that the unguarded registers took.
    pub unguarded_writes: u64,
    /// Of these, such that overwrote one which their writer had not read: what a resource without a check
    /// suffers.
    pub unguarded_lost_updates: u64,
    /// How long clients waited for the locks that they were granted.
    pub waits: Waits,
}

/// Durations, each to within 5 %.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    /// How many lie below the power of `BASE` that is the key, in microseconds.
    buckets: BTreeMap<u16, u64>,
    count: u64,
    max: Duration,
}

const BASE: f64 = 1.05;

impl Waits {
    pub(super) fn add(&mut self, wait: Duration) {
        let micros = (wait.as_secs_f64() * 1e6).max(1.0);
        // A day is the 517th power.
        let bucket = (micros.ln() / BASE.ln()).ceil().min(f64::from(u16::MAX));
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let bucket = bucket as u16;
        *self.buckets.entry(bucket).or_default() += 1;
        self.count += 1;
        self.max = self.max.max(wait);
    }

    /// What so many of a hundred did not exceed.
    pub fn percentile(&self, percent: f64) -> Duration {
        let mut below = 0;
        for (bucket, count) in &self.buckets {
            below += count;
            #[allow(clippy::cast_precision_loss)]
            if below as f64 >= self.count as f64 * percent / 100.0 {
                let limit = Duration::from_secs_f64(BASE.powi(i32::from(*bucket)) / 1e6);
                return limit.min(self.max);
            }
        }
        self.max
    }

    /// The longest.
    pub fn max(&self) -> Duration {
        self.max
    }
}

impl Serialize for Waits {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ms = |wait: Duration| wait.as_secs_f64() * 1e3;
        let figures = [
            ("p50_ms", ms(self.percentile(50.0))),
            ("p90_ms", ms(self.percentile(90.0))),
            ("p99_ms", ms(self.percentile(99.0))),
            ("p999_ms", ms(self.percentile(99.9))),
            ("max_ms", ms(self.max)),
        ];
        serializer.collect_map(figures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_five_percent() {
        let mut waits = Waits::default();
        (1..=1000).for_each(|ms| waits.add(Duration::from_millis(ms)));
        for (percent, ms) in [(50.0, 500.0), (99.0, 990.0), (100.0, 1000.0)] {
            let said = waits.percentile(percent).as_secs_f64() * 1e3;
            assert!((ms..=ms * BASE).contains(&said), "{percent}: {said}");
        }
        assert_eq!(waits.max(), Duration::from_secs(1));
        assert_eq!(Waits::default().percentile(50.0), Duration::ZERO);
    }
}
