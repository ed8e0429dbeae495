//! A queue as message brokers have them: it delivers more than once, and what is put back comes again later.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::worker::{BUSY, PAID};

/// How long an order that was put back is kept before it is delivered again.
const LATER: Duration = Duration::from_millis(1500);

pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// What is to be delivered, and not before when.
    waiting: Vec<(String, Instant)>,
    /// How many are with a worker now.
    out: usize,
    counts: Counts,
}

/// What became of the deliveries.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) paid: usize,
    pub(crate) paid_already: usize,
    pub(crate) put_back: usize,
}

impl Queue {
    pub(crate) fn of(orders: impl Iterator<Item = String>) -> Self {
        let now = Instant::now();
        let waiting = orders.map(|order| (order, now)).collect();
        Self {
            state: Mutex::new(State { waiting, out: 0, counts: Counts::default() }),
            changed: Condvar::new(),
        }
    }

    /// The next order, as soon as one is due; `None` when all are done.
    pub(crate) fn take(&self) -> Option<String> {
        let mut state = self.state();
        loop {
            let now = Instant::now();
            if let Some(due) = state.waiting.iter().position(|(_, not_before)| *not_before <= now) {
                state.out += 1;
                return Some(state.waiting.remove(due).0);
            }
            let next = state.waiting.iter().map(|(_, not_before)| *not_before).min();
            if next.is_none() && state.out == 0 {
                return None;
            }
            let pause = next.map_or(Duration::MAX, |next| next - now);
            state = self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What a worker said about an order that it was given.
    pub(crate) fn answered(&self, order: String, answer: &str) {
        let mut state = self.state();
        state.out -= 1;
        match answer {
            BUSY => {
                state.counts.put_back += 1;
                state.waiting.push((order, Instant::now() + LATER));
            }
            PAID => state.counts.paid += 1,
            _ => state.counts.paid_already += 1,
        }
        self.changed.notify_all();
    }

    pub(crate) fn counts(&self) -> Counts {
        self.state().counts
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
