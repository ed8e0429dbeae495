//! What `bench` measures: cycles of tasks that have a name each, and turns of those who contend for one.

mod crowd;
mod cycles;
mod worker;

pub(crate) use crowd::{Crowd, in_one_process, in_processes};
pub(crate) use cycles::{cycles, round_trips};
pub(crate) use worker::run as worker;

use std::time::Duration;

/// Durations of one measure, and how long it took.
#[derive(Debug, Default)]
pub(crate) struct Times {
    sorted: Vec<Duration>,
    took: Duration,
}

impl Times {
    fn new(mut times: Vec<Duration>, took: Duration) -> Self {
        times.sort_unstable();
        Self { sorted: times, took }
    }

    /// What so many percent are not above.
    pub(crate) fn percentile(&self, percent: usize) -> Option<Duration> {
        let place = self.sorted.len() * percent / 100;
        self.sorted.get(place.min(self.sorted.len().saturating_sub(1))).copied()
    }

    /// A second.
    pub(crate) fn rate(&self) -> f64 {
        self.sorted.len() as f64 / self.took.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_what_was_measured() {
        let times = Times::new((1..=200).rev().map(Duration::from_millis).collect(), Duration::from_secs(2));
        assert_eq!(times.percentile(50), Some(Duration::from_millis(101)));
        assert_eq!(times.percentile(99), Some(Duration::from_millis(199)));
        assert_eq!(times.percentile(100), Some(Duration::from_millis(200)));
        assert!((times.rate() - 100.0).abs() < 1e-9);
        assert_eq!(Times::default().percentile(50), None);
    }
}
