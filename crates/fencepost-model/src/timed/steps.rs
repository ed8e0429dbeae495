//! All that can happen next.

use super::node::Call;
use super::rules::{Flaw, Keep, Rules};
use super::state::{
    ATTEMPTS, Broken, Confirmation, Event, KEY_LOST, NODES, Phase, REMADE, Record, Reply, State, VOTES_AGAIN,
};
use crate::quorum::{Extended, Kept, NextStep};
use crate::search::{Model, Steps};

impl Model for Rules {
    type State = State;

    fn initial(&self) -> Vec<State> {
        let mut state = State::new();
        if self.flaw == Flaw::StaleReads {
            state.actors[..self.attempts].iter_mut().for_each(super::resync::ask);
        }
        vec![state]
    }

    fn steps(&self, state: &State, steps: &mut Steps<State>) {
        let state = State { event: Event::default(), ..state.clone() };
        if state.is_settled(self) {
            return;
        }
        let mut next = Next { rules: self, steps };
        next.time_passes(&state);
        for who in 0..self.attempts {
            next.client_acts(&state, who);
            match state.actors[who].phase {
                Phase::Asking => next.client_hears(&state, who),
                Phase::Held | Phase::Attaching | Phase::Lapsed => next.holder_hears(&state, who),
                _ => {}
            }
            for node in 0..NODES {
                next.request_arrives(&state, who, node);
            }
        }
        for node in 0..NODES {
            next.node_restarts(&state, node);
            next.node_saves(&state, node);
        }
    }

    fn canonical(&self, state: State) -> State {
        state.canonical(self)
    }

    fn violation(&self, _: &State, after: &State) -> Option<String> {
        let broken = after.event.broken?;
        let Broken { rule, token, other } = broken;
        Some(format!("{rule}: at t={} the lock with token {token} meets that with {other}", after.now))
    }

    fn sometimes(&self) -> &'static [&'static str] {
        const TWO_LOCKS: &str = "a second lock is returned";
        const CONFIRMED: &str = "a lock needs a second round";
        const KEY_LOST: &str = "a restart loses a key in use";
        const VOTES_AGAIN: &str = "a node votes at the end of its quarantine";
        const ADOPTED: &str = "an extension is adopted";
        const REMADE: &str = "an extension makes a key anew";
        const ATTACHED: &str = "a lock is attached after its validity";
        match (self.restarts, self.rounds) {
            (1.., 2..) if self.attach => {
                &[TWO_LOCKS, CONFIRMED, KEY_LOST, VOTES_AGAIN, ADOPTED, REMADE, ATTACHED]
            }
            (0, 0) => &[TWO_LOCKS, CONFIRMED],
            (0, _) => &[TWO_LOCKS, CONFIRMED, ADOPTED, REMADE],
            (_, 0) => &[TWO_LOCKS, CONFIRMED, KEY_LOST, VOTES_AGAIN],
            (_, _) => &[TWO_LOCKS, CONFIRMED, KEY_LOST, VOTES_AGAIN, ADOPTED, REMADE],
        }
    }

    fn sees(&self, state: &State) -> u32 {
        let seen = state.event.seen;
        if self.restarts == 0 { seen & 3 | seen >> 2 & 12 } else { seen }
    }
}

pub(super) fn name(who: usize) -> char {
    ['A', 'B', 'C'][who % ATTEMPTS]
}

struct Next<'a> {
    rules: &'a Rules,
    steps: &'a mut Steps<State>,
}

impl Next<'_> {
    fn push(&mut self, mut state: State, action: impl FnOnce() -> String) {
        state.forget(self.rules);
        self.steps.push(state, action);
    }

    fn keeps_all(&self) -> bool {
        self.rules.keep == Keep::Everything
    }

    /// Nothing is lost by starting at zero.
    fn time_passes(&mut self, state: &State) {
        if state.now == self.rules.end || state.actors[0].phase == Phase::Waiting {
            return;
        }
        let mut next = state.clone();
        next.now += 1;
        for node in &mut next.nodes {
            node.tick(next.now);
        }
        for who in 0..self.rules.attempts {
            next.lapse(self.rules, who);
        }
        let now = next.now;
        self.push(next, || format!("t={now}"));
    }

    fn client_acts(&mut self, state: &State, who: usize) {
        let rules = self.rules;
        let mut act = |may: bool, what: &str, act: &dyn Fn(&mut State)| {
            if may {
                let mut next = state.clone();
                act(&mut next);
                self.push(next, || format!("{} {what}", name(who)));
            }
        };
        let phase = state.actors[who].phase;
        act(state.may_start(rules, who), "asks all nodes", &|state| state.start(rules, who));
        let asks = matches!(phase, Phase::Asking | Phase::Reading | Phase::Raising);
        act(asks || phase == Phase::Attaching, "gives up", &|state| state.end(rules, who));
        act(state.is_taken_from(who), "lets go of the rest", &|state| state.let_go(who));
        act(phase == Phase::Held, "releases", &|state| state.end(rules, who));
        act(state.may_extend(rules, who), "sends an extension", &|state| state.extend(rules, who));
        act(state.may_extend(rules, who) && rules.attach, "detaches", &|state| state.detach(who));
        for of in 0..rules.attempts {
            let what = format!("takes over the lock of {}", name(of));
            act(state.may_attach(rules, who, of), &what, &|state| state.attach(rules, who, of));
        }
        act(state.may_raise(who), "has read a majority", &|state| state.raise(who));
        act(state.may_return(who), "returns", &|state| {
            let token = state.actors[who].token;
            state.hold(rules, who, token);
        });
    }

    /// The first grant that an attempt hears changes nothing that anybody else could see, and hearing it
    /// later is the same: so it is heard together with the second.
    fn client_hears(&mut self, state: &State, who: usize) {
        let attempt = &state.actors[who].attempt;
        let first = !self.keeps_all() && !self.rules.in_order && attempt.granted().is_empty();
        for node in 0..NODES {
            let link = state.actors[who].links[node];
            if link.reply != Reply::None {
                let mut next = state.clone();
                let step = next.hear_reply(self.rules, who, node);
                if first && step == NextStep::Wait {
                    self.client_hears_another(&next, who, node);
                } else {
                    self.push(next, || format!("{} hears {:?} of n{node}: {step:?}", name(who), link.reply));
                }
            }
            for (slot, confirmation) in link.confirms.iter().enumerate() {
                if matches!(confirmation, Confirmation::Yes(_) | Confirmation::No(_)) {
                    let mut next = state.clone();
                    let step = next.hear_confirmation(self.rules, who, node, slot);
                    self.push(next, || format!("{} hears {confirmation:?} of n{node}: {step:?}", name(who)));
                }
            }
        }
    }

    fn client_hears_another(&mut self, state: &State, who: usize, first: usize) {
        for node in first + 1..NODES {
            let reply = state.actors[who].links[node].reply;
            if reply != Reply::None {
                let mut next = state.clone();
                let step = next.hear_reply(self.rules, who, node);
                self.push(next, || {
                    format!("{} hears n{first} and {reply:?} of n{node}: {step:?}", name(who))
                });
            }
        }
    }

    /// As with grants, the first node that kept the lock is heard together with the second.
    fn holder_hears(&mut self, state: &State, who: usize) {
        for node in 0..NODES {
            let said = |state: &State, node: usize| state.actors[who].links[node].extended;
            if said(state, node) == Kept::Open {
                continue;
            }
            let mut next = state.clone();
            let extended = next.hear_extended(self.rules, who, node);
            if self.keeps_all() || extended != Extended::Wait {
                let kept = said(state, node);
                self.push(next, || format!("{} hears {kept:?} of n{node}: {extended:?}", name(who)));
                continue;
            }
            for other in (node + 1..NODES).filter(|&other| said(&next, other) != Kept::Open) {
                let mut next = next.clone();
                let extended = next.hear_extended(self.rules, who, other);
                self.push(next, || {
                    format!("{} hears that n{node} and n{other} kept it: {extended:?}", name(who))
                });
            }
        }
    }

    fn request_arrives(&mut self, state: &State, who: usize, node: usize) {
        let link = state.actors[who].links[node];
        if link.acquire > 0 {
            self.acquire_arrives(state, who, node);
        }
        for (slot, confirmation) in link.confirms.iter().enumerate() {
            if let Confirmation::Asked(token) = *confirmation {
                self.confirm_arrives(state, who, node, slot, token);
            }
        }
        if link.extends > 0 {
            self.extend_arrives(state, who, node);
        }
        if let (true, Some(from)) = (link.attach, state.actors[who].from) {
            self.attach_arrives(state, who, node, from);
        }
        if let (true, Some(from)) = (link.back, state.actors[who].from) {
            let mut next = state.clone();
            next.actors[who].links[node].back = false;
            next.nodes[node].put_back(self.rules.owner(who), from);
            self.push(next, || format!("n{node} is to put back what {} moved", name(who)));
        }
        if link.release {
            let mut next = state.clone();
            next.actors[who].links[node].release = false;
            next.nodes[node].release(self.rules.owner(who));
            self.push(next, || format!("n{node} gets the release of {}", name(who)));
        }
        let mut next = state.clone();
        if next.read(who, node) {
            let counter = next.nodes[node].live.counter;
            self.push(next, || format!("{} reads the counter of n{node}: {counter}", name(who)));
        }
    }

    fn call(&self, state: &State, who: usize, node: usize) -> Call<'_> {
        Call { rules: self.rules, now: state.now, node, attempt: who }
    }

    /// A client that does not hear of a denial can do all that one that does can, for it may give up at any
    /// time. So refusals are sent only where everything is.
    fn acquire_arrives(&mut self, state: &State, who: usize, node: usize) {
        let mut next = state.clone();
        let reply = next.nodes[node].acquire(self.call(state, who, node), state.actors[who].start);
        let granted = matches!(reply, Reply::Granted { .. });
        if !granted && !self.keeps_all() {
            return;
        }
        if granted && state.nodes[node].ready == state.now && state.now > 0 {
            next.event.seen |= VOTES_AGAIN;
        }
        let link = &mut next.actors[who].links[node];
        link.acquire -= 1;
        if link.reply != Reply::None {
            // Delivered twice: this reply may be faster than the other, or not.
            let action = || format!("n{node} gets the request of {} again: {reply:?}, not heard", name(who));
            let kept = next.clone();
            next.actors[who].links[node].reply = reply;
            self.push(kept, action);
        } else {
            link.reply = reply;
        }
        self.push(next, || format!("n{node} gets the request of {}: {reply:?}", name(who)));
    }

    fn confirm_arrives(&mut self, state: &State, who: usize, node: usize, slot: usize, token: u8) {
        let mut next = state.clone();
        let reply = next.nodes[node].confirm(self.call(state, who, node), token);
        next.actors[who].links[node].confirms[slot] = reply;
        if self.keeps_all() || matches!(reply, Confirmation::Yes(_)) {
            self.push(next, || format!("n{node} is to confirm {token} for {}: {reply:?}", name(who)));
        }
    }

    fn extend_arrives(&mut self, state: &State, who: usize, node: usize) {
        let mut next = state.clone();
        let actor = &mut next.actors[who];
        let kept = next.nodes[node].extend(self.call(state, who, node), actor.token, actor.limit);
        if kept != Kept::Yes && !self.keeps_all() {
            return;
        }
        if kept == Kept::Yes && state.nodes[node].live.owner.is_none() {
            next.event.seen |= REMADE;
        }
        let listens = matches!(actor.phase, Phase::Held | Phase::Lapsed) && !actor.extension.decided;
        let link = &mut actor.links[node];
        link.extends -= 1;
        if listens && link.extended == Kept::Open && actor.extension.nodes[node] == Kept::Open {
            link.extended = kept;
        }
        self.push(next, || format!("n{node} is to extend for {}: {kept:?}", name(who)));
    }

    fn attach_arrives(&mut self, state: &State, who: usize, node: usize, from: u8) {
        let mut next = state.clone();
        let actor = &mut next.actors[who];
        let moved = next.nodes[node].attach(self.call(state, who, node), from, actor.token);
        if moved.is_none() && !self.keeps_all() {
            return;
        }
        let link = &mut actor.links[node];
        link.attach = false;
        if actor.phase == Phase::Attaching && !actor.extension.decided {
            link.extended = moved.unwrap_or(Kept::No);
        }
        self.push(next, || format!("n{node} is to move it to {}: {moved:?}", name(who)));
    }

    fn node_restarts(&mut self, state: &State, node: usize) {
        let mut next = state.clone();
        let lost = &mut next.nodes[node];
        // Where nothing would be lost a restart only keeps the node from voting: it might as well be slow.
        if state.restarts == self.rules.restarts || lost.live == lost.saved {
            return;
        }
        if lost.live.owner.is_some() {
            next.event.seen |= KEY_LOST;
        }
        lost.restart(state.now, self.rules);
        let found = lost.live;
        next.restarts += 1;
        self.push(next, || match found == Record::default() {
            true => format!("n{node} restarts empty"),
            false => format!("n{node} restarts with {found:?}"),
        });
    }

    fn node_saves(&mut self, state: &State, node: usize) {
        let mut next = state.clone();
        let saver = &mut next.nodes[node];
        if state.snapshots < self.rules.snapshots && saver.saved != saver.live {
            saver.saved = saver.live;
            next.snapshots += 1;
            self.push(next, || format!("n{node} saves what it has"));
        }
    }
}
