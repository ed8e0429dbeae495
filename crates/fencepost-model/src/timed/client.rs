//! What a client does: it sends, and feeds what it hears to `quorum.rs`.

use super::resync;
use super::rules::{Flaw, Judge, Rules};
use super::state::{
    ADOPTED, ATTACHED, ATTEMPTS, Broken, CONFIRMED, Confirmation, NODES, Phase, Reply, State, TWO_LOCKS,
    no_extension,
};
use crate::quorum::{
    Attempt, AttemptReply, Confirm, Extended, Extension, Kept, NextStep, NodeSet, VoteState, majority,
};

impl State {
    pub(super) fn may_start(&self, rules: &Rules, who: usize) -> bool {
        let before = &self.actors[..who];
        self.actors[who].phase == Phase::Waiting
            && self.now < rules.end
            // Attempts are numbered in the order in which they start.
            && before.iter().all(|actor| actor.phase != Phase::Waiting)
            && before
                .iter()
                .zip(rules.client)
                .all(|(actor, client)| client != rules.client[who] || actor.phase == Phase::Over)
    }

    pub(super) fn start(&mut self, rules: &Rules, who: usize) {
        let until = self.now + rules.ttl;
        let (attempt, asked) = match rules.in_order {
            false => Attempt::at_once([VoteState::Idle; NODES], until),
            true => Attempt::in_order([VoteState::Idle; NODES], 0, until),
        };
        let actor = &mut self.actors[who];
        (actor.phase, actor.start, actor.attempt) = (Phase::Asking, self.now, attempt);
        self.ask(rules, who, asked);
    }

    fn ask(&mut self, rules: &Rules, who: usize, nodes: NodeSet) {
        for node in nodes.iter() {
            self.actors[who].links[node].acquire = rules.copies;
        }
    }

    /// The attempt ends without a lock, or the lock is given back, or what was moved is put back.
    pub(super) fn end(&mut self, rules: &Rules, who: usize) {
        let actor = &mut self.actors[who];
        if actor.phase == Phase::Attaching && rules.flaw != Flaw::FreesWhatItMoved {
            actor.phase = Phase::Over;
            actor.links.iter_mut().for_each(|link| link.back = true);
            return;
        }
        let all = matches!(actor.phase, Phase::Held | Phase::Attaching);
        let asked = if all { NodeSet::all(NODES) } else { actor.attempt.asked() };
        actor.attempt.give_up();
        actor.phase = Phase::Over;
        for node in asked.iter() {
            actor.links[node].release = true;
        }
    }

    /// The attempt hears the reply of a node to its request to acquire.
    pub(super) fn hear_reply(&mut self, rules: &Rules, who: usize, node: usize) -> NextStep {
        let reply = std::mem::take(&mut self.actors[who].links[node].reply);
        let answer = match reply {
            Reply::Granted { value, .. } => AttemptReply::Granted(value.into()),
            Reply::Denied => AttemptReply::Denied,
            Reply::Silent => AttemptReply::Silent,
            Reply::None => return NextStep::Wait,
        };
        self.actors[who].links[node].doubtful = matches!(reply, Reply::Granted { amnesiac: true, .. });
        self.hear(rules, who, node, answer)
    }

    /// The attempt hears the reply of a node to a request to confirm.
    pub(super) fn hear_confirmation(
        &mut self,
        rules: &Rules,
        who: usize,
        node: usize,
        slot: usize,
    ) -> NextStep {
        let confirmation = std::mem::take(&mut self.actors[who].links[node].confirms[slot]);
        let answer = match confirmation {
            Confirmation::Yes(token) => AttemptReply::Confirmed(token.into()),
            Confirmation::No(token) => AttemptReply::Refused(token.into()),
            Confirmation::None | Confirmation::Asked(_) => return NextStep::Wait,
        };
        self.hear(rules, who, node, answer)
    }

    fn hear(&mut self, rules: &Rules, who: usize, node: usize, answer: AttemptReply) -> NextStep {
        let step = self.actors[who].attempt.on_reply(node, answer, self.now);
        match step {
            NextStep::Wait => {}
            NextStep::Ask(nodes) => self.ask(rules, who, nodes),
            NextStep::Confirm { .. } | NextStep::Won { .. } if resync::is_needed(&self.actors[who]) => {
                resync::begin(rules, &mut self.actors[who]);
            }
            NextStep::Confirm { token, nodes } => {
                for node in nodes.iter() {
                    self.actors[who].links[node].ask_to_confirm(token as u8);
                }
            }
            NextStep::Won { token } => {
                let twice = self.actors[who].attempt.votes.iter();
                if twice.clone().any(|seat| matches!(seat, VoteState::Granted { confirm: Confirm::Yes, .. }))
                {
                    self.event.seen |= CONFIRMED;
                }
                self.hold(rules, who, token as u8);
            }
            NextStep::Failed => self.end(rules, who),
        }
        step
    }

    /// The lock is returned to whoever asked for it.
    pub(super) fn hold(&mut self, rules: &Rules, who: usize, token: u8) {
        let until = match rules.flaw {
            Flaw::ValidFromTheEnd => self.now + rules.ttl,
            _ => self.actors[who].attempt.until,
        };
        let actor = &mut self.actors[who];
        (actor.phase, actor.token, actor.until) = (Phase::Held, token, until);
        if self.highest > 0 {
            self.event.seen |= TWO_LOCKS;
        }
        let passed = token <= self.highest;
        self.event.broken = self.judge(rules, who, passed.then_some("FENCE"));
        self.highest = self.highest.max(token);
    }

    pub(super) fn may_extend(&self, rules: &Rules, who: usize) -> bool {
        let actor = &self.actors[who];
        actor.phase == Phase::Held && actor.rounds < rules.rounds
    }

    /// Sends a round of extension. An earlier one is given up, but its requests may still arrive.
    pub(super) fn extend(&mut self, rules: &Rules, who: usize) {
        let late = rules.flaw == Flaw::LateAdoption;
        let actor = &mut self.actors[who];
        let until = if late { u8::MAX } else { actor.until };
        actor.extension = Extension::new([Kept::Open; NODES], until);
        actor.limit = if rules.extend_within { actor.until } else { u8::MAX };
        actor.sent = self.now;
        actor.rounds += 1;
        for link in &mut actor.links {
            link.extends += 1;
            link.extended = Kept::Open;
        }
    }

    /// Leaves the lock to whoever has got the handle.
    pub(super) fn detach(&mut self, who: usize) {
        let actor = &mut self.actors[who];
        (actor.phase, actor.extension) = (Phase::Detached, no_extension());
        actor.rounds += 1;
        actor.links.iter_mut().for_each(|link| link.extended = Kept::Open);
    }

    pub(super) fn may_attach(&self, rules: &Rules, who: usize, of: usize) -> bool {
        rules.attach && self.may_start(rules, who) && self.actors[of].phase == Phase::Detached
    }

    /// Whoever has got a handle moves the lock, node by node. How long it was valid nobody knows any more.
    pub(super) fn attach(&mut self, rules: &Rules, who: usize, of: usize) {
        let token = self.actors[of].token;
        let actor = &mut self.actors[who];
        (actor.phase, actor.from, actor.token) = (Phase::Attaching, Some(of as u8), token);
        actor.extension = Extension::new([Kept::Open; NODES], self.now + rules.ttl);
        actor.sent = self.now;
        actor.links.iter_mut().for_each(|link| link.attach = true);
    }

    /// Whether somebody else has a majority of what `who` wants to take over.
    pub(super) fn is_taken_from(&self, who: usize) -> bool {
        let has = |other: usize| self.nodes.iter().filter(|node| node.live.is_of(other)).count();
        let (attaching, from) = (self.actors[who].phase == Phase::Attaching, self.actors[who].from);
        let other = |other: &usize| *other != who && Some(*other as u8) != from;
        attaching && (0..ATTEMPTS).filter(other).any(|other| has(other) >= majority(NODES))
    }

    /// Lets go of what was moved, because somebody else has a majority.
    pub(super) fn let_go(&mut self, who: usize) {
        self.actors[who].phase = Phase::Over;
        self.actors[who].links.iter_mut().for_each(|link| link.release = true);
    }

    /// The lock's holder hears the reply of a node to a request to extend.
    pub(super) fn hear_extended(&mut self, rules: &Rules, who: usize, node: usize) -> Extended {
        let actor = &mut self.actors[who];
        let kept = std::mem::take(&mut actor.links[node].extended);
        let extended = actor.extension.on_reply(node, kept, self.now);
        match extended {
            Extended::Lost => self.end(rules, who),
            Extended::Failed if actor.phase == Phase::Attaching => self.end(rules, who),
            Extended::Wait | Extended::Failed => {}
            Extended::Yes => self.adopt(rules, who),
        }
        extended
    }

    fn adopt(&mut self, rules: &Rules, who: usize) {
        let ended = |of: u8| self.actors[usize::from(of)].until <= self.actors[who].sent;
        let attached = self.actors[who].phase == Phase::Attaching && self.actors[who].from.is_some_and(ended);
        let actor = &mut self.actors[who];
        actor.until = actor.until.max(actor.sent + rules.ttl);
        if self.now >= actor.until {
            return;
        }
        let taken_from = actor.from.filter(|_| actor.phase == Phase::Attaching);
        actor.phase = Phase::Held;
        actor.links.iter_mut().for_each(|link| link.extended = Kept::Open);
        if let Some(of) = taken_from {
            self.actors[usize::from(of)].until = 0;
        }
        let actor = &self.actors[who];
        self.event.seen |= if attached { ATTACHED } else { ADOPTED };
        let passed = actor.token < self.highest;
        self.event.broken = self.judge(rules, who, passed.then_some("CONTINUITY"));
    }

    /// What is wrong with `who` having a valid lock now: that somebody else has one, or `order`.
    fn judge(&self, rules: &Rules, who: usize, order: Option<&'static str>) -> Option<Broken> {
        let token = self.actors[who].token;
        // Whoever has a handle works on the strength of its lease, until somebody takes the lock over.
        let valid = |other: &usize| {
            let actor = &self.actors[*other];
            let holds = match actor.phase {
                Phase::Held => true,
                Phase::Detached => actor.token != token,
                _ => false,
            };
            *other != who && holds && self.now < actor.until
        };
        let other = (0..rules.attempts).find(valid);
        let clash = other.map(|other| Broken { rule: "MUTEX", token, other: self.actors[other].token });
        let order = order.map(|rule| Broken { rule, token, other: self.highest });
        match rules.judge {
            Judge::All => clash.or(order),
            Judge::Exclusion => clash,
            Judge::Order => order,
        }
    }

    /// Time passes for the client: its lock may not be valid any more.
    pub(super) fn lapse(&mut self, rules: &Rules, who: usize) {
        let actor = &mut self.actors[who];
        let over = actor.phase == Phase::Held && actor.until <= self.now;
        let too_late = actor.phase == Phase::Lapsed && actor.sent + rules.ttl <= self.now;
        if over && rules.flaw == Flaw::LateAdoption && !actor.extension.decided {
            actor.phase = Phase::Lapsed;
        } else if over || too_late {
            actor.phase = Phase::Over;
            actor.extension = no_extension();
        }
    }
}
