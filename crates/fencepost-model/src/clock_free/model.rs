//! All that can happen, and what must hold.

use super::client::{Client, Rule, small};
use super::node::{ANY_REVOCATION, GONE, Key, NOBODY, Node};
use super::reduce;
use super::state::{Phase, State, Try, Values, Wire, name};
use crate::quorum::{AttemptReply, Confirm, NextStep, NodeSet, VoteState, majority, tokens};
use crate::search::{Model, Steps};

/// What is searched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockFree<const N: usize, const K: usize> {
    pub(crate) rule: Rule,
    /// Everything is a step of its own (see `reduce`).
    pub(crate) in_full: bool,
    /// So many of the attempts are revocations.
    pub(crate) revocations: usize,
    /// Ask one node first.
    pub(crate) in_order: bool,
    /// What a client may propose as a counter.
    pub(crate) proposals: &'static [u8],
    /// How often the request for a lock can come again. One to confirm can come twice if this is not zero.
    pub(crate) redeliveries: u8,
    /// A returned lock may be extended, and attached to, on any node at any time.
    pub(crate) extends: bool,
    /// If not zero: besides, any number of others may do to a node whatever attempts can do, and counters end
    /// here. Only where the search is not in full. What breaks is broken between two attempts, so two in a
    /// crowd stand for any number.
    pub(crate) crowd: u8,
    /// So many nodes may restart empty.
    pub(crate) restarts: u8,
    pub(crate) scripts: Scripts,
}

/// What the scripts of a mutant do otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scripts {
    Production,
    /// A confirmation is not refused where the counter has passed the token.
    ConfirmWithoutCounter,
    /// A confirmation is not refused where the key is somebody else's.
    ConfirmWithoutKey,
    /// Who gives up takes its step of the counter back.
    DecrementOnFailure,
    /// All revocations write the same value into the key.
    RevocationsAreAlike,
}

impl<const N: usize, const K: usize> ClockFree<N, K> {
    /// The protocol as it is, with nothing but attempts.
    pub(crate) const PLAIN: Self = Self {
        rule: Rule::Production,
        in_full: false,
        revocations: 0,
        in_order: false,
        proposals: &[0],
        redeliveries: 0,
        extends: false,
        crowd: 0,
        restarts: 0,
        scripts: Scripts::Production,
    };

    fn key(&self, state: &State<N, K>, attempt: usize) -> Key {
        match self.scripts {
            Scripts::RevocationsAreAlike if state.attempts[attempt].revokes.is_some() => ANY_REVOCATION,
            _ => attempt as Key,
        }
    }

    /// Whether a key that an attempt has on a node in a state is from one grant, and was not lost in between.
    fn keeps_keys(&self) -> bool {
        let production = self.rule == Rule::Production && self.scripts == Scripts::Production;
        production && self.in_full && !self.extends && self.redeliveries == 0 && self.restarts == 0
    }

    /// Whether hearing a grant can still change anything for the attempt.
    fn hears_grant(&self, attempt: &Try<N>, node: usize) -> bool {
        let again = matches!(self.rule, Rule::Mutant(rule) if rule.hears_again());
        attempt.phase == Phase::Running && (again || attempt.client.seat(node) == VoteState::Asked)
    }
}

type Sink<'a, const N: usize, const K: usize> = &'a mut Steps<State<N, K>>;

impl<const N: usize, const K: usize> Model for ClockFree<N, K> {
    type State = State<N, K>;

    fn initial(&self) -> Vec<State<N, K>> {
        let attempts = std::array::from_fn(|k| Try::idle(k < self.revocations));
        vec![State { nodes: [Node::NEW; N], attempts, returned: Values::NONE, restarts: self.restarts }]
    }

    fn steps(&self, state: &State<N, K>, steps: Sink<'_, N, K>) {
        for k in 0..K {
            match state.attempts[k].phase {
                Phase::Idle => self.invoke(state, k, steps),
                phase => {
                    for n in 0..N {
                        self.deliver_acquire(state, k, n, "", steps);
                        self.deliver_holds(state, k, n, steps);
                        self.roll_back(state, k, n, steps);
                        if phase == Phase::Running {
                            self.hear(state, k, n, steps);
                        }
                    }
                    if phase == Phase::Running
                        && (self.in_full || self.scripts == Scripts::DecrementOnFailure)
                    {
                        self.give_up(state, k, steps);
                    }
                }
            }
        }
        for n in 0..N {
            self.disturb(state, n, steps);
            if self.extends {
                self.extend(state, n, steps);
            }
        }
    }

    fn canonical(&self, state: State<N, K>) -> State<N, K> {
        reduce::canonical(self, state)
    }

    fn violation(&self, before: &State<N, K>, after: &State<N, K>) -> Option<String> {
        let falls = |n: usize| after.nodes[n].counter < before.nodes[n].counter;
        if self.restarts == 0
            && self.scripts != Scripts::DecrementOnFailure
            && let Some(n) = (0..N).find(|&n| falls(n))
        {
            return Some(format!("MONOTONE: the counter of node {n} falls"));
        }
        if self.keeps_keys()
            && let Some(odd) = (0..K).find_map(|k| self.mistaken(after, k))
        {
            return Some(odd);
        }
        let won =
            |k: &usize| before.attempts[*k].phase != Phase::Won && after.attempts[*k].phase == Phase::Won;
        let winner = (0..K).find(won)?;
        let (client, floor) = (after.attempts[winner].client, after.attempts[winner].floor);
        let (name, token) = (name(winner), client.token);
        if before.returned.has(token) {
            Some(format!("UNIQUE: {name} returns token {token}, which was returned before"))
        } else if token <= floor {
            Some(format!("ORDER: {name} returns token {token}, but {floor} was returned before it began"))
        } else {
            None
        }
    }

    fn sometimes(&self) -> &'static [&'static str] {
        match (self.redeliveries, self.in_full, N, K) {
            (0, false, 3, 2) => &SOMETIMES[..3],
            (0, ..) => &SOMETIMES[..4],
            _ => &SOMETIMES,
        }
    }

    fn sees(&self, state: &State<N, K>) -> u32 {
        let mut seen =
            u32::from(state.returned.len() >= 2) | u32::from(state.returned.len() == K as u32) << 1;
        for attempt in &state.attempts {
            let token = attempt.client.token;
            let (mut late, mut again) = (false, false);
            for (n, wire) in attempt.wires.iter().enumerate() {
                let seat = attempt.client.seat(n);
                let confirmed = matches!(seat, VoteState::Granted { confirm: Confirm::Yes, .. });
                seen |= u32::from(attempt.phase == Phase::Won && confirmed) << 2;
                late |= wire.holds.iter().any(|hold| hold < token);
                again |= wire.grants.len() > 1;
            }
            seen |= u32::from(late) << 3 | u32::from(again) << 4;
        }
        seen
    }
}

const SOMETIMES: [&str; 5] = [
    "two locks are returned",
    "all attempts return a lock",
    "a token is confirmed in a second round",
    "the token rises while a smaller one can still be confirmed",
    "a node grants twice",
];

impl<const N: usize, const K: usize> ClockFree<N, K> {
    /// Whether a majority that has the key of a returned lock says another token than its own, or one that
    /// could be another when all nodes have it. A node that granted less than the token, and was not reached
    /// since, can mislead those who do not see all nodes.
    fn mistaken(&self, state: &State<N, K>, k: usize) -> Option<String> {
        let attempt = &state.attempts[k];
        if attempt.phase != Phase::Won {
            return None;
        }
        let (who, token) = (self.key(state, k), u64::from(attempt.client.token));
        for seen in 0..1_usize << N {
            let seen = (0..N).filter(|n| seen >> n & 1 == 1 && state.nodes[*n].key == who);
            let counters: Vec<u64> = seen.map(|n| state.nodes[n].counter.into()).collect();
            if counters.len() < majority(N) {
                continue;
            }
            let tokens = tokens(N, &counters);
            let sure = counters.len() == N || counters.iter().all(|counter| *counter >= token);
            if !tokens.contains(&token)
                || sure && tokens[0] != token
                || counters.len() == N && tokens.len() > 1
            {
                return Some(format!("TOKEN: {} has {token}; nodes at {counters:?} say {tokens:?}", name(k)));
            }
        }
        None
    }

    /// Attempt `k` begins, if it is the first of its kind that has not: the others are no different.
    fn invoke(&self, state: &State<N, K>, k: usize, steps: Sink<'_, N, K>) {
        let alike =
            |other: &&Try<N>| other.phase == Phase::Idle && other.revokes == state.attempts[k].revokes;
        if state.attempts[..k].iter().any(|other| alike(&other)) {
            return;
        }
        let victims = (0..K).filter(|&v| v != k).map(|v| self.key(state, v)).chain([GONE]);
        let revokes: Vec<Option<Key>> = match state.attempts[k].revokes {
            Some(_) if self.in_full => victims.map(Some).collect(),
            other => vec![other],
        };
        for (&proposal, revokes) in self.proposals.iter().flat_map(|p| revokes.iter().map(move |r| (p, *r))) {
            let (client, asked) = match self.in_order {
                true => Client::in_order(0),
                false => Client::at_once(),
            };
            let mut begun = *state;
            let floor = state.returned.largest();
            begun.attempts[k] =
                Try { phase: Phase::Running, revokes, proposal, floor, client, ..state.attempts[k] };
            self.ask(&mut begun.attempts[k], asked);
            if self.in_full {
                steps.push(begun, || format!("{} begins, proposes {proposal}, revokes {revokes:?}", name(k)));
            } else {
                for n in 0..N {
                    self.deliver_acquire(&begun, k, n, "begins: ", steps);
                }
            }
        }
    }

    fn ask(&self, attempt: &mut Try<N>, nodes: NodeSet) {
        for n in nodes.iter() {
            attempt.wires[n].acquires = 1 + self.redeliveries;
        }
    }

    /// The request for the lock reaches the node.
    fn deliver_acquire(&self, state: &State<N, K>, k: usize, n: usize, begins: &str, steps: Sink<'_, N, K>) {
        let attempt = &state.attempts[k];
        let over = self.crowd != 0 && state.nodes[n].counter == self.crowd;
        if attempt.wires[n].acquires == 0 || over {
            return;
        }
        let who = self.key(state, k);
        let mut next = *state;
        next.attempts[k].wires[n].acquires -= 1;
        if self.in_full {
            let answer = match attempt.revokes {
                Some(victim) => {
                    let key = state.nodes[n].key;
                    let earlier = state.attempts.get(usize::from(key)).and_then(|other| other.revokes);
                    next.nodes[n].revoke(who, key == victim || earlier == Some(victim), attempt.proposal)
                }
                None => next.nodes[n].acquire(who, attempt.proposal),
            };
            let wire = &mut next.attempts[k].wires[n];
            match answer {
                Some(value) => wire.grants = wire.grants.with(value),
                None => wire.denial = true,
            }
            return steps.push(next, || format!("node {n} answers {} with {answer:?}", name(k)));
        }
        let hears = self.hears_grant(attempt, n);
        if state.nodes[n].key == who && hears {
            let value = state.nodes[n].counter;
            let mut again = next;
            again.attempts[k].wires[n].grants = attempt.wires[n].grants.with(value);
            steps.push(again, || format!("{begins}node {n} tells {} again: yours, {value}", name(k)));
        }
        next.nodes[n].key = NOBODY;
        if let Some(value) = next.nodes[n].acquire(who, attempt.proposal) {
            let wire = &mut next.attempts[k].wires[n];
            if hears {
                wire.grants = wire.grants.with(value);
            }
            steps
                .push(next, || format!("{begins}{}node {n} grants {} with {value}", lost(state, n), name(k)));
        }
    }

    /// A request to confirm reaches the node.
    fn deliver_holds(&self, state: &State<N, K>, k: usize, n: usize, steps: Sink<'_, N, K>) {
        let who = self.key(state, k);
        for token in state.attempts[k].wires[n].holds.iter() {
            let mut next = *state;
            let node = &mut next.nodes[n];
            let confirmed = match self.scripts {
                Scripts::ConfirmWithoutKey => {
                    node.counter = node.counter.max(token);
                    true
                }
                Scripts::ConfirmWithoutCounter if node.key == who && node.counter > token => true,
                _ => node.confirm(who, token),
            };
            if !confirmed && !self.in_full {
                continue;
            }
            let wire = &mut next.attempts[k].wires[n];
            if wire.twice.has(token) {
                wire.twice = wire.twice.without(token);
            } else {
                wire.holds = wire.holds.without(token);
            }
            let answers = if confirmed { &mut wire.acks } else { &mut wire.nacks };
            *answers = answers.with(token);
            let said = if confirmed { "confirms" } else { "refuses" };
            steps.push(next, || format!("node {n} {said} {token} to {}", name(k)));
        }
    }

    /// An answer of the node reaches the client, or it waits no longer for it.
    fn hear(&self, state: &State<N, K>, k: usize, n: usize, steps: Sink<'_, N, K>) {
        let attempt = &state.attempts[k];
        let wire = &attempt.wires[n];
        let mut hear = |answer: AttemptReply, forget: &dyn Fn(&mut Try<N>)| {
            let mut next = *state;
            forget(&mut next.attempts[k]);
            let step = next.attempts[k].client.hear(self.rule, n, answer);
            self.take(&mut next, k, step);
            steps.push(next, || format!("{} hears {answer:?} from node {n}: {step:?}", name(k)));
        };
        for value in wire.grants.iter() {
            hear(AttemptReply::Granted(value.into()), &|attempt| {
                attempt.wires[n].grants = attempt.wires[n].grants.without(value);
            });
        }
        for token in wire.acks.iter() {
            hear(AttemptReply::Confirmed(token.into()), &|attempt| {
                attempt.wires[n].acks = attempt.wires[n].acks.without(token);
            });
        }
        for token in wire.nacks.iter() {
            hear(AttemptReply::Refused(token.into()), &|attempt| {
                attempt.wires[n].nacks = attempt.wires[n].nacks.without(token);
            });
        }
        if wire.denial {
            hear(AttemptReply::Denied, &|attempt| attempt.wires[n].denial = false);
        }
        let waits = matches!(
            attempt.client.seat(n),
            VoteState::Asked | VoteState::Granted { confirm: Confirm::Asked, .. }
        );
        if self.in_full && waits {
            hear(AttemptReply::Silent, &|_| ());
        }
    }

    /// Does what the client says.
    fn take(&self, state: &mut State<N, K>, k: usize, step: NextStep) {
        let attempt = &mut state.attempts[k];
        match step {
            NextStep::Wait => {}
            NextStep::Ask(nodes) => self.ask(attempt, nodes),
            NextStep::Confirm { token, nodes } => {
                for n in nodes.iter() {
                    let wire = &mut attempt.wires[n];
                    wire.holds = wire.holds.with(small(token));
                    if self.in_full && self.redeliveries > 0 {
                        wire.twice = wire.twice.with(small(token));
                    }
                }
            }
            NextStep::Won { token } => {
                attempt.phase = Phase::Won;
                state.returned = state.returned.with(small(token));
            }
            NextStep::Failed => {
                attempt.phase = Phase::Failed;
                if self.scripts == Scripts::DecrementOnFailure {
                    // What was under way is lost, which is enough to break it.
                    attempt.wires =
                        attempt.wires.map(|wire| Wire { rollback: wire.acquires == 0, ..Wire::default() });
                }
            }
        }
    }

    fn give_up(&self, state: &State<N, K>, k: usize, steps: Sink<'_, N, K>) {
        let mut next = *state;
        let step = next.attempts[k].client.give_up();
        self.take(&mut next, k, step);
        steps.push(next, || format!("{} gives up", name(k)));
    }

    /// What a client that gave up sends where it was granted: give the key back, and the step of the counter.
    fn roll_back(&self, state: &State<N, K>, k: usize, n: usize, steps: Sink<'_, N, K>) {
        let wire = &state.attempts[k].wires[n];
        if wire.rollback {
            let mut next = *state;
            let node = &mut next.nodes[n];
            next.attempts[k].wires[n].rollback = false;
            if node.key == k as Key {
                node.key = NOBODY;
            }
            node.counter = node.counter.saturating_sub(1);
            steps.push(next, || format!("node {n} takes the step of {} back", name(k)));
        }
    }

    /// What no attempt does: keys vanish, strays come in, nodes restart empty.
    fn disturb(&self, state: &State<N, K>, n: usize, steps: Sink<'_, N, K>) {
        let node = state.nodes[n];
        if self.in_full && node.key != NOBODY {
            let mut next = *state;
            next.nodes[n].key = NOBODY;
            steps.push(next, || format!("{}.", lost(state, n)));
        }
        if node.strays > 0 {
            let mut next = *state;
            next.nodes[n] = Node { counter: node.counter + 1, key: NOBODY, strays: node.strays - 1 };
            steps.push(next, || format!("{}node {n} grants whom nobody waits for", lost(state, n)));
        }
        for counter in node.counter + 1..=self.crowd {
            let mut next = *state;
            next.nodes[n] = Node { counter, key: NOBODY, ..node };
            steps.push(next, || format!("{}node {n} grants somebody else with {counter}", lost(state, n)));
        }
        if state.restarts > 0 && node.counter > 0 {
            let mut next = *state;
            next.restarts -= 1;
            next.nodes[n] = Node { strays: node.strays, ..Node::NEW };
            steps.push(next, || format!("node {n} restarts empty"));
        }
    }

    fn extend(&self, state: &State<N, K>, n: usize, steps: Sink<'_, N, K>) {
        if !self.in_full {
            for token in state.returned.iter().filter(|token| *token > state.nodes[n].counter) {
                let mut next = *state;
                next.nodes[n].key = NOBODY;
                next.nodes[n].counter = token;
                steps.push(next, || format!("{}node {n} extends the lock with {token}", lost(state, n)));
            }
            return;
        }
        for k in (0..K).filter(|&k| state.attempts[k].phase == Phase::Won) {
            let (who, token) = (self.key(state, k), state.attempts[k].client.token);
            let (mut extended, mut attached) = (*state, *state);
            extended.nodes[n].extend(who, token);
            steps.push(extended, || format!("node {n} extends the lock of {}", name(k)));
            attached.nodes[n].attach(who, token);
            steps.push(attached, || format!("node {n} lets {} attach", name(k)));
        }
    }
}

fn lost<const N: usize, const K: usize>(state: &State<N, K>, n: usize) -> String {
    match state.nodes[n].key {
        NOBODY => String::new(),
        ANY_REVOCATION => format!("the revoked key on node {n} vanishes; "),
        key => format!("the key of {} on node {n} vanishes; ", name(key.into())),
    }
}
