//! Random numbers for workloads and faults: splitmix64, good enough to be unpredictable and small enough to
//! read.

use std::time::Duration;

/// A source of random numbers.
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
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
