//! Fewer states, the same verdict.
//!
//! Searches that are not in full leave steps out, by these arguments (`m` dominates `s` if every lock that
//! can be returned, and everything that can be done to counters, from `s` can also be from `m`):
//! - *No answer arrives but grants and confirmations.* A client that hears a denial, a refusal or nothing
//!   counts on fewer nodes, and does nothing else; one that never hears it dominates.
//! - *A key vanishes only just before the grant or extension that needs it free.* A key that is there refuses
//!   others, who dominate by never asking, and lets its owner confirm, who need not.
//! - *So revocations are attempts:* a key taken over is one that vanished and was granted in one step. They
//!   differ in full only.
//! - *An attempt begins with its first grant.* Whoever began later has more locks returned before it, all
//!   smaller.
//! - *An extension does nothing where the counter is not below the token:* it would only take a key away.
//!   *Attaching* does what a confirmation would.
//! - *A request to confirm comes once.* After it was confirmed the counter is the token or larger, so that it
//!   changes nothing any more; one that was refused need not have come.
//!
//! - *A crowd*, where there is one, raises a counter to any larger value, taking the key away. That is a
//!   grant with any proposal, and the raise by a confirmation or an extension. So attempts need no proposals
//!   there, and nothing is left to do for one that is over.
//!
//! Then states are taken for one that differ in what cannot matter any more, in the order of nodes, and in
//! the order of attempts.

use super::client::Rule;
use super::model::{ClockFree, Scripts};
use super::node::{Key, NOBODY};
use super::state::{Phase, State, Try, Values, Wire};
use crate::quorum::{Confirm, VoteState, majority};

pub(super) fn canonical<const N: usize, const K: usize>(
    model: &ClockFree<N, K>,
    mut state: State<N, K>,
) -> State<N, K> {
    // What can be forgotten of a mutant is another question.
    if !model.in_full
        && model.rule == Rule::Production
        && model.scripts == Scripts::Production
        && model.restarts == 0
    {
        for k in 0..K {
            forget(model, &mut state, k);
        }
    }
    match model.in_order {
        true => state,
        false => rename(&state),
    }
}

fn forget<const N: usize, const K: usize>(model: &ClockFree<N, K>, state: &mut State<N, K>, k: usize) {
    let who = k as Key;
    let attempt = &mut state.attempts[k];
    if attempt.phase == Phase::Idle {
        return;
    }
    let token = attempt.client.token;
    for (wire, node) in attempt.wires.iter_mut().zip(&state.nodes) {
        // The key is not the attempt's and never will be again, or the counter has passed the token, or there
        // is nothing left to do but to answer a question that nobody asks any more.
        let comes_back = node.key == who || wire.acquires > 0;
        wire.holds
            .retain(|hold| comes_back && (hold > node.counter || hold == node.counter && hold == token));
        wire.acks.retain(|ack| ack == token);
    }
    if attempt.phase == Phase::Running {
        forget_running(state, k);
    }
    if matches!(state.attempts[k].phase, Phase::Won | Phase::Failed) {
        retire(model, state, k);
    }
}

/// Of a client that can still win: how it came to know what it knows.
fn forget_running<const N: usize, const K: usize>(state: &mut State<N, K>, k: usize) {
    let attempt = &mut state.attempts[k];
    let token = attempt.client.token;
    if token > attempt.floor {
        attempt.floor = 0;
    }
    let mut raisable = false;
    for (n, wire) in attempt.wires.iter_mut().enumerate() {
        match attempt.client.seat(n) {
            VoteState::Asked => raisable |= wire.acquires > 0 || wire.grants.largest() > token,
            VoteState::Granted { value, confirm } => {
                wire.grants = Values::NONE;
                // Having confirmed the token and having granted with it is the same. So is having granted
                // with any smaller value.
                let sure = confirm == Confirm::Yes || value == u64::from(token);
                if sure || confirm != Confirm::Asked {
                    wire.acks = Values::NONE;
                }
                let seat = match sure {
                    true => VoteState::Granted { value: token.into(), confirm: Confirm::No },
                    false => VoteState::Granted { value: 0, confirm },
                };
                attempt.client.set_seat(n, seat);
            }
            VoteState::Idle | VoteState::Out => wire.grants = Values::NONE,
        }
    }
    let mut reach = 0;
    for n in 0..N {
        let (wire, node) = (&attempt.wires[n], &mut state.nodes[n]);
        let (counts, needs_key) = prospects(attempt.client.seat(n), wire, node.counter, token, raisable);
        let comes_back = node.key == k as Key || wire.acquires > 0;
        reach += usize::from(counts || needs_key && comes_back);
        if node.key == k as Key && !needs_key && wire.holds.is_empty() {
            node.key = NOBODY;
        }
    }
    if reach < majority(N) {
        attempt.phase = Phase::Failed;
    }
}

/// Whether a node may count for the attempt without more from it, and whether it may with its key.
fn prospects(seat: VoteState, wire: &Wire, counter: u8, token: u8, raisable: bool) -> (bool, bool) {
    match seat {
        VoteState::Asked => (wire.acquires > 0 || !wire.grants.is_empty(), true),
        VoteState::Granted { value, confirm } => {
            let counts = value == u64::from(token) || wire.acks.has(token);
            let open = confirm == Confirm::No || wire.holds.has(token);
            (counts, raisable || !counts && open && counter <= token)
        }
        VoteState::Idle | VoteState::Out => (false, false),
    }
}

/// Of an attempt that is over: everything but what its requests can still do to counters. One that will only
/// ever raise a counter by one is nobody's in particular.
fn retire<const N: usize, const K: usize>(model: &ClockFree<N, K>, state: &mut State<N, K>, k: usize) {
    let attempt = &mut state.attempts[k];
    let mut left = Try { phase: Phase::Failed, proposal: attempt.proposal, ..Try::idle(false) };
    if model.crowd != 0 {
        attempt.wires = [Wire::default(); N];
    }
    for (n, wire) in attempt.wires.iter().enumerate() {
        let node = &mut state.nodes[n];
        let mut holds = wire.holds;
        holds.retain(|hold| hold > node.counter);
        if holds.is_empty() && node.key == k as Key {
            node.key = NOBODY;
        }
        let mut acquires = wire.acquires;
        if holds.is_empty() && model.proposals == [0] {
            node.strays += std::mem::take(&mut acquires);
        }
        left.wires[n] = Wire { acquires, holds, ..Wire::default() };
    }
    if left.wires.iter().all(|wire| wire.acquires == 0) {
        left.proposal = 0;
    }
    *attempt = left;
}

/// Attempts in the order of what they look like, nodes in the order of what they look like then. Where two
/// attempts look alike, whichever order makes the smaller state.
fn rename<const N: usize, const K: usize>(state: &State<N, K>) -> State<N, K> {
    let looks: [_; K] = std::array::from_fn(|k| look(state, k));
    let mut order: [usize; K] = std::array::from_fn(|k| k);
    order.sort_unstable_by(|a, b| looks[*a].cmp(&looks[*b]));
    let mut best = None;
    permute(&mut order, 0, &|a, b| looks[a] == looks[b], &mut |order| {
        let renamed = rename_nodes(&rename_attempts(state, order));
        if best.is_none_or(|best| renamed < best) {
            best = Some(renamed);
        }
    });
    best.unwrap_or(*state)
}

/// Calls `each` with every order that differs from the first by swaps of what is alike.
pub(super) fn permute<const K: usize>(
    order: &mut [usize; K],
    from: usize,
    alike: &impl Fn(usize, usize) -> bool,
    each: &mut impl FnMut(&[usize; K]),
) {
    if from == K {
        return each(order);
    }
    for to in from..K {
        if alike(order[from], order[to]) {
            order.swap(from, to);
            permute(order, from + 1, alike, each);
            order.swap(from, to);
        }
    }
}

/// An attempt without any name in it.
fn look<const N: usize, const K: usize>(state: &State<N, K>, k: usize) -> impl Ord + use<N, K> {
    let attempt = &state.attempts[k];
    let mut columns: [_; N] = std::array::from_fn(|n| {
        let node = &state.nodes[n];
        (
            attempt.client.packed_seat(n),
            attempt.wires[n],
            node.key == k as Key,
            node.counter,
            attempt.client.extra >> n & 1,
        )
    });
    columns.sort_unstable();
    (attempt.phase, attempt.revokes.is_some(), attempt.floor, attempt.client.token, attempt.proposal, columns)
}

/// The same state where attempt `order[i]` is called `i`.
fn rename_attempts<const N: usize, const K: usize>(state: &State<N, K>, order: &[usize; K]) -> State<N, K> {
    let new = |key: Key| order.iter().position(|old| *old == usize::from(key)).map_or(key, |new| new as Key);
    let mut renamed = *state;
    renamed.attempts = order.map(|old| {
        let attempt = state.attempts[old];
        Try { revokes: attempt.revokes.map(new), ..attempt }
    });
    for node in &mut renamed.nodes {
        node.key = new(node.key);
    }
    renamed
}

fn rename_nodes<const N: usize, const K: usize>(state: &State<N, K>) -> State<N, K> {
    let column = |n: usize| {
        let votes = state
            .attempts
            .map(|attempt| (attempt.client.packed_seat(n), attempt.wires[n], attempt.client.extra >> n & 1));
        (state.nodes[n], votes)
    };
    let mut order: [usize; N] = std::array::from_fn(|n| n);
    order.sort_by_key(|&n| column(n));
    let mut renamed = *state;
    renamed.nodes = order.map(|old| state.nodes[old]);
    for attempt in &mut renamed.attempts {
        attempt.wires = order.map(|old| attempt.wires[old]);
        attempt.client = attempt.client.renamed(&order);
    }
    renamed
}
