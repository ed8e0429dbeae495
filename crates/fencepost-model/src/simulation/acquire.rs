//! Acquiring, waiting and revoking: the shell around `Attempt` and `AttemptBackoff`.

use std::rc::Rc;
use std::time::Duration;

use crate::node::{Mode, Refusal, Verdict, Vote};
use crate::quorum::{Attempt, AttemptReply, MAX_NODES, NextStep, NodeSet, VoteState};
use crate::retry::{AskOrder, AttemptBackoff, Obstacle, obstacle};

use super::client::{Doing, Trial, Wait, channel};
use super::message::{Ask, Reply, Request, Tag};
use super::sights::Sight;
use super::world::{Timer, WINS, World, note};

impl World {
    /// What a client does next that does nothing.
    pub(super) fn begin_something(&mut self, client: usize) {
        let quiet = self.plan.is_quiet();
        let Self { clients, random, plan, .. } = self;
        let state = &clients[client];
        if !matches!(state.doing, Doing::Nothing) || state.stopping || quiet && state.wins >= WINS {
            return;
        }
        let lock = random.index(plan.locks);
        if random.chance(plan.revocations)
            && let Some(victim) = state.met[lock].clone().filter(|victim| !victim.starts_with('!'))
        {
            return self.revoke(client, lock, victim);
        }
        let patience = random.within(plan.ttl / 2..4 * plan.ttl) + if quiet { 10_000_000 } else { 0 };
        let id = self.id();
        let entry: Rc<str> = format!("{} {id}", channel(client)).into();
        let deadline = self.local(client) + patience;
        let wait = Wait {
            id,
            lock,
            deadline,
            backoff: AttemptBackoff::default(),
            value: entry.clone(),
            entry,
            trial: None,
            hinted: false,
        };
        note!(self, "client {client} wants lock {lock}");
        self.clients[client].doing = Doing::Waiting(Box::new(wait));
        self.alarm(client, patience, Timer::Deadline(id));
        self.retry(client, id);
    }

    /// Tries once more, if it waits and no attempt is under way.
    pub(super) fn retry(&mut self, client: usize, id: u64) {
        let trial = self.id();
        let Doing::Waiting(wait) = &mut self.clients[client].doing else { return };
        if wait.id != id || wait.trial.is_some() {
            return;
        }
        wait.hinted = false;
        let fresh = if self.rules.fresh_owner { trial } else { 0 };
        wait.value = format!("{} owner {fresh}", channel(client)).into();
        let (lock, value, entry) = (wait.lock, wait.value.clone(), wait.entry.clone());
        let order = wait.backoff.order();
        let (trial, nodes) = self.new_trial(client, trial, lock, value, order);
        let id = trial.id;
        let Doing::Waiting(wait) = &mut self.clients[client].doing else { return };
        wait.trial = Some(Trial { entry: Some(entry), ..trial });
        if order == AskOrder::InOrder {
            self.see(Sight::InOrder);
        }
        self.start(client, id, nodes);
    }

    fn revoke(&mut self, client: usize, lock: usize, victim: Rc<str>) {
        let id = self.id();
        // With an id of its own: the same reason twice must not be the same revocation.
        let value = format!("!{victim}\nrevoked by {client} {id}").into();
        let (trial, nodes) = self.new_trial(client, id, lock, value, AskOrder::AtOnce);
        note!(self, "client {client} revokes lock {lock} of {victim:?}");
        self.clients[client].doing = Doing::Revoking(Box::new(Trial { victim: Some(victim), ..trial }));
        self.start(client, id, nodes);
    }

    fn new_trial(
        &mut self,
        client: usize,
        id: u64,
        lock: usize,
        value: Rc<str>,
        order: AskOrder,
    ) -> (Trial, NodeSet) {
        let now = self.local(client);
        let until = now + self.plan.ttl - self.plan.drift();
        let votes = vec![VoteState::Idle; self.plan.nodes];
        let (attempt, nodes) = match order {
            AskOrder::AtOnce => Attempt::at_once(votes, until),
            AskOrder::InOrder => Attempt::in_order(votes, lock % self.plan.nodes, until),
        };
        let trial = Trial {
            id,
            lock,
            value,
            victim: None,
            entry: None,
            attempt,
            since: now,
            proposal: None,
            floor: self.promises.floor(lock),
            denials: Vec::new(),
            greeted: NodeSet::default(),
            late: NodeSet::default(),
            over: [0; MAX_NODES],
        };
        (trial, nodes)
    }

    fn start(&mut self, client: usize, trial: u64, nodes: NodeSet) {
        self.alarm(client, self.plan.patience, Timer::GiveUp(trial));
        for node in nodes.iter() {
            self.intend(client, node, Tag::Ask(trial));
        }
    }

    /// Asks a node for the lock, or greets it first if it did not vote when it was last met.
    pub(super) fn ask(&mut self, client: usize, node: usize, id: u64) {
        let (now, wall) = (self.local(client), self.now.saturating_add_signed(super::clock::START));
        let patience = self.plan.patience;
        let state = &mut self.clients[client];
        let (votes, key) = (state.links[node].votes, state.links[node].key.clone());
        let connection = state.links[node].connection;
        let clock = state.links[node].node_clock(now);
        let Some(lock) = state.trial(id).map(|trial| trial.lock) else { return };
        let proposal = state.proposal(lock, now, wall);
        let Some(trial) = state.trial(id) else { return };
        let Some(clock) = clock.filter(|_| votes) else { return self.greet_again(client, node, id) };
        let proposal = *trial.proposal.get_or_insert(proposal);
        trial.over[node] = connection;
        let ask = Ask { value: trial.value.clone(), proposal, node: key, not_after: clock + patience };
        let request = match &trial.victim {
            None => Request::Acquire { lock, ask, entry: trial.entry.clone() },
            Some(victim) => Request::Revoke { lock, ask, victim: victim.clone() },
        };
        self.send(client, node, Tag::Ask(id), request);
    }

    fn greet_again(&mut self, client: usize, node: usize, id: u64) {
        let Some(trial) = self.clients[client].trial(id) else { return };
        if trial.greeted.contains(node) {
            return self.hear(client, node, id, AttemptReply::Silent);
        }
        trial.greeted.insert(node);
        if self.clients[client].links[node].state != super::client::State::Greeting {
            self.greet(client, node);
        }
        self.clients[client].links[node].intents.push(Tag::Ask(id));
    }

    pub(super) fn voted(&mut self, client: usize, node: usize, id: u64, vote: Vote) {
        let state = &mut self.clients[client];
        let Some(trial) = state.trial(id) else { return };
        let lock = trial.lock;
        match vote {
            Vote::Granted(value) => self.hear(client, node, id, AttemptReply::Granted(value)),
            Vote::Held { holder, left, counter, .. } => {
                let holder: Rc<str> = holder.into();
                let left = u64::try_from(left).ok().map(Duration::from_millis);
                trial.denials.push((holder.clone(), left));
                state.met[lock] = Some(holder);
                state.counters[lock] = state.counters[lock].max(counter);
                self.hear(client, node, id, AttemptReply::Denied);
            }
            Vote::Not(Refusal::Node(_)) => {
                state.links[node].votes = false;
                self.greet_again(client, node, id);
            }
            Vote::Not(Refusal::Late(_)) if !trial.late.contains(node) => {
                trial.late.insert(node);
                self.ask(client, node, id);
            }
            Vote::Not(Refusal::Late(_)) => self.hear(client, node, id, AttemptReply::Silent),
        }
    }

    /// Confirms over the connection that carried the grant, or not at all: what a new one leads to may have
    /// forgotten whom it granted to since.
    pub(super) fn confirm(&mut self, client: usize, node: usize, id: u64, token: u64) {
        let (now, patience) = (self.local(client), self.plan.patience);
        let state = &mut self.clients[client];
        let link = &state.links[node];
        let (key, connection, clock) = (link.key.clone(), link.connection, link.node_clock(now));
        let Some(trial) = state.trial(id) else { return };
        let Some(clock) = clock.filter(|_| trial.over[node] == connection) else {
            return self.hear(client, node, id, AttemptReply::Silent);
        };
        let (lock, value) = (trial.lock, trial.value.clone());
        let not_after = clock + patience;
        let request = Request::Hold { lock, value, token, node: key, not_after, mode: Mode::Confirm };
        self.send(client, node, Tag::Confirm(id, token), request);
    }

    pub(super) fn confirmed(&mut self, client: usize, node: usize, id: u64, token: u64, reply: &Reply) {
        let answer = match reply {
            Reply::Held { verdict: Verdict::Kept, .. } => AttemptReply::Confirmed(token),
            Reply::Held { .. } => AttemptReply::Refused(token),
            _ => AttemptReply::Silent,
        };
        self.hear(client, node, id, answer);
    }

    pub(super) fn hear(&mut self, client: usize, node: usize, id: u64, answer: AttemptReply) {
        let now = self.local(client);
        let Some(trial) = self.clients[client].trial(id) else { return };
        match trial.attempt.on_reply(node, answer, now) {
            NextStep::Wait => {}
            NextStep::Ask(nodes) => nodes.iter().for_each(|node| self.intend(client, node, Tag::Ask(id))),
            NextStep::Confirm { token, nodes } => {
                self.see(Sight::RoundTwo);
                nodes.iter().for_each(|node| self.intend(client, node, Tag::Confirm(id, token)));
            }
            NextStep::Won { token } => self.won(client, token),
            NextStep::Failed => self.failed(client),
        }
    }

    pub(super) fn give_up(&mut self, client: usize, id: u64) {
        let Some(trial) = self.clients[client].trial(id) else { return };
        if trial.attempt.give_up() == NextStep::Failed {
            self.drop_silent_links(client, id);
            self.failed(client);
        }
    }

    /// A node that does not answer may hang: it is asked over a new connection next time, or not.
    fn drop_silent_links(&mut self, client: usize, id: u64) {
        for node in 0..self.plan.nodes {
            let hangs = self.clients[client].links[node].pending.contains(&Tag::Ask(id));
            if hangs && self.random.chance(0.3) {
                self.close(client, node);
            }
        }
    }

    fn won(&mut self, client: usize, token: u64) {
        let doing = std::mem::replace(&mut self.clients[client].doing, Doing::Nothing);
        let (trial, wait) = match doing {
            Doing::Waiting(mut wait) => (wait.trial.take(), Some(wait)),
            Doing::Revoking(trial) => (Some(*trial), None),
            other => {
                self.clients[client].doing = other;
                return;
            }
        };
        let Some(trial) = trial else { return };
        let who = format!("client {client} ({})", trial.id);
        note!(self, "{who} has lock {} with token {token}", trial.lock);
        let kept = self.promises.returned(trial.lock, token, trial.floor, &who);
        self.check(kept);
        match wait {
            Some(wait) => self.hold(client, trial, token, wait.entry),
            None => {
                self.see(Sight::Revoked);
                self.rest(client);
            }
        }
    }

    fn failed(&mut self, client: usize) {
        match std::mem::replace(&mut self.clients[client].doing, Doing::Nothing) {
            Doing::Revoking(trial) => {
                // Nothing is given back: where it took the holder's key, the lease goes on.
                note!(self, "client {client} could not revoke lock {}", trial.lock);
                self.rest(client);
            }
            Doing::Waiting(mut wait) => {
                let trial = wait.trial.take();
                self.clients[client].doing = Doing::Waiting(wait);
                if let Some(trial) = trial {
                    self.step_back(client, &trial);
                }
            }
            other => self.clients[client].doing = other,
        }
    }

    /// Gives back what was granted and waits for a while, or for a hint.
    fn step_back(&mut self, client: usize, trial: &Trial) {
        note!(self, "client {client} steps back from lock {} ({})", trial.lock, trial.id);
        self.undo(client, trial.lock, trial.value.clone(), trial.attempt.asked(), false, None);
        let (granted, gated) = (trial.attempt.granted().len(), trial.attempt.gate.is_some());
        let found = obstacle(self.plan.nodes, granted, &trial.denials, gated);
        if found == Obstacle::Split {
            self.see(Sight::Split);
        }
        let (chance, round_trip) = (self.random.unit(), self.clients[client].round_trip);
        let Doing::Waiting(wait) = &mut self.clients[client].doing else { return };
        let pause = wait.backoff.pause(found, Duration::from_micros(round_trip), chance);
        let pause = if wait.hinted { 0 } else { pause.as_micros() as u64 };
        let id = wait.id;
        self.alarm(client, pause, Timer::Retry(id));
    }

    /// The time to wait is over.
    pub(super) fn deadline(&mut self, client: usize, id: u64) {
        let now = self.local(client);
        let Doing::Waiting(wait) = &self.clients[client].doing else { return };
        if wait.id != id {
            return;
        }
        // A pause of the whole process is the only excuse.
        if now > wait.deadline + 1 && self.clients[client].paused_until != self.now {
            self.check(Err(format!("WAIT: client {client} waits beyond its deadline")));
        }
        self.see(Sight::TimedOut);
        note!(self, "client {client} has waited long enough");
        self.leave(client);
    }

    /// Stops waiting: gives back what the last attempt may have got, and its place in every queue.
    pub(super) fn leave(&mut self, client: usize) {
        let doing = std::mem::replace(&mut self.clients[client].doing, Doing::Nothing);
        if let Doing::Waiting(wait) = doing {
            let all = NodeSet::all(self.plan.nodes);
            self.undo(client, wait.lock, wait.value, all, false, Some(wait.entry));
        }
        self.rest(client);
    }

    /// Somebody says something: a lock may be free, or is revoked.
    pub(super) fn push(&mut self, client: usize, text: &str) {
        note!(self, "client {client} hears {text:?}");
        let state = &mut self.clients[client];
        match &mut state.doing {
            Doing::Waiting(wait) if text == format!("free {} ", wait.id) => {
                let id = wait.id;
                wait.hinted = true;
                self.see(Sight::Woken);
                self.retry(client, id);
            }
            Doing::Holding(guard) if text == format!("revoked {}", guard.value) => {
                let id = guard.id;
                self.see(Sight::Acknowledged);
                self.release(client, id);
            }
            _ => {}
        }
    }

    /// Does nothing for a while.
    pub(super) fn rest(&mut self, client: usize) {
        let pause = self.random.within(0..self.plan.ttl);
        self.alarm(client, pause, Timer::Begin);
    }
}
