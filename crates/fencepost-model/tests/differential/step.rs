//! What can happen to a node, and what random calls look like.

use fencepost_model::node::{How, Mode};
use proptest::option;
use proptest::prelude::*;

/// Milliseconds. Far apart, and long enough that no key ends while a sequence runs.
pub(crate) const TTLS: [u64; 4] = [40_000, 70_000, 600_000, 3_600_000];
pub(crate) const NAMES: [&str; 2] = ["order", "report"];
pub(crate) const QUARANTINES: [u64; 3] = [1, 500, 1_000_000_000];
/// How far proposals may be from the clock, in microseconds.
pub(crate) const BOUND: i64 = 5_000_000;

#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) name: usize,
    pub(crate) owner: usize,
    pub(crate) ttl: usize,
    /// From the clock.
    pub(crate) proposal: i64,
    /// Whether the node key is the one that the node has.
    pub(crate) right_node: bool,
    /// From the clock.
    pub(crate) not_after: i64,
}

#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) name: usize,
    pub(crate) owner: usize,
    pub(crate) ttl: usize,
    /// From the counter.
    pub(crate) token: i64,
}

/// What one turn does one after the other.
#[derive(Clone, Debug)]
pub(crate) enum Move {
    /// Takes a lock, perhaps as a waiter.
    Take(Ask, Option<usize>),
    GiveBack {
        name: usize,
        owner: usize,
        wake: bool,
        entry: Option<usize>,
    },
    /// Puts a lock back to another owner.
    PutBack {
        name: usize,
        owner: usize,
        before: usize,
    },
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Turn {
        right_node: bool,
        moves: Vec<Move>,
    },
    /// With the reason that makes the revocation's value its own.
    Revoke(Ask, usize),
    Hold {
        right_node: bool,
        not_after: i64,
        mode: Mode,
        locks: Vec<Hold>,
    },
    /// Moves a lock to another owner.
    Attach(Hold, usize, bool, i64),
    Greet {
        max_ttl: usize,
        quarantine: usize,
        members: usize,
        how: How,
    },
    /// The node key says something else, as after a restart from a snapshot.
    SetNode(NodeKey),
    /// A foreign client takes the lock, for ever.
    Foreign(usize),
    /// A foreign client has a list where the lock should be, or a text where the queue should be.
    Alien(usize, bool),
    /// Deletes the lock, its counter, its queue, or the node key.
    Delete(usize, usize),
    Elapse(u64),
    Flush,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum NodeKey {
    OtherRun,
    OtherRunInQuarantine,
    /// In quarantine until this long from now, in microseconds.
    Quarantine(i64),
    Garbage,
}

fn limit() -> impl Strategy<Value = i64> {
    prop_oneof![8 => Just(1_000_000), 1 => Just(0), 1 => Just(-1), 1 => Just(-10_000_000)]
}

fn ask() -> impl Strategy<Value = Ask> {
    let far = 1_000_000_000_000_000;
    let proposal = prop_oneof![
        Just(0),
        Just(BOUND),
        Just(BOUND + 1),
        Just(-BOUND),
        Just(-BOUND - 1),
        Just(far),
        Just(-far),
        -2 * BOUND..2 * BOUND
    ];
    (0..NAMES.len(), 0..4usize, 0..TTLS.len(), proposal, prop::bool::weighted(0.9), limit()).prop_map(
        |(name, owner, ttl, proposal, right_node, not_after)| Ask {
            name,
            owner,
            ttl,
            proposal,
            right_node,
            not_after,
        },
    )
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        3 => (ask(), option::of(0..3usize)).prop_map(|(ask, entry)| Move::Take(ask, entry)),
        2 => (0..NAMES.len(), 0..4usize, prop::bool::ANY, option::of(0..3usize))
            .prop_map(|(name, owner, wake, entry)| Move::GiveBack { name, owner, wake, entry }),
        1 => (0..NAMES.len(), 0..4usize, 0..4usize)
            .prop_map(|(name, owner, before)| Move::PutBack { name, owner, before }),
    ]
}

fn hold() -> impl Strategy<Value = Hold> {
    (0..NAMES.len(), 0..4usize, 0..TTLS.len(), -1..3i64).prop_map(|(name, owner, ttl, token)| Hold {
        name,
        owner,
        ttl,
        token,
    })
}

fn greet() -> impl Strategy<Value = Step> {
    let [meet, found, reform, look] = [How::Meet, How::Found, How::Reform, How::Look].map(Just);
    let how = prop_oneof![6 => meet, 2 => found, 1 => reform, 1 => look];
    (0..TTLS.len(), 0..QUARANTINES.len(), 0..2usize, how)
        .prop_map(|(max_ttl, quarantine, members, how)| Step::Greet { max_ttl, quarantine, members, how })
}

fn node_key() -> impl Strategy<Value = NodeKey> {
    prop_oneof![
        Just(NodeKey::OtherRun),
        Just(NodeKey::OtherRunInQuarantine),
        Just(NodeKey::Quarantine(0)),
        Just(NodeKey::Quarantine(-1)),
        Just(NodeKey::Quarantine(1_000_000)),
        Just(NodeKey::Garbage),
    ]
}

pub(crate) fn some(flushes: bool) -> impl Strategy<Value = Step> {
    let name = 0..NAMES.len();
    let mode = prop_oneof![Just(Mode::Confirm), Just(Mode::Extend), Just(Mode::Repair)];
    prop_oneof![
        20 => (prop::bool::weighted(0.9), prop::collection::vec(moves(), 1..5))
            .prop_map(|(right_node, moves)| Step::Turn { right_node, moves }),
        3 => (ask(), 0..2usize).prop_map(|(ask, reason)| Step::Revoke(ask, reason)),
        8 => (prop::bool::weighted(0.8), limit(), mode, prop::collection::vec(hold(), 1..4)).prop_map(
            |(right_node, not_after, mode, locks)| Step::Hold { right_node, not_after, mode, locks }
        ),
        3 => (hold(), 0..4usize, prop::bool::weighted(0.9), limit())
            .prop_map(|(hold, to, right_node, not_after)| Step::Attach(hold, to, right_node, not_after)),
        5 => greet(),
        1 => node_key().prop_map(Step::SetNode),
        1 => name.clone().prop_map(Step::Foreign),
        1 => (name.clone(), prop::bool::ANY).prop_map(|(name, queue)| Step::Alien(name, queue)),
        1 => (name, 0..4usize).prop_map(|(name, key)| Step::Delete(name, key)),
        2 => prop::sample::select(vec![10_000u64, 41_000, 100_000, 90_000_000]).prop_map(Step::Elapse),
        1 => Just(if flushes { Step::Flush } else { Step::Elapse(41_000) }),
    ]
}
