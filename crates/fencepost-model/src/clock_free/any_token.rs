//! Whatever clients do, however many there are, however often requests come again, whatever counters stand
//! at: two attempts do not return the same token, and one that began when another had returned does not
//! return a smaller one. For a number of nodes this is the whole proof, without any bound.
//!
//! - *Two attempts and a crowd.* What can break is broken between two. All others, with their extensions and
//!   revocations, can do no more to a node than to raise its counter to any value and to take the key away.
//! - *The most general client.* It may be granted again whenever its key has vanished, may ask to confirm any
//!   token at any time, and returns its token as soon as a majority of the nodes has ever confirmed it. What
//!   production does with answers, and with second ones, is among that.
//! - *Only two tokens.* Which ones the two attempts will return is fixed beforehand. A counter is then one of
//!   them, or below, between or above: five values stand for all.

use super::node::{Key, NOBODY, Node};
use super::state::name;
use crate::quorum::majority;
use crate::search::{Model, Steps};

/// Tokens and counters. An odd one is a number that somebody will return, an even one any number in between.
type Value = u8;

#[derive(Clone, Copy, Debug)]
pub(crate) struct AnyToken<const N: usize> {
    /// What the two attempts are to return.
    pub(crate) tokens: [Value; 2],
    /// The second attempt begins when the first has returned.
    pub(crate) one_after_the_other: bool,
    pub(crate) scripts: Scripts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scripts {
    Production,
    /// Mutants: confirm although the counter has passed the token, or the key is somebody else's.
    ConfirmWithoutCounter,
    ConfirmWithoutKey,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct State<const N: usize> {
    nodes: [Node; N],
    attempts: [Try<N>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Try<const N: usize> {
    returned: bool,
    /// Which nodes have confirmed its token to this attempt.
    confirmed: [bool; N],
}

impl<const N: usize> AnyToken<N> {
    /// Both attempts return the same token.
    pub(crate) const SAME: Self =
        Self { tokens: [1, 1], one_after_the_other: false, scripts: Scripts::Production };
    /// The second begins when the first has returned, and returns a smaller token.
    pub(crate) const FALLING: Self = Self { tokens: [3, 1], one_after_the_other: true, ..Self::SAME };

    /// Above all tokens.
    fn top(&self) -> Value {
        self.tokens[0].max(self.tokens[1]) + 1
    }

    /// What a counter can be after it was raised.
    fn raised(&self, counter: Value) -> std::ops::RangeInclusive<Value> {
        counter + counter % 2..=self.top()
    }

    /// What node `n` can do for attempt `k`.
    fn serve(&self, state: &State<N>, k: usize, n: usize, steps: &mut Steps<State<N>>) {
        let (who, now) = (k as Key, state.nodes[n]);
        let mut serve = |node: Node, token: Value, does: &str| {
            let mut next = *state;
            next.nodes[n] = node;
            next.attempts[k].confirmed[n] |= token == self.tokens[k];
            steps.push(next, || format!("node {n} {does} {token} to {}", name(k)));
        };
        for counter in self.raised(now.counter) {
            serve(Node { counter, key: who, ..now }, counter, "grants");
        }
        for token in 0..=self.top() {
            let mut node = now;
            let confirmed = match self.scripts {
                Scripts::Production => node.confirm(who, token),
                Scripts::ConfirmWithoutCounter => node.confirm(who, token) || node.key == who,
                Scripts::ConfirmWithoutKey => node.confirm(node.key, token),
            };
            if confirmed {
                serve(node, token, "confirms");
            }
        }
    }

    /// Whether the attempt is under way, or may begin.
    fn runs(&self, state: &State<N>, k: usize) -> bool {
        let waits = self.one_after_the_other && k == 1 && !state.attempts[0].returned;
        !waits && !state.attempts[k].returned
    }
}

impl<const N: usize> Model for AnyToken<N> {
    type State = State<N>;

    fn initial(&self) -> Vec<State<N>> {
        let attempt = Try { returned: false, confirmed: [false; N] };
        vec![State { nodes: [Node::NEW; N], attempts: [attempt; 2] }]
    }

    fn steps(&self, state: &State<N>, steps: &mut Steps<State<N>>) {
        for k in (0..2).filter(|&k| self.runs(state, k)) {
            for n in 0..N {
                self.serve(state, k, n, steps);
            }
            let confirmed = state.attempts[k].confirmed.iter().filter(|confirmed| **confirmed).count();
            if confirmed >= majority(N) {
                let mut next = *state;
                next.attempts[k].returned = true;
                steps.push(next, || format!("{} returns {}", name(k), self.tokens[k]));
            }
        }
        for n in 0..N {
            for counter in self.raised(state.nodes[n].counter) {
                let mut next = *state;
                next.nodes[n] = Node { counter, ..Node::NEW };
                steps.push(next, || format!("node {n} grants somebody else with {counter}"));
            }
        }
    }

    fn canonical(&self, mut state: State<N>) -> State<N> {
        for (k, attempt) in state.attempts.iter_mut().enumerate().filter(|(_, attempt)| attempt.returned) {
            // From here on it is one of the crowd.
            attempt.confirmed = [false; N];
            for node in state.nodes.iter_mut().filter(|node| node.key == k as Key) {
                node.key = NOBODY;
            }
        }
        sorted(&state)
    }

    fn violation(&self, before: &State<N>, after: &State<N>) -> Option<String> {
        if let Some(n) = (0..N).find(|&n| after.nodes[n].counter < before.nodes[n].counter) {
            return Some(format!("MONOTONE: the counter of node {n} falls"));
        }
        let both = after.attempts.iter().all(|attempt| attempt.returned);
        both.then(|| match self.one_after_the_other {
            true => "ORDER: a smaller token is returned after a larger one".to_owned(),
            false => "UNIQUE: both return the same token".to_owned(),
        })
    }

    fn sometimes(&self) -> &'static [&'static str] {
        &["an attempt returns", "the other has been confirmed then"]
    }

    fn sees(&self, state: &State<N>) -> u32 {
        let returned = state.attempts.iter().any(|attempt| attempt.returned);
        let confirmed = |attempt: &Try<N>| !attempt.returned && attempt.confirmed.contains(&true);
        u32::from(returned) | u32::from(returned && state.attempts.iter().any(confirmed)) << 1
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
