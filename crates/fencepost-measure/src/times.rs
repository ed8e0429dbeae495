//! Durations of one measure.

use std::time::Duration;

/// Durations of one measure, and how long it took.
#[derive(Clone, Debug, Default)]
pub struct Times {
    sorted: Vec<Duration>,
    took: Duration,
}

impl Times {
    /// What was measured in `took`.
    pub fn new(mut times: Vec<Duration>, took: Duration) -> Self {
        times.sort_unstable();
        Self { sorted: times, took }
    }

    /// What so many percent are not above.
    pub fn percentile(&self, percent: usize) -> Option<Duration> {
        let place = self.sorted.len() * percent / 100;
        self.sorted.get(place.min(self.sorted.len().saturating_sub(1))).copied()
    }

    /// The same in microseconds; not a number if nothing was measured.
    pub fn microseconds(&self, percent: usize) -> f64 {
        self.percentile(percent).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.sorted.len()
    }

    /// How many a second.
    pub fn rate(&self) -> f64 {
        self.sorted.len() as f64 / self.took.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

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
