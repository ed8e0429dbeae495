//! Random numbers for workloads and faults.

use std::time::Duration;

use fencepost_testkit::SplitMix64;

/// A source of random numbers.
#[derive(Clone, Debug)]
pub(super) struct Dice(SplitMix64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    pub(super) fn roll(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `limit`, which is not zero.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        let limit = limit.max(1) as u64;
        usize::try_from(self.roll() % limit).unwrap_or(0)
    }

    /// Whether something happens that does so in so many of a hundred cases.
    pub(super) fn in_hundred(&mut self, cases: usize) -> bool {
        self.below(100) < cases
    }

    /// A time between two.
    pub(super) fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let part = f64::from(u32::try_from(self.below(10_000)).unwrap_or(0)) / 1e4;
        least + most.saturating_sub(least).mul_f64(part)
    }
}
