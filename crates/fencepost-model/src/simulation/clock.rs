//! Clocks that are wrong in known ways. True time is microseconds since the start of a run.

/// Runs at a rate of its own and can be set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    offset: i64,
    /// Microseconds it gains in a second.
    rate: i64,
}

/// What a right clock shows at the start of a run: late in 2025.
pub(super) const START: i64 = 1_760_000_000_000_000;

impl Clock {
    pub(super) fn new(error: i64, rate: i64) -> Self {
        Self { offset: START + error, rate }
    }

    pub(super) fn at(&self, time: u64) -> u64 {
        let time = time as i64;
        (self.offset + time + time * self.rate / 1_000_000) as u64
    }

    /// The first moment at which it shows `local`.
    pub(super) fn when(&self, local: u64) -> u64 {
        let passed = (local as i64 - self.offset).max(0);
        let mut time = (passed as i128 * 1_000_000 / (1_000_000 + self.rate) as i128) as u64;
        while self.at(time) < local {
            time += 1;
        }
        time
    }

    /// Sets it to be wrong by `error`, but for what its rate has gained.
    pub(super) fn set(&mut self, error: i64) {
        self.offset = START + error;
    }

    pub(super) fn step(&mut self, by: i64) {
        self.offset += by;
    }
}
