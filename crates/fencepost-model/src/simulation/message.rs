//! What travels between clients and nodes.

use std::rc::Rc;

use crate::node::{Mode, Verdict, Vote};

/// A call of a script. Times are microseconds of the node's clock.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Greet,
    Acquire { lock: usize, ask: Ask, entry: Option<Rc<str>> },
    Revoke { lock: usize, ask: Ask, victim: Rc<str> },
    Hold { lock: usize, value: Rc<str>, token: u64, node: Rc<str>, not_after: u64, mode: Mode },
    Release { lock: usize, value: Rc<str>, wake: bool, entry: Option<Rc<str>> },
}

#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) value: Rc<str>,
    pub(super) proposal: u64,
    pub(super) node: Rc<str>,
    pub(super) not_after: u64,
}

#[derive(Clone, Debug)]
pub(super) enum Reply {
    Greeted { run: String, node: String, now: u64 },
    Vote(Vote),
    Held { verdict: Verdict, now: u64 },
    Late(u64),
    Released,
}

impl Reply {
    /// The node's clock, where the reply carries it.
    pub(super) fn clock(&self) -> Option<u64> {
        match self {
            Self::Greeted { now, .. } | Self::Held { now, .. } | Self::Late(now) => Some(*now),
            Self::Vote(Vote::Held { now, .. } | Vote::Late(now)) => Some(*now),
            Self::Vote(_) | Self::Released => None,
        }
    }
}

/// What a reply is an answer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    Greet,
    /// For the lock, in this attempt.
    Ask(u64),
    /// Of this token, in this attempt.
    Confirm(u64, u64),
    /// In this round.
    Extend(u64),
    Undo(u64),
}

/// A request on its way.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) client: usize,
    pub(super) node: usize,
    /// The connection, by number; none if a proxy replays the request, and nobody waits for the answer.
    pub(super) connection: Option<u64>,
    /// The process that the connection leads to. A connection ends with its process.
    pub(super) process: Option<u32>,
    pub(super) tag: Tag,
    /// When it was sent, by the client's clock.
    pub(super) sent: u64,
    pub(super) request: Rc<Request>,
}
