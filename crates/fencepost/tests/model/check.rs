//! The promises that can be seen in a single state.

use crate::rules::Limits;
use crate::search::Promise;
use crate::state::{Phase, State, TERM, TTL};

pub(crate) fn broken(state: &State, limits: &Limits) -> Option<Promise> {
    let mut holding = state.owners.iter().filter(|owner| owner.phase == Phase::Holding);
    if let Some(first) = holding.next() {
        if holding.next().is_some() {
            return Some(Promise::Exclusion);
        }
        if first.token < state.newest_used() {
            return Some(Promise::Newest);
        }
    }
    if state.is_drained() {
        let lost_messages = limits.breaks > state.breaks;
        if !lost_messages && !state.overslept && (state.key.is_some() || !state.queue.is_empty()) {
            return Some(Promise::NothingLeft);
        }
        if !freed_in_time(state) {
            return Some(Promise::FreedInTime);
        }
    }
    None
}

/// Whether a new waiter that asks every tick gets the lock, though everybody who left something in the queue seems
/// to be there still.
fn freed_in_time(state: &State) -> bool {
    let mut key = state.key.map(|key| key.left);
    let mut queue = state.queue.len();
    for _ in 0..=TTL + 2 + TERM * 4 {
        if key.is_none() {
            if queue == 0 {
                return true;
            }
            queue -= 1;
            key = Some(TERM);
        }
        key = key.and_then(|left| left.checked_sub(1)).filter(|left| *left > 0);
    }
    false
}
