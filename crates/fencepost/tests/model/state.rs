//! What the world looks like at one moment. All times are relative (ages, and what is left), so there is no horizon:
//! a search ends when nothing new can happen, not when a clock runs out.

/// Ticks. The server may run up to one tick fast over a whole term, which is what [`DRIFT`] makes up for.
pub(crate) const TTL: u8 = 3;
pub(crate) const TERM: u8 = 2;
pub(crate) const LONG: u8 = 5;
pub(crate) const DRIFT: u8 = 1;

pub(crate) const OWNERS: usize = 4;
/// Values from here on are identities of rows, by the number of the owner that handed the lock to it and how often it did.
pub(crate) const ROWS: u8 = 4;

/// A short queue of messages, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Line<T>([Option<T>; 4]);

impl<T: Copy> Line<T> {
    pub(crate) const EMPTY: Self = Self([None; 4]);

    pub(crate) fn push(&mut self, item: T) {
        let Some(free) = self.0.iter_mut().find(|slot| slot.is_none()) else {
            panic!("the limits of a search allow more messages than a line has room for");
        };
        *free = Some(item);
    }

    pub(crate) fn push_front(&mut self, item: T) {
        assert!(self.0[3].is_none(), "the limits of a search allow more messages than a line has room for");
        self.0.rotate_right(1);
        self.0[0] = Some(item);
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let first = self.0[0].take();
        self.0.rotate_left(1);
        first
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0[0].is_none()
    }

    pub(crate) fn len(&self) -> usize {
        self.iter().count()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.0.iter().copied().flatten()
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(T) -> bool) {
        let kept = *self;
        *self = Self::EMPTY;
        kept.iter().filter(|item| keep(*item)).for_each(|item| self.push(item));
    }
}

/// A request: one call of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Request {
    /// A `wait` step of `turn.lua`, or a `try`.
    Ask,
    Try,
    /// A `leave` step.
    Leave,
    /// A `quit` step.
    Quit,
    /// A `free` step for a value, which may be that of a chosen waiter that is gone, or of a row.
    Release(u8),
    /// The same in the background, for a row that one member does not want.
    Free(u8),
    /// For a value, and for how long; `newest` is the counter if nobody was granted the lock since.
    Renew {
        value: u8,
        term: u8,
        newest: u8,
    },
    /// A `hand` step.
    HandOver {
        from: u8,
        to: Heirs,
    },
}

/// Whom a lock is handed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Heirs {
    /// Named to the server.
    pub(crate) first: u8,
    /// All of them, as bits; with more than one they are a row.
    pub(crate) members: u8,
    /// How often the lock may stay in the process while others queue.
    pub(crate) turns: u8,
    /// The identity of the row.
    pub(crate) row: u8,
}

impl Owner {
    /// What is given back now.
    pub(crate) fn giving(&self) -> u8 {
        self.also.filter(|_| self.second).unwrap_or(self.value)
    }
}

impl Heirs {
    pub(crate) fn count(self) -> u8 {
        u8::try_from(self.members.count_ones()).unwrap_or(u8::MAX)
    }
}

/// What the server sends to a client, replies and pushes in one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Message {
    Granted(u8),
    Busy {
        counter: u8,
    },
    Released(bool),
    Left(bool),
    HasQuit,
    Renewed {
        term: u8,
        newest: bool,
    },
    NotRenewed,
    Handed(u8),
    /// To a row: the first token, and how many there are.
    HandedToRow {
        token: u8,
        count: u8,
    },
    NotHanded,
    Queued,
    PushedGrant(u8),
    PushedRevocation,
}

impl Message {
    pub(crate) fn is_push(self) -> bool {
        matches!(self, Self::PushedGrant(_) | Self::PushedRevocation)
    }
}

/// Where an owner is in its only life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Idle,
    /// A request for the lock is unanswered.
    Asking,
    /// Told that the lock is held by somebody else, or seated behind others of its process.
    Waiting,
    /// Its turn in a row has come, and it leaves the queue first.
    Quitting,
    /// Has a guard that says held.
    Holding,
    /// Has a guard that says lost; nothing was given back yet.
    Lost,
    /// About to give back what `value` holds.
    Giving,
    /// A release or a hand-over is unanswered.
    Releasing,
    /// Gave up, and is undoing what it may have asked for.
    Undoing,
    Gone,
}

/// A seat in the cohort of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    None,
    Waiting,
    Chosen,
    /// Has a place in a row, or is about to get one.
    InRow,
    /// Had one when the server granted it the lock otherwise.
    Served,
    Granted {
        token: u8,
        age: u8,
        row: Option<Turn>,
    },
    Left,
}

impl Place {
    /// Chosen alone, or handed the lock so.
    pub(crate) fn is_handed(self) -> bool {
        matches!(self, Self::Chosen | Self::Granted { row: None, .. })
    }
}

/// A turn in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Turn {
    /// What the server has the lock under.
    pub(crate) row: u8,
    /// The largest token of the row.
    pub(crate) newest: u8,
}

/// A row of which somebody has not had its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Row {
    pub(crate) turn: Turn,
    /// Owners and their tokens.
    pub(crate) next: Line<(u8, u8)>,
    /// Since the last answered request was sent that set the server's timer.
    pub(crate) age: u8,
}

/// A revocation of what a row has, which is not an owner's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RowLetter {
    pub(crate) row: u8,
    pub(crate) read: bool,
}

/// One owner, with a connection of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    pub(crate) phase: Phase,
    /// Since the last request was sent whose answer counts.
    pub(crate) age: u8,
    /// The counter in the last answer, if there was one.
    pub(crate) counter: Option<u8>,
    /// It is the one that the hand-over to its row has named.
    pub(crate) was_first: bool,
    /// A grant by push that was not looked at yet.
    pub(crate) letter: Option<u8>,
    /// Validity left, as the guard counts it.
    pub(crate) left: u8,
    pub(crate) token: u8,
    /// It holds by a turn.
    pub(crate) turn: Option<Turn>,
    pub(crate) renewing: bool,
    pub(crate) revoked: bool,
    /// Something was sent that may have to be undone.
    pub(crate) asked: bool,
    /// It had been chosen alone when it asked.
    pub(crate) knew: bool,
    pub(crate) place: Place,
    /// A hand-over to this waiter was begun, and how it ended is unknown.
    pub(crate) uncertain: bool,
    /// Giving back: whose lock, the row that it may have gone to, and to whom.
    pub(crate) value: u8,
    pub(crate) also: Option<u8>,
    /// It gives back the second one.
    pub(crate) second: bool,
    /// How many rows it has handed the lock to.
    pub(crate) rows: u8,
    pub(crate) to: Option<Heirs>,
    pub(crate) repeated: bool,
    pub(crate) last: bool,
    pub(crate) asks: u8,
    pub(crate) renewals: u8,
    pub(crate) lives: u8,
    pub(crate) connected: bool,
    pub(crate) up: Line<Request>,
    pub(crate) down: Line<Message>,
    /// Requests of an older connection, or of another one, that the server has not seen yet. It may never.
    pub(crate) late: Line<Request>,
    /// A grant pushed over an older connection that may still come out of it.
    pub(crate) stray: Option<u8>,
    /// The largest token in use when this acquisition began.
    pub(crate) floor: u8,
}

/// The lock's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) owner: u8,
    pub(crate) left: u8,
    pub(crate) revoked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) key: Option<Key>,
    pub(crate) counter: u8,
    pub(crate) queue: Line<u8>,
    pub(crate) owners: [Owner; OWNERS],
    pub(crate) row: Option<Row>,
    pub(crate) row_letter: Option<RowLetter>,
    /// Tokens that a guard was made of, as bits.
    pub(crate) used: u32,
    /// Somebody looked at its grant when that was over, and the server may serve it beside that: it had a turn in a row and had asked,
    /// or a hand-over that named it was dropped.
    pub(crate) overslept: bool,
    pub(crate) breaks: u8,
    pub(crate) cancels: u8,
    pub(crate) aborts: u8,
    pub(crate) revocations: u8,
    pub(crate) vanishings: u8,
}

impl State {
    pub(crate) fn newest_used(&self) -> u8 {
        u8::try_from(31u32.saturating_sub(self.used.leading_zeros())).unwrap_or(0)
    }

    /// Nobody wants anything any more, and nothing is under way.
    pub(crate) fn is_drained(&self) -> bool {
        self.owners.iter().all(|owner| {
            matches!(owner.phase, Phase::Idle | Phase::Gone) && owner.up.is_empty() && owner.late.is_empty()
        })
    }
}
