//! What is searched: sizes, clocks, faults, and for the mutants the rule that is left out.

use super::state::{ATTEMPTS, NODES};

/// Token units a tick: room for counters that grow within one.
pub(super) const UNITS: i16 = 8;
/// What every clock shows at the start, in ticks, so that one that is behind shows no negative time.
const EPOCH: i16 = 4;

/// One configuration of the model.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    /// How many attempts there are.
    pub(super) attempts: usize,
    /// Which client makes each attempt. A client starts its next attempt when the one before is over.
    pub(super) client: [u8; ATTEMPTS],
    /// Attempts ask node 0 first, and the others when it has granted.
    pub(super) in_order: bool,
    pub(super) ttl: u8,
    /// The last tick.
    pub(super) end: u8,
    /// How many times a node may lose everything since its last snapshot, and how many snapshots there may
    /// be.
    pub(super) restarts: u8,
    pub(super) snapshots: u8,
    /// For how long a node that lost everything does not vote.
    pub(super) quarantine: u8,
    pub(super) counter: Counter,
    /// By how much a proposal may be ahead of the clock of the node, and behind it, in ticks.
    pub(super) delta: i16,
    pub(super) tau: i16,
    /// What the clocks of the attempts' clients and of the nodes show too much, in ticks.
    pub(super) client_clock: [i16; ATTEMPTS],
    pub(super) node_clock: [i16; NODES],
    /// How many rounds of extension each lock may have.
    pub(super) rounds: u8,
    /// Whether locks may be detached in place of a round of extension, and be taken over at any later time:
    /// by whoever has not started yet, in place of an attempt.
    pub(super) attach: bool,
    /// Whether an extension makes the key anew on a node that has lost it.
    pub(super) remake: bool,
    /// So many ticks after it was sent a node refuses to acquire.
    pub(super) acquire_within: Option<u8>,
    /// A node refuses to extend after the end of the validity that is being extended.
    pub(super) extend_within: bool,
    /// How many times each request to acquire is delivered at most.
    pub(super) copies: u8,
    pub(super) flaw: Flaw,
    pub(super) judge: Judge,
    pub(super) keep: Keep,
}

/// How far a counter may be behind before it leaps, in token units: about a fifth of `delta`.
const LAG: u8 = 2;

/// What a node's counter becomes with a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counter {
    /// One more than the counter, or the proposal, moved near the clock of the node, if that is more than
    /// `LAG` larger: production.
    Clamped,
    /// As above with any proposal; a node without a counter takes its clock into account.
    Unclamped,
    /// One more than the counter.
    Pure,
    /// One more than the counter; what a node that lost its counter says is not stored and not trusted until
    /// a client has read the others' (see `resync.rs`).
    Resync,
}

/// How much is kept of what cannot matter (see `forget.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Keep {
    Least,
    /// Releases on their way, and keys of which the owner is gone.
    Releases,
    /// Every message, and every reply heard on its own.
    Everything,
}

/// What is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judge {
    All,
    /// Only whether two locks are valid at the same time.
    Exclusion,
    /// Only the order of tokens.
    Order,
}

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    None,
    /// All attempts of a client use one owner id.
    OneOwner,
    /// An extension counts even if it is heard after the old validity ended.
    LateAdoption,
    /// A lock is valid for a ttl after it was won, not after it was asked for.
    ValidFromTheEnd,
    /// Whoever takes a lock over keeps its identity.
    OneIdentity,
    /// A lock that was moved counts, whatever the counter.
    AnyCounter,
    /// Whoever gets no majority of a lock that it wanted to take over frees what it got, instead of putting
    /// it back.
    FreesWhatItMoved,
    /// A client that reads the counters of others makes do with what it read before.
    StaleReads,
}

/// Two attempts and no faults.
pub(super) const BASE: Rules = Rules {
    attempts: 2,
    client: [0, 1, 2],
    in_order: false,
    ttl: 2,
    end: 6,
    restarts: 0,
    snapshots: 0,
    quarantine: 3,
    counter: Counter::Clamped,
    delta: 1,
    tau: 1,
    client_clock: [0; ATTEMPTS],
    node_clock: [0; NODES],
    rounds: 0,
    attach: false,
    remake: true,
    acquire_within: None,
    extend_within: true,
    copies: 1,
    flaw: Flaw::None,
    judge: Judge::All,
    keep: Keep::Least,
};

impl Rules {
    /// The id under which an attempt owns keys.
    pub(super) fn owner(&self, attempt: usize) -> u8 {
        match self.flaw {
            Flaw::OneOwner => self.client[attempt],
            _ => attempt as u8,
        }
    }

    /// The tick after which a node refuses to acquire for an attempt that started then.
    pub(super) fn acquire_limit(&self, start: u8) -> u8 {
        self.acquire_within.map_or(u8::MAX, |within| start + within)
    }

    /// The counter of `node` after a grant to `attempt`, which started at `start`.
    pub(super) fn next_counter(&self, counter: u8, node: usize, attempt: usize, start: u8, now: u8) -> u8 {
        let clock = i16::from(now) + EPOCH + self.node_clock[node];
        let proposal = i16::from(start) + EPOCH + self.client_clock[attempt];
        let floor = match self.counter {
            Counter::Clamped => proposal.clamp(clock - self.tau, clock + self.delta),
            Counter::Unclamped if counter == 0 => proposal.max(clock),
            Counter::Unclamped => proposal,
            Counter::Pure | Counter::Resync => 0,
        };
        let floor = u8::try_from(floor.max(0) * UNITS).expect("few ticks");
        match self.counter {
            // A counter leaps only if it is far enough behind.
            Counter::Clamped if floor <= counter + 1 + LAG => counter + 1,
            _ => floor.max(counter + 1),
        }
    }

    /// With a counter below this, or none, every grant of this node leaps from now on.
    pub(super) fn floor(&self, node: usize, now: u8) -> u8 {
        match self.counter {
            Counter::Clamped => {
                let floor = (i16::from(now) + EPOCH + self.node_clock[node] - self.tau) * UNITS;
                u8::try_from(floor.max(0)).expect("few ticks").saturating_sub(LAG + 1)
            }
            _ => 0,
        }
    }

    /// Whether a key that a node finds in a snapshot can be of use to its owner. While the node is in
    /// quarantine it is not, and a lease is not longer than a sound quarantine.
    pub(super) fn keys_come_back(&self) -> bool {
        self.snapshots > 0 && self.quarantine < self.ttl
    }

    /// Whether nodes differ in nothing but their names.
    pub(super) fn nodes_are_alike(&self) -> bool {
        self.node_clock == [0; NODES] && !self.in_order
    }

    /// Whether attempts differ in nothing but their names.
    pub(super) fn attempts_are_alike(&self) -> bool {
        self.client_clock == [0; ATTEMPTS] && self.client == BASE.client
    }
}
