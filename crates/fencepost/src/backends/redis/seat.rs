//! One waiter of a cohort, and what has become of its wait.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use super::row::Row;
use crate::Owner;
use crate::backend::{Request, Signal, lock};
use crate::clock::Moment;

#[derive(Debug)]
pub(super) struct Seat {
    pub(super) owner: Owner,
    pub(super) value: Arc<str>,
    pub(super) ttl: Duration,
    pub(super) signal: Arc<Signal>,
    state: Mutex<State>,
    news: Notify,
}

#[derive(Debug)]
struct State {
    place: Place,
    /// A hand-over has named it, and it did not hear what came of that: the server may have it for the holder or in the queue, or
    /// have it so later.
    unheard: bool,
    /// How often a holder has chosen it alone.
    choices: u32,
}

#[derive(Debug)]
enum Place {
    Waiting,
    /// Should ask the server.
    Asking,
    /// Has a place in a row, or is about to get one.
    InRow,
    /// A holder is about to hand the lock to this one alone, under its own identity.
    Chosen,
    Granted(HandOver),
    /// Has the lock.
    Served,
    /// Gave up.
    Left,
}

/// A lock that a holder of this process has handed over.
#[derive(Clone, Debug)]
pub(super) struct HandOver {
    pub(super) token: i64,
    /// When the request was sent that it is valid by.
    pub(super) sent: Moment,
    /// Its turns in this process so far, one after the other.
    pub(super) handed: usize,
    /// The row that it came to.
    pub(super) row: Option<Arc<Row>>,
}

/// What a waiter learns here.
#[derive(Debug)]
pub(super) enum News {
    Granted(HandOver),
    /// Ask the server now.
    Ask,
    /// The place in the cohort may have changed.
    Moved,
}

/// What becomes of a lock that the server has granted to a waiter.
#[derive(Debug)]
pub(super) enum Served {
    Now,
    /// It was its turn in a row, too: nobody else gives back what that has.
    BesideTurn(Arc<Row>),
    /// A holder hands it the lock under the same identity, or is about to, and may have had it after this grant: a question that is
    /// asked now tells which token counts.
    AskAgain,
}

/// What a waiter leaves behind that gives up.
#[derive(Debug)]
pub(super) enum Left {
    Nothing,
    /// A holder may have named it to the server, or may do so.
    Chosen,
    /// A turn in a row; `chosen` if a holder had named it to the server before.
    Turn {
        turn: HandOver,
        chosen: bool,
    },
}

impl Seat {
    pub(super) fn new(request: &Request, value: &Arc<str>) -> Self {
        Self {
            owner: request.owner,
            value: value.clone(),
            ttl: request.ttl,
            signal: request.signal.clone(),
            state: Mutex::new(State { place: Place::Waiting, unheard: false, choices: 0 }),
            news: Notify::new(),
        }
    }

    // --- the waiter's side -------------------------------------------------------------------------------------

    /// Waits for something to be said. May be dropped and called again; nothing is missed.
    pub(super) async fn news(&self) -> News {
        self.news.notified().await;
        let mut state = lock(&self.state);
        match &state.place {
            Place::Granted(hand_over) => News::Granted(hand_over.clone()),
            Place::Asking => {
                state.place = Place::Waiting;
                News::Ask
            }
            _ => News::Moved,
        }
    }

    /// Lets the waiter look at its place again.
    pub(super) fn notify(&self) {
        self.news.notify_one();
    }

    /// Takes what a holder has handed over.
    pub(super) fn accept(&self) -> Served {
        lock(&self.state).place = Place::Served;
        Served::Now
    }

    /// Does not take it.
    pub(super) fn decline(&self) {
        lock(&self.state).place = Place::Waiting;
    }

    /// How often a holder has chosen it alone.
    pub(super) fn choices(&self) -> u32 {
        lock(&self.state).choices
    }

    /// Takes what the server has granted by its answer to a question that was asked when it had been chosen so often, or by a push.
    pub(super) fn serve(&self, choices: Option<u32>) -> Served {
        let mut state = lock(&self.state);
        let handed = matches!(state.place, Place::Chosen | Place::Granted(HandOver { row: None, .. }));
        if handed && choices != Some(state.choices) {
            return Served::AskAgain;
        }
        match std::mem::replace(&mut state.place, Place::Served) {
            Place::Granted(HandOver { row: Some(row), .. }) => Served::BesideTurn(row),
            _ => Served::Now,
        }
    }

    /// Whether the server may have it in the queue though it did not ask.
    pub(super) fn may_stand_in_queue(&self) -> bool {
        lock(&self.state).unheard
    }

    pub(super) fn leave(&self) -> Left {
        let mut state = lock(&self.state);
        if matches!(state.place, Place::Served) {
            return Left::Nothing;
        }
        match std::mem::replace(&mut state.place, Place::Left) {
            Place::Granted(turn) if turn.row.is_some() => Left::Turn { turn, chosen: state.unheard },
            Place::Chosen | Place::Granted(_) => Left::Chosen,
            // Once is enough.
            Place::Left => Left::Nothing,
            _ if state.unheard => Left::Chosen,
            _ => Left::Nothing,
        }
    }

    // --- the holder's side -------------------------------------------------------------------------------------

    /// Whether a holder may choose it.
    pub(super) fn waits(&self) -> bool {
        matches!(lock(&self.state).place, Place::Waiting | Place::Asking)
    }

    pub(super) fn is_served(&self) -> bool {
        matches!(lock(&self.state).place, Place::Served)
    }

    /// Takes it into a row, which names its first to the server; `false` if it does not wait any more.
    pub(super) fn choose(&self, first: bool) -> bool {
        let mut state = lock(&self.state);
        let waits = matches!(state.place, Place::Waiting | Place::Asking);
        if waits {
            state.place = Place::InRow;
            state.unheard |= first;
        }
        waits
    }

    /// Makes a row of one a hand-over to this one alone; `false` if it is gone.
    pub(super) fn choose_alone(&self) -> bool {
        let mut state = lock(&self.state);
        let here = matches!(state.place, Place::InRow);
        if here {
            state.place = Place::Chosen;
            state.choices += 1;
        }
        here
    }

    /// The hand-over to this one alone has come to pass; `false` if it is gone and the lock has to go elsewhere.
    pub(super) fn grant(&self, hand_over: HandOver) -> bool {
        let mut state = lock(&self.state);
        match state.place {
            Place::Chosen => state.place = Place::Granted(hand_over),
            Place::Left => return false,
            // It has asked meanwhile, and knows.
            _ => {}
        }
        self.news.notify_one();
        true
    }

    /// Its turn in a row has come; `false` if it is gone.
    pub(super) fn take_turn(&self, hand_over: HandOver) -> bool {
        let mut state = lock(&self.state);
        let here = matches!(state.place, Place::InRow);
        if here {
            state.place = Place::Granted(hand_over);
            self.news.notify_one();
        }
        here
    }

    /// The row that it is the first of has the lock: the server has it neither for the holder nor in the queue.
    pub(super) fn hear(&self) {
        lock(&self.state).unheard = false;
    }

    /// It has no place in a row any more.
    pub(super) fn wait_on(&self) {
        let mut state = lock(&self.state);
        if matches!(state.place, Place::InRow) {
            state.place = Place::Waiting;
        }
    }

    /// It shall ask the server, if it waits.
    pub(super) fn prompt(&self) {
        let mut state = lock(&self.state);
        if matches!(state.place, Place::Waiting) {
            state.place = Place::Asking;
            self.news.notify_one();
        }
    }

    /// What it was chosen for has no outcome: it shall ask the server; `false` if it is gone.
    pub(super) fn ask(&self) -> bool {
        let mut state = lock(&self.state);
        let here = matches!(state.place, Place::InRow | Place::Chosen);
        if here {
            state.place = Place::Asking;
            self.news.notify_one();
        }
        here
    }
}
