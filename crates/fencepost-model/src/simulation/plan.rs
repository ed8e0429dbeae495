//! What a seed draws before it starts: sizes, times, and which assumptions it breaks. All times are
//! microseconds.

use super::random::Random;

/// How right the servers' clocks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clocks {
    /// Rates and steps stay within the margin of a lease (A1), errors within what the quarantine covers (A4).
    Good,
    /// Steps are larger than the margin, errors within what the quarantine covers.
    Stepping,
    /// Anything.
    Wild,
}

/// What the nemesis can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Cut,
    Partition,
    Freeze,
    Crash,
    Pause,
    StepClock,
    Snapshot,
    RestartEmpty,
    RestartOld,
    Replace,
    Flush,
    Delete,
}

impl Fault {
    const ALWAYS: [Self; 6] =
        [Self::Cut, Self::Partition, Self::Freeze, Self::Crash, Self::Pause, Self::StepClock];
    const LOSS: [Self; 5] =
        [Self::Snapshot, Self::RestartEmpty, Self::RestartOld, Self::Replace, Self::Flush];
}

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) nodes: usize,
    pub(super) clients: usize,
    pub(super) locks: usize,
    pub(super) ttl: u64,
    /// How far proposals may be from a node's clock.
    pub(super) bound: u64,
    /// The largest error of a server's clock that the quarantine covers.
    pub(super) error: i64,
    pub(super) quarantine: u64,
    /// How long an attempt waits for answers.
    pub(super) patience: u64,
    /// When the clients are told to stop.
    pub(super) duration: u64,
    /// Most messages take up to the first, some up to the second.
    pub(super) delay: (u64, u64),
    pub(super) slow: f64,
    pub(super) duplicates: f64,
    pub(super) clocks: Clocks,
    pub(super) faults: Vec<Fault>,
    /// The mean time between two faults.
    pub(super) calm: u64,
    /// Some clients propose what their own clock says, which is years off.
    pub(super) wild_proposals: bool,
    /// How often a client that could want a lock revokes it instead.
    pub(super) revocations: f64,
    /// How often a guard is not extended.
    pub(super) lazy: f64,
}

const MS: u64 = 1000;

impl Plan {
    pub(super) fn draw(random: &mut Random) -> Self {
        let ttl = random.within(200..1000) * MS;
        // Less than what the servers' clocks differ by, or more: then one round is enough.
        let bound = if random.chance(0.5) { 10..150 } else { 400..600 };
        let bound = random.within(bound) * MS;
        let quiet = random.chance(0.1);
        let faults = if quiet { Vec::new() } else { faults(random) };
        let error = random.within(50..250) as i64 * MS as i64;
        let clocks = match random.index(10) {
            0..6 => Clocks::Good,
            6..8 => Clocks::Stepping,
            _ => Clocks::Wild,
        };
        let fastest = random.within(100..2000);
        Self {
            nodes: if random.chance(0.7) { 5 } else { 3 },
            clients: 20,
            locks: 3,
            ttl,
            bound,
            error,
            quarantine: quarantine(ttl, bound, error),
            patience: ttl / random.within(1..6),
            duration: if quiet { 60_000 * MS } else { random.within(3_000..7_000) * MS },
            delay: (fastest, if quiet { 4 * fastest } else { random.within(ttl / 20..ttl) }),
            slow: if quiet { 0.0 } else { [0.001, 0.01, 0.1][random.index(3)] },
            duplicates: if quiet { 0.0 } else { [0.0, 0.01, 0.1][random.index(3)] },
            clocks: if quiet { Clocks::Good } else { clocks },
            faults,
            calm: random.within(50..1000) * MS,
            wild_proposals: random.chance(0.3),
            revocations: if quiet { 0.0 } else { [0.0, 0.05, 0.3][random.index(3)] },
            lazy: [0.0, 0.2, 0.8][random.index(3)],
        }
    }

    /// Nothing goes wrong at all.
    pub(super) fn is_quiet(&self) -> bool {
        self.faults.is_empty() && self.duplicates == 0.0 && self.slow == 0.0
    }

    /// The part of a term that is not used, for the sake of clocks that run at different rates.
    pub(super) fn drift(&self) -> u64 {
        self.ttl / 100 + 2 * MS
    }

    /// How wrong a server's clock is set at most, so that no rate makes it worse than `error` in a run.
    pub(super) fn steady_error(&self) -> i64 {
        self.error - 30 * MS as i64
    }

    /// A1 to A3: two valid guards at a time are a broken promise.
    pub(super) fn promises_exclusion(&self) -> bool {
        self.clocks == Clocks::Good && !self.faults.contains(&Fault::Delete)
    }

    /// A4: needed only where data can be lost.
    pub(super) fn promises_tokens(&self) -> bool {
        self.clocks != Clocks::Wild || !self.loses_data()
    }

    fn loses_data(&self) -> bool {
        self.faults.iter().any(|fault| Fault::LOSS.contains(fault))
    }
}

/// Longer than any lease, and long enough that a lost counter is outrun by the clock, however wrong: whole
/// milliseconds.
fn quarantine(ttl: u64, bound: u64, error: i64) -> u64 {
    let leases = ttl + ttl / 100 + 100 * MS;
    let counters = 2 * error.unsigned_abs() + 2 * bound + 2 * MS;
    leases.max(counters).next_multiple_of(MS)
}

fn faults(random: &mut Random) -> Vec<Fault> {
    let mut faults: Vec<_> = Fault::ALWAYS.into_iter().filter(|_| random.chance(0.5)).collect();
    if random.chance(0.5) {
        faults.extend(Fault::LOSS.into_iter().filter(|_| random.chance(0.6)));
    }
    if random.chance(0.2) {
        faults.push(Fault::Delete);
    }
    if faults.is_empty() {
        faults.push(Fault::Cut);
    }
    faults
}
