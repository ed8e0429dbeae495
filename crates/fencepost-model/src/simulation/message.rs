//! What travels between clients and nodes.

use std::fmt;
use std::rc::Rc;

use crate::node::{Mode, Refusal, Verdict, Vote};

use super::clock::START;

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
    Not(Refusal),
    Released,
}

impl Reply {
    /// The node's clock, where the reply carries it.
    pub(super) fn clock(&self) -> Option<u64> {
        match self {
            Self::Greeted { now, .. }
            | Self::Held { now, .. }
            | Self::Not(Refusal::Late(now))
            | Self::Vote(Vote::Held { now, .. } | Vote::Not(Refusal::Late(now))) => Some(*now),
            Self::Vote(_) | Self::Not(_) | Self::Released => None,
        }
    }
}

/// A time or a token, in milliseconds from the start.
struct Since(u64);

impl fmt::Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = i128::from(self.0) - i128::from(START);
        let sign = if since < 0 { '-' } else { '+' };
        write!(f, "{sign}{}.{:03}", since.abs() / 1000, since.abs() % 1000)
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Greet => write!(f, "greet"),
            Self::Acquire { lock, ask, .. } => write!(f, "acquire {lock} for {ask}"),
            Self::Revoke { lock, ask, .. } => write!(f, "revoke {lock} for {ask}"),
            Self::Hold { lock, value, token, not_after, mode, .. } => {
                let (token, not_after) = (Since(*token), Since(*not_after));
                write!(f, "{mode:?} {lock} of {value:?}, token {token}, not after {not_after}")
            }
            Self::Release { lock, value, wake, .. } => {
                write!(f, "release {lock} of {value:?}{}", if *wake { ", wake" } else { "" })
            }
        }
    }
}

impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (proposal, not_after) = (Since(self.proposal), Since(self.not_after));
        write!(f, "{:?}, proposes {proposal}, node {:?}, not after {not_after}", self.value, self.node)
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Greeted { node, now, .. } => write!(f, "{node:?}, clock {}", Since(*now)),
            Self::Vote(Vote::Granted(counter)) => write!(f, "granted {}", Since(*counter)),
            Self::Vote(Vote::Held { holder, left, counter, .. }) => {
                write!(f, "held by {holder:?} for {left} ms, counter {}", Since(*counter))
            }
            Self::Vote(Vote::Not(refusal)) | Self::Not(refusal) => match refusal {
                Refusal::Node(node) => write!(f, "node {node:?}"),
                Refusal::Late(now) => write!(f, "late, clock {}", Since(*now)),
            },
            Self::Held { verdict, .. } => write!(f, "{verdict:?}"),
            Self::Released => write!(f, "done"),
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
