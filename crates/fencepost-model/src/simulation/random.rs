//! Chance that repeats: the same seed gives the same run on every machine.

use std::ops::Range;

use fencepost_testkit::SplitMix64;

/// A small generator.
#[derive(Clone, Debug)]
pub(super) struct Random(SplitMix64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        // Seeds that follow each other shall not resemble each other.
        Self(SplitMix64::new(SplitMix64::new(seed).next_u64() ^ seed.rotate_left(32)))
    }

    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number in a range that is not empty.
    pub(super) fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    pub(super) fn index(&mut self, length: usize) -> usize {
        (self.next() % length as u64) as usize
    }

    /// Between -`most` and `most`.
    pub(super) fn around(&mut self, most: i64) -> i64 {
        let most = most.unsigned_abs();
        self.within(0..2 * most + 1) as i64 - most as i64
    }

    /// Between 0 and 1.
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(super) fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }
}
