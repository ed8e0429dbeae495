//! Two attempts of the most general client: it may ask a node to confirm any token at any time, as often as it likes,
//! may be granted again whenever its key has vanished, and returns a token as soon as a majority of the nodes has
//! ever confirmed it. Every way to choose a token, to propose one and to treat second answers is among that. Around
//! them a crowd does whatever else attempts, extensions and revocations can do to nodes.
//!
//! What this shows rests on the scripts alone: they are safe whatever clients do, and however many there are.
//! Bounded by the largest counter.

use super::node::{Key, NOBODY, Node};
use super::state::{Values, name};
use crate::quorum::majority;
use crate::search::{Model, Steps};

#[derive(Clone, Copy, Debug)]
pub(crate) struct AnyToken<const N: usize> {
    pub(crate) largest: u8,
    /// A mutant confirms also where the counter has passed the token.
    pub(crate) without_counter: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct State<const N: usize> {
    nodes: [Node; N],
    attempts: [Try<N>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Try<const N: usize> {
    begun: bool,
    /// Began when the other had returned.
    second: bool,
    /// The token returned, or zero.
    token: u8,
    /// What each node has confirmed to this attempt.
    confirmed: [Values; N],
}

impl<const N: usize> AnyToken<N> {
    pub(crate) const PLAIN: Self = Self { largest: 4, without_counter: false };

    /// What node `n` can do for attempt `k`. An attempt begins with its first grant: the later, the more is asked of it.
    fn serve(&self, state: &State<N>, k: usize, n: usize, steps: &mut Steps<State<N>>) {
        let who = k as Key;
        let mut begun = *state;
        if !state.attempts[k].begun {
            begun.attempts[k].begun = true;
            begun.attempts[k].second = state.attempts[1 - k].token != 0;
        }
        let mut serve = |change: &dyn Fn(&mut Node) -> Option<u8>, does: &str| {
            let mut next = begun;
            if let Some(token) = change(&mut next.nodes[n]) {
                let confirmed = &mut next.attempts[k].confirmed[n];
                *confirmed = confirmed.with(token);
                steps.push(next, || format!("node {n} {does} {token} to {}", name(k)));
            }
        };
        if state.nodes[n].counter < self.largest {
            let grant = |node: &mut Node| {
                node.key = NOBODY;
                node.acquire(who, 0)
            };
            serve(&grant, "grants");
        }
        if state.nodes[n].key == who {
            for token in 1..=self.largest {
                let without = self.without_counter && token < state.nodes[n].counter;
                serve(&|node| (without || node.confirm(who, token)).then_some(token), "confirms");
            }
        }
    }

    fn forget(&self, state: &mut State<N>) {
        for k in 0..2 {
            let attempt = &mut state.attempts[k];
            if attempt.token != 0 {
                // What it does from here on is done by the crowd as well.
                attempt.confirmed = [Values::NONE; N];
                attempt.second = false;
                for node in state.nodes.iter_mut().filter(|node| node.key == k as Key) {
                    node.key = NOBODY;
                }
            }
            for token in (1..=self.largest).filter(|_| !self.without_counter) {
                let may = |n: usize| attempt.confirmed[n].has(token) || state.nodes[n].counter < token;
                if (0..N).filter(|&n| may(n)).count() < majority(N) {
                    attempt.confirmed = attempt.confirmed.map(|confirmed| confirmed.without(token));
                }
            }
        }
    }
}

impl<const N: usize> Model for AnyToken<N> {
    type State = State<N>;

    fn initial(&self) -> Vec<State<N>> {
        let idle = Try { begun: false, second: false, token: 0, confirmed: [Values::NONE; N] };
        vec![State { nodes: [Node::NEW; N], attempts: [idle; 2] }]
    }

    fn steps(&self, state: &State<N>, steps: &mut Steps<State<N>>) {
        for (k, attempt) in state.attempts.iter().enumerate().filter(|(_, attempt)| attempt.token == 0) {
            for n in 0..N {
                self.serve(state, k, n, steps);
            }
            for token in 1..=self.largest {
                let confirmed = attempt.confirmed.iter().filter(|confirmed| confirmed.has(token)).count();
                if confirmed >= majority(N) {
                    let mut next = *state;
                    next.attempts[k].token = token;
                    steps.push(next, || format!("{} returns {token}", name(k)));
                }
            }
        }
        for n in 0..N {
            for counter in state.nodes[n].counter + 1..=self.largest {
                let mut next = *state;
                next.nodes[n] = Node { counter, ..Node::NEW };
                steps.push(next, || format!("node {n} grants somebody else with {counter}"));
            }
        }
    }

    fn canonical(&self, mut state: State<N>) -> State<N> {
        self.forget(&mut state);
        let mut swapped = state;
        swapped.attempts.swap(0, 1);
        for node in swapped.nodes.iter_mut().filter(|node| node.key != NOBODY) {
            node.key = 1 - node.key;
        }
        sorted(&state).min(sorted(&swapped))
    }

    fn violation(&self, before: &State<N>, after: &State<N>) -> Option<String> {
        if let Some(n) = (0..N).find(|&n| after.nodes[n].counter < before.nodes[n].counter) {
            return Some(format!("MONOTONE: the counter of node {n} falls"));
        }
        let won = |k: &usize| before.attempts[*k].token == 0 && after.attempts[*k].token != 0;
        let winner = (0..2).find(won)?;
        let Try { token, second, .. } = after.attempts[winner];
        let other = after.attempts[1 - winner].token;
        if token == other {
            Some(format!("UNIQUE: both return {token}"))
        } else if second && token < other {
            Some(format!("ORDER: {} returns {token}, but {other} was returned before it began", name(winner)))
        } else {
            None
        }
    }

    fn sometimes(&self) -> &'static [&'static str] {
        &["both attempts return a lock", "an attempt returns that began when the other had returned"]
    }

    fn sees(&self, state: &State<N>) -> u32 {
        let both = state.attempts.iter().all(|attempt| attempt.token != 0);
        u32::from(both) | u32::from(both && state.attempts.iter().any(|attempt| attempt.second)) << 1
    }
}

/// One order of the nodes for all.
fn sorted<const N: usize>(state: &State<N>) -> State<N> {
    let mut order: [usize; N] = std::array::from_fn(|n| n);
    order.sort_by_key(|&n| (state.nodes[n], state.attempts.map(|attempt| attempt.confirmed[n])));
    State {
        nodes: order.map(|old| state.nodes[old]),
        attempts: state.attempts.map(|a| Try { confirmed: order.map(|old| a.confirmed[old]), ..a }),
    }
}
