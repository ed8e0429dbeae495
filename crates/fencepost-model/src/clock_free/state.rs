//! A state: the nodes, the attempts, and what is under way between them. Small, since millions are kept.

use super::client::Client;
use super::node::{Key, NOBODY, Node};

/// A set of numbers below 16. Zero is never a token nor the counter of a node that has granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Values(u16);

impl Values {
    pub(crate) const NONE: Self = Self(0);

    pub(crate) fn with(self, value: u8) -> Self {
        assert!(value < 16, "counters stay below 16 in these models");
        Self(self.0 | 1 << value)
    }

    pub(crate) fn without(self, value: u8) -> Self {
        Self(self.0 & !(1 << value))
    }

    pub(crate) fn has(self, value: u8) -> bool {
        self.0 >> value & 1 == 1
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn len(self) -> u32 {
        self.0.count_ones()
    }

    pub(crate) fn largest(self) -> u8 {
        (15 - self.0.leading_zeros().min(15)) as u8
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = u8> {
        (0..16).filter(move |&value| self.has(value))
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(u8) -> bool) {
        *self = self.iter().filter(|value| keep(*value)).fold(Self::NONE, Self::with);
    }
}

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
    /// Takes keys over from this victim. `None` for a plain attempt, `Some(NOBODY)` if it has not begun.
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
