//! A state: the nodes, the attempts, and what is under way between them. Small, since millions are kept.

use super::client::Client;
use super::node::{Key, NOBODY, Node};

/// A set of numbers below 16. Zero is never a token nor the counter of a node that has granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Values(pub(super) u16);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct State<const N: usize, const K: usize> {
    pub(crate) nodes: [Node; N],
    pub(crate) attempts: [Try<N>; K],
    /// The tokens of all locks returned so far.
    pub(crate) returned: Values,
    /// So many nodes may still restart empty.
    pub(crate) restarts: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Phase {
    /// Not begun.
    Idle,
    Running,
    /// The lock was returned.
    Won,
    Failed,
}

/// One attempt: its client, and what is under way between it and each node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Try<const N: usize> {
    pub(crate) phase: Phase,
    /// Takes keys over from this holder. `None` for a plain attempt, `Some(NOBODY)` if it has not begun.
    pub(crate) revokes: Option<Key>,
    pub(crate) proposal: u8,
    /// The largest token returned before this attempt began: its own must be larger.
    pub(crate) floor: u8,
    pub(crate) client: Client<N>,
    pub(crate) wires: [Wire; N],
}

/// What is under way between an attempt and a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Wire {
    /// So often the request for the lock can still be delivered.
    pub(crate) acquires: u8,
    /// A rollback (of a mutant).
    pub(crate) rollback: bool,
    pub(crate) denial: bool,
    /// Grants, by value.
    pub(crate) grants: Values,
    /// Requests to confirm a token, and those of them that can be delivered twice.
    pub(crate) holds: Values,
    pub(crate) twice: Values,
    /// Answers to them.
    pub(crate) acks: Values,
    pub(crate) nacks: Values,
}

impl<const N: usize> Try<N> {
    pub(crate) fn idle(revokes: bool) -> Self {
        Self {
            phase: Phase::Idle,
            revokes: revokes.then_some(NOBODY),
            proposal: 0,
            floor: 0,
            client: Client::IDLE,
            wires: [Wire::default(); N],
        }
    }
}

/// A, B, C, ...
pub(crate) fn name(attempt: usize) -> char {
    char::from(b'A' + attempt as u8)
}
