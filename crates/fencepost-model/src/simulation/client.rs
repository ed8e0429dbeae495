//! A client: what it does, its connections, and what it has yet to give back. Times are of the client's own
//! clock, which never steps, unless they say otherwise.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use crate::quorum::{Attempt, Extension, MAX_NODES, NodeSet};
use crate::retry::AttemptBackoff;

use super::clock::Clock;
use super::message::Tag;

#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) clock: Clock,
    /// How far its wall clock is off, if it proposes what that says.
    pub(super) wild: Option<i64>,
    /// Counts the crashes: what was meant for an earlier life reaches nobody.
    pub(super) life: u32,
    /// In true time.
    pub(super) paused_until: u64,
    pub(super) doing: Doing,
    pub(super) links: Vec<Link>,
    pub(super) undos: Vec<Undo>,
    /// The holder that was met last, for each lock.
    pub(super) met: Vec<Option<Rc<str>>>,
    /// The largest counter seen, for each lock.
    pub(super) counters: Vec<u64>,
    pub(super) round_trip: u64,
    pub(super) wins: u32,
    pub(super) stopping: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Doing {
    Nothing,
    Waiting(Box<Wait>),
    Revoking(Box<Trial>),
    Holding(Box<Guard>),
}

#[derive(Clone, Debug)]
pub(super) struct Wait {
    pub(super) id: u64,
    pub(super) lock: usize,
    pub(super) deadline: u64,
    pub(super) backoff: AttemptBackoff,
    /// Its place in the queues.
    pub(super) entry: Rc<str>,
    /// The value of the last attempt.
    pub(super) value: Rc<str>,
    pub(super) trial: Option<Trial>,
    /// A hint came while an attempt was under way.
    pub(super) hinted: bool,
}

/// An attempt, with all that the core does not need to know.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    pub(super) id: u64,
    pub(super) lock: usize,
    pub(super) value: Rc<str>,
    /// Whose lock is revoked, if that is what this is.
    pub(super) victim: Option<Rc<str>>,
    pub(super) entry: Option<Rc<str>>,
    pub(super) attempt: Attempt<u64>,
    pub(super) since: u64,
    /// The same for all nodes, so that they agree on a token in one round.
    pub(super) proposal: Option<u64>,
    /// The largest token that anybody had when it began.
    pub(super) floor: u64,
    pub(super) denials: Vec<(Rc<str>, Option<Duration>)>,
    /// Who was greeted again, and who was asked again after a request that came too late.
    pub(super) greeted: NodeSet,
    pub(super) late: NodeSet,
    /// The connections that the requests went over.
    pub(super) over: [u64; MAX_NODES],
}

#[derive(Clone, Debug)]
pub(super) struct Guard {
    pub(super) id: u64,
    pub(super) lock: usize,
    pub(super) value: Rc<str>,
    pub(super) token: u64,
    pub(super) until: u64,
    pub(super) entry: Rc<str>,
    pub(super) round: Option<Round>,
}

/// One round of extending.
#[derive(Clone, Debug)]
pub(super) struct Round {
    pub(super) id: u64,
    pub(super) since: u64,
    pub(super) extension: Extension<u64>,
}

/// A lock that is given back until every node has said so, or nothing can be left.
#[derive(Clone, Debug)]
pub(super) struct Undo {
    pub(super) id: u64,
    pub(super) lock: usize,
    pub(super) value: Rc<str>,
    pub(super) wake: bool,
    pub(super) entry: Option<Rc<str>>,
    pub(super) open: NodeSet,
    pub(super) deadline: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Closed,
    /// The greeting is not answered yet.
    Greeting,
    Ready,
}

/// What a client knows of a node, and its connection.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) state: State,
    pub(super) connection: u64,
    pub(super) process: u32,
    /// It has ended, which the client may not know yet.
    pub(super) broken: bool,
    /// When the last request and the last reply arrive, in true time: nothing overtakes.
    pub(super) last_request: u64,
    pub(super) last_reply: u64,
    /// What is not answered yet, in order.
    pub(super) pending: VecDeque<Tag>,
    /// What is to be sent after the greeting.
    pub(super) intents: Vec<Tag>,
    /// What the node key has to be, and whether it is.
    pub(super) key: Rc<str>,
    pub(super) votes: bool,
    /// A reading of the node's clock, and when it was asked for.
    pub(super) reading: Option<(u64, u64)>,
    /// No packets in either direction before this, in true time.
    pub(super) parted_until: u64,
}

impl Link {
    pub(super) fn new() -> Self {
        Self {
            state: State::Closed,
            connection: 0,
            process: 0,
            broken: false,
            last_request: 0,
            last_reply: 0,
            pending: VecDeque::new(),
            intents: Vec::new(),
            key: "".into(),
            votes: false,
            reading: None,
            parted_until: 0,
        }
    }

    /// At least what the node's clock shows.
    pub(super) fn node_clock(&self, now: u64) -> Option<u64> {
        self.reading.map(|(clock, asked)| clock + (now - asked))
    }
}

impl Client {
    pub(super) fn new(clock: Clock, wild: Option<i64>, nodes: usize, locks: usize) -> Self {
        Self {
            clock,
            wild,
            life: 0,
            paused_until: 0,
            doing: Doing::Nothing,
            links: (0..nodes).map(|_| Link::new()).collect(),
            undos: Vec::new(),
            met: vec![None; locks],
            counters: vec![0; locks],
            round_trip: 1000,
            wins: 0,
            stopping: false,
        }
    }

    pub(super) fn trial(&mut self, id: u64) -> Option<&mut Trial> {
        let trial = match &mut self.doing {
            Doing::Waiting(wait) => wait.trial.as_mut(),
            Doing::Revoking(trial) => Some(&mut **trial),
            Doing::Nothing | Doing::Holding(_) => None,
        };
        trial.filter(|trial| trial.id == id)
    }

    pub(super) fn guard(&mut self) -> Option<&mut Guard> {
        match &mut self.doing {
            Doing::Holding(guard) => Some(guard),
            _ => None,
        }
    }

    /// What to propose as a token: the middle one of what the nodes' clocks may show.
    pub(super) fn proposal(&self, lock: usize, now: u64, wall: u64) -> u64 {
        let mut clocks: Vec<_> = self.links.iter().filter_map(|link| link.node_clock(now)).collect();
        clocks.sort_unstable();
        let middle = clocks.get(clocks.len() / 2).copied().unwrap_or(wall);
        let clock = self.wild.map_or(middle, |error| wall.saturating_add_signed(error));
        clock.max(self.counters[lock] + 1)
    }
}

/// Where a client listens: 16 characters.
pub(super) fn channel(client: usize) -> String {
    format!("client-{client:09}")
}

/// Who listens there.
pub(super) fn listener(channel: &str) -> Option<usize> {
    channel.strip_prefix("client-")?.parse().ok()
}
