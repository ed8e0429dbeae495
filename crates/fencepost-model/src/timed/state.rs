//! Everything there is at one moment: nodes, attempts, and the messages between them.

use std::hash::{Hash, Hasher};

use crate::quorum::{Attempt, Confirm, Extension, Kept, VoteState};

pub(super) const NODES: usize = 3;
/// The most attempts of a configuration.
pub(super) const ATTEMPTS: usize = 3;

#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) now: u8,
    pub(super) restarts: u8,
    pub(super) snapshots: u8,
    /// The largest token of all locks returned so far.
    pub(super) highest: u8,
    pub(super) nodes: [Node; NODES],
    pub(super) actors: [Actor; ATTEMPTS],
    /// What the last step was, as far as anybody asks. Not part of the state.
    pub(super) event: Event,
}

/// What a node knows about the one resource of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) owner: Option<u8>,
    pub(super) expires: u8,
    pub(super) counter: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) live: Record,
    /// What it wrote to disk last, and may find there when it starts again.
    pub(super) saved: Record,
    /// When its quarantine ends.
    pub(super) ready: u8,
    /// Has lost its counter, and none was confirmed since.
    pub(super) amnesiac: bool,
}

impl Record {
    pub(super) fn is_of(&self, who: usize) -> bool {
        self.owner.map(usize::from) == Some(who)
    }
}

/// One attempt, and the lock that came of it.
#[derive(Clone, Debug)]
pub(super) struct Actor {
    pub(super) phase: Phase,
    /// Whose lock it takes over, or has taken over.
    pub(super) from: Option<u8>,
    pub(super) start: u8,
    pub(super) attempt: Attempt<u8, [VoteState; NODES]>,
    pub(super) token: u8,
    /// The end of the validity of the lock.
    pub(super) until: u8,
    /// When the last round of extension was sent, and until when nodes accept it.
    pub(super) sent: u8,
    pub(super) limit: u8,
    pub(super) rounds: u8,
    pub(super) extension: Extension<u8, [Kept; NODES]>,
    pub(super) links: [Link; NODES],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Waiting,
    Asking,
    /// Reads the counters of other nodes (mutants only, see `resync.rs`).
    Reading,
    /// Has read them, and confirms (mutants only).
    Raising,
    Held,
    /// Left to whoever takes it over.
    Detached,
    /// Takes over the lock of another.
    Attaching,
    /// Not valid any more, but hopes for an extension (mutants only).
    Lapsed,
    Over,
}

/// What is on its way between an attempt and a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Link {
    /// How many times the request to acquire may still arrive.
    pub(super) acquire: u8,
    pub(super) reply: Reply,
    /// Requests to confirm, or the replies to them. Of three different grants the second and the third make
    /// one each.
    pub(super) confirms: [Confirmation; 2],
    /// Requests to extend.
    pub(super) extends: u8,
    /// A request to move the lock from another, and one to put it back.
    pub(super) attach: bool,
    pub(super) back: bool,
    /// The reply to a request to extend or attach.
    pub(super) extended: Kept,
    pub(super) release: bool,
    pub(super) read: Read,
    /// The grant that was heard came from a node that has lost its counter (mutants only).
    pub(super) doubtful: bool,
}

impl Link {
    /// Sends a request to confirm.
    pub(super) fn ask_to_confirm(&mut self, token: u8) {
        let free = |slot: &&mut Confirmation| **slot == Confirmation::None;
        let slot = self.confirms.iter_mut().find(free).expect("three nodes have three grants at most");
        *slot = Confirmation::Asked(token);
    }
}

/// A reply to a request to acquire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reply {
    #[default]
    None,
    Granted {
        value: u8,
        amnesiac: bool,
    },
    Denied,
    Silent,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Confirmation {
    #[default]
    None,
    Asked(u8),
    Yes(u8),
    No(u8),
}

/// A request to read a counter, or what was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Read {
    #[default]
    None,
    Asked,
    Said(u8),
}

/// What a step did that somebody asks about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Event {
    /// The bits below.
    pub(super) seen: u32,
    pub(super) broken: Option<Broken>,
}

/// A second lock is returned.
pub(super) const TWO_LOCKS: u32 = 1;
/// A lock needed a second round.
pub(super) const CONFIRMED: u32 = 2;
/// A restart loses the key of somebody who needs it.
pub(super) const KEY_LOST: u32 = 4;
/// A node votes at the end of its quarantine.
pub(super) const VOTES_AGAIN: u32 = 8;
/// An extension is adopted.
pub(super) const ADOPTED: u32 = 16;
/// An extension makes a key anew.
pub(super) const REMADE: u32 = 32;
/// A detached lock is attached after the end of its validity.
pub(super) const ATTACHED: u32 = 64;

/// A violation: the rule, the token of the lock that broke it, and the token that it clashes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken {
    pub(super) rule: &'static str,
    pub(super) token: u8,
    pub(super) other: u8,
}

impl State {
    pub(super) fn new() -> Self {
        let actor = Actor {
            phase: Phase::Waiting,
            from: None,
            start: 0,
            attempt: no_attempt(),
            token: 0,
            until: 0,
            sent: 0,
            limit: 0,
            rounds: 0,
            extension: no_extension(),
            links: [Link::default(); NODES],
        };
        Self {
            now: 0,
            restarts: 0,
            snapshots: 0,
            highest: 0,
            nodes: [Node::default(); NODES],
            actors: [actor.clone(), actor.clone(), actor],
            event: Event::default(),
        }
    }

    /// The nodes in another order: what was `order[i]` becomes `i`.
    pub(super) fn permute(&mut self, order: [usize; NODES]) {
        self.nodes = order.map(|node| self.nodes[node]);
        for actor in &mut self.actors {
            actor.links = order.map(|node| actor.links[node]);
            actor.attempt.votes = order.map(|node| actor.attempt.votes[node]);
            actor.extension.nodes = order.map(|node| actor.extension.nodes[node]);
        }
    }

    /// All that is particular to one node.
    pub(super) fn column(&self, node: usize) -> [u64; 1 + ATTEMPTS] {
        let [a, b, c] = [0, 1, 2].map(|actor: usize| self.actors[actor].column(node));
        [self.nodes[node].word(), a, b, c]
    }
}

/// Stands for an attempt that is decided, or was never made.
pub(super) fn no_attempt() -> Attempt<u8, [VoteState; NODES]> {
    Attempt { votes: [VoteState::Idle; NODES], token: 0, until: 0, gate: None, decided: true }
}

/// Stands for a round of extension that is decided, or was never sent.
pub(super) fn no_extension() -> Extension<u8, [Kept; NODES]> {
    Extension { nodes: [Kept::Open; NODES], until: 0, decided: true }
}

/// Packs numbers into a word, lowest bits first. Injective as long as each fits its width.
struct Pack(u64, u32);

impl Pack {
    fn new() -> Self {
        Self(0, 0)
    }

    fn add(mut self, value: u8, bits: u32) -> Self {
        debug_assert!(u32::from(value) < 1 << bits && self.1 + bits <= 64, "{value} does not fit");
        self.0 |= u64::from(value) << self.1;
        self.1 += bits;
        self
    }
}

impl Node {
    fn word(&self) -> u64 {
        let mut word = Pack::new().add(self.ready, 8).add(self.amnesiac.into(), 1);
        for Record { owner, expires, counter } in [self.live, self.saved] {
            word = word.add(owner.map_or(0, |owner| owner + 1), 2).add(expires, 8).add(counter, 8);
        }
        word.0
    }
}

impl Actor {
    /// All that is not particular to one node.
    pub(super) fn words(&self) -> [u64; 2] {
        let gate = self.attempt.gate.map_or(0, |gate| gate + 1);
        let attempt = Pack::new()
            .add(self.phase as u8, 4)
            .add(self.from.map_or(0, |from| from + 1), 2)
            .add(self.start, 8)
            .add(small(self.attempt.token), 8)
            .add(self.attempt.until, 8)
            .add(gate, 3)
            .add(self.attempt.decided.into(), 1);
        let lock = Pack::new().add(self.token, 8).add(self.until, 8).add(self.sent, 8).add(self.limit, 8);
        let lock =
            lock.add(self.rounds, 4).add(self.extension.until, 8).add(self.extension.decided.into(), 1);
        [attempt.0, lock.0]
    }

    fn column(&self, node: usize) -> u64 {
        let link = self.links[node];
        let (reply, value) = match link.reply {
            Reply::None => (0, 0),
            Reply::Granted { value, amnesiac } => (1 + u8::from(amnesiac), value),
            Reply::Denied => (3, 0),
            Reply::Silent => (4, 0),
        };
        let mut word = Pack::new().add(link.acquire, 2).add(reply, 3).add(value, 8);
        for confirmation in link.confirms {
            let (kind, token) = match confirmation {
                Confirmation::None => (0, 0),
                Confirmation::Asked(token) => (1, token),
                Confirmation::Yes(token) => (2, token),
                Confirmation::No(token) => (3, token),
            };
            word = word.add(kind, 2).add(token, 8);
        }
        let (seat, value) = match self.attempt.votes[node] {
            VoteState::Idle => (0, 0),
            VoteState::Asked => (1, 0),
            VoteState::Out => (2, 0),
            VoteState::Granted { value, confirm: Confirm::No } => (3, small(value)),
            VoteState::Granted { value, confirm: Confirm::Asked } => (4, small(value)),
            VoteState::Granted { value, confirm: Confirm::Yes } => (5, small(value)),
        };
        let (read, said) = match link.read {
            Read::None => (0, 0),
            Read::Asked => (1, 0),
            Read::Said(value) => (2, value),
        };
        let word = word.add(seat, 3).add(value, 8).add(read, 2).add(said, 8);
        let word = word.add(link.extends, 2).add(link.extended as u8, 2);
        word.add(self.extension.nodes[node] as u8, 2)
            .add(link.release.into(), 1)
            .add(link.doubtful.into(), 1)
            .add(link.attach.into(), 1)
            .add(link.back.into(), 1)
            .0
    }
}

fn small(value: u64) -> u8 {
    u8::try_from(value).expect("few ticks")
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let head = Pack::new().add(self.now, 8).add(self.restarts, 8).add(self.snapshots, 8);
        let head = head.add(self.highest, 8);
        hasher.write_u64(head.0);
        for actor in &self.actors {
            for word in actor.words() {
                hasher.write_u64(word);
            }
        }
        for node in 0..NODES {
            for word in self.column(node) {
                hasher.write_u64(word);
            }
        }
    }
}
