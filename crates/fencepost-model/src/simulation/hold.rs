//! Holding, extending and giving back: the shell around `Extension`.

use std::rc::Rc;

use crate::node::{Mode, Verdict};
use crate::quorum::{Extended, Extension, Kept, NodeSet};

use super::client::{Doing, Guard, Round, Trial, Undo};
use super::message::{Reply, Request, Tag};
use super::sights::Sight;
use super::world::{Timer, World, note};

impl World {
    pub(super) fn hold(&mut self, client: usize, trial: Trial, token: u64, entry: Rc<str>) {
        self.see(Sight::Won);
        let now = self.local(client);
        let from = if self.rules.validity_from_send { trial.since } else { now };
        let until = from + self.term();
        let Trial { id, lock, value, .. } = trial;
        let kept =
            self.promises.locked(lock, &name(client, id), self.now, self.clients[client].clock.when(until));
        self.check(kept);
        self.clients[client].wins += 1;
        let guard = Guard { id, lock, value, token, until, entry, round: None };
        self.clients[client].doing = Doing::Holding(Box::new(guard));
        let time = self.time_to_hold();
        self.alarm(client, time, Timer::Release(id));
        if !self.random.chance(self.plan.lazy) {
            self.alarm(client, self.plan.ttl / 3, Timer::Extend(id));
        }
        self.alarm(client, until - now, Timer::Expire(id));
    }

    /// How long a lock is valid after it was asked for.
    fn term(&self) -> u64 {
        self.plan.ttl - if self.rules.margin { self.plan.drift() } else { 0 }
    }

    fn time_to_hold(&mut self) -> u64 {
        let ttl = self.plan.ttl;
        if self.plan.is_quiet() {
            return self.random.within(0..ttl / 20);
        }
        let most = [ttl / 10, ttl / 10, ttl / 4, ttl, 3 * ttl][self.random.index(5)];
        self.random.within(0..most)
    }

    pub(super) fn extend(&mut self, client: usize, id: u64) {
        let (now, round, ttl) = (self.local(client), self.id(), self.plan.ttl);
        let (nodes, timely) = (self.plan.nodes, self.rules.timely_extension);
        let Some(guard) = self.clients[client].guard().filter(|guard| guard.id == id) else { return };
        if guard.round.is_some() || now >= guard.until {
            return;
        }
        let until = if timely { guard.until } else { u64::MAX };
        let extension = Extension::new(vec![Kept::Open; nodes], until);
        guard.round = Some(Round { id: round, since: now, extension });
        self.alarm(client, ttl / 6, Timer::RoundOver(id, round));
        for node in 0..nodes {
            self.intend(client, node, Tag::Extend(round));
        }
    }

    pub(super) fn ask_to_extend(&mut self, client: usize, node: usize, round: u64) {
        let now = self.local(client);
        let timely = self.rules.timely_extension;
        let state = &mut self.clients[client];
        let (key, clock) = (state.links[node].key.clone(), state.links[node].node_clock(now));
        let Some(guard) = state.guard() else { return };
        if guard.round.as_ref().is_none_or(|current| current.id != round) || now >= guard.until && timely {
            return;
        }
        // No later than the old term: what a late one makes anew is nobody's.
        let not_after = match clock {
            Some(clock) if timely => clock + (guard.until - now),
            _ => u64::MAX,
        };
        let (lock, token) = (guard.lock, guard.token);
        let value = guard.value.clone();
        // The real client repairs only what a majority has not lost. Whoever always does may do more.
        let request = Request::Hold { lock, value, token, node: key, not_after, mode: Mode::Repair };
        self.send(client, node, Tag::Extend(round), request);
    }

    pub(super) fn kept(&mut self, client: usize, node: usize, round: u64, reply: &Reply) {
        let kept = match reply {
            Reply::Held { verdict: Verdict::Kept, .. } => Kept::Yes,
            Reply::Held { verdict: Verdict::Other(_), .. } => Kept::No,
            _ => Kept::Silent,
        };
        self.hear_kept(client, node, round, kept);
    }

    pub(super) fn hear_kept(&mut self, client: usize, node: usize, id: u64, kept: Kept) {
        let (now, term) = (self.local(client), self.term());
        let Some(guard) = self.clients[client].guard() else { return };
        let (lock, guard_id) = (guard.lock, guard.id);
        let Some(round) = guard.round.as_mut().filter(|round| round.id == id) else { return };
        match round.extension.on_reply(node, kept, now) {
            Extended::Wait => {}
            Extended::Yes => {
                let until = guard.until.max(round.since + term);
                let next = (round.since + self.plan.ttl / 3).saturating_sub(now);
                guard.until = until;
                guard.round = None;
                self.see(Sight::Extended);
                note!(self, "client {client} ({guard_id}) has extended lock {lock}");
                let when = self.clients[client].clock.when(until);
                let kept = self.promises.extended(lock, &name(client, guard_id), when);
                self.check(kept);
                self.alarm(client, next, Timer::Extend(guard_id));
                self.alarm(client, until.saturating_sub(now), Timer::Expire(guard_id));
            }
            Extended::Lost => {
                self.see(Sight::LossNoticed);
                note!(self, "client {client} ({guard_id}) has lost lock {lock}");
                self.release(client, guard_id);
            }
            Extended::Failed => self.try_again(client, guard_id),
        }
    }

    fn try_again(&mut self, client: usize, guard: u64) {
        if let Some(guard) = self.clients[client].guard() {
            guard.round = None;
        }
        self.alarm(client, self.plan.ttl / 20, Timer::Extend(guard));
    }

    /// Who has not answered a round by now has not kept the lock.
    pub(super) fn end_round(&mut self, client: usize, id: u64, round: u64) {
        let Some(guard) = self.clients[client].guard().filter(|guard| guard.id == id) else { return };
        let current = guard.round.as_ref().is_some_and(|current| current.id == round);
        if current && self.rules.timely_extension {
            self.try_again(client, id);
        }
    }

    pub(super) fn expire(&mut self, client: usize, id: u64) {
        let (now, timely) = (self.local(client), self.rules.timely_extension);
        let Some(guard) = self.clients[client].guard().filter(|guard| guard.id == id) else { return };
        if now < guard.until || !timely && guard.round.is_some() {
            return;
        }
        self.see(Sight::Expired);
        note!(self, "client {client} ({id}) has lost its lock: nobody has extended it in time");
        self.release(client, id);
    }

    /// Ends a guard, and only then gives the lock back.
    pub(super) fn release(&mut self, client: usize, id: u64) {
        if self.clients[client].guard().is_none_or(|guard| guard.id != id) {
            return;
        }
        let doing = std::mem::replace(&mut self.clients[client].doing, Doing::Nothing);
        let Doing::Holding(guard) = doing else { return };
        self.promises.ended(guard.lock, &name(client, id));
        note!(self, "client {client} ({id}) gives lock {} back", guard.lock);
        let all = NodeSet::all(self.plan.nodes);
        self.undo(client, guard.lock, guard.value, all, true, Some(guard.entry));
        self.rest(client);
    }

    /// Gives back what these nodes may have granted. Behind what was sent before, over the same connection;
    /// over a new one if that has ended.
    pub(super) fn undo(
        &mut self,
        client: usize,
        lock: usize,
        value: Rc<str>,
        open: NodeSet,
        wake: bool,
        entry: Option<Rc<str>>,
    ) {
        if !self.rules.giving_back && !wake {
            return;
        }
        let id = self.id();
        let deadline = self.local(client) + self.plan.ttl;
        self.clients[client].undos.push(Undo { id, lock, value, wake, entry, open, deadline });
        for node in open.iter() {
            self.intend(client, node, Tag::Undo(id));
        }
        self.alarm(client, self.plan.ttl / 4, Timer::Undo(id));
    }

    pub(super) fn ask_to_undo(&mut self, client: usize, node: usize, id: u64) {
        let Some(undo) = self.clients[client].undos.iter().find(|undo| undo.id == id) else { return };
        let Undo { lock, value, wake, entry, .. } = undo.clone();
        self.send(client, node, Tag::Undo(id), Request::Release { lock, value, wake, entry });
    }

    pub(super) fn undone(&mut self, client: usize, node: usize, id: u64) {
        let undos = &mut self.clients[client].undos;
        if let Some(undo) = undos.iter_mut().find(|undo| undo.id == id) {
            undo.open = undo.open.iter().filter(|other| *other != node).collect();
        }
        undos.retain(|undo| !undo.open.is_empty());
    }

    /// Sends again where a connection has ended or hangs, until nothing can be left.
    pub(super) fn retry_undo(&mut self, client: usize, id: u64) {
        let now = self.local(client);
        let undos = &mut self.clients[client].undos;
        undos.retain(|undo| now < undo.deadline);
        let Some(open) = undos.iter().find(|undo| undo.id == id).map(|undo| undo.open) else { return };
        for node in open.iter() {
            if self.clients[client].links[node].pending.contains(&Tag::Undo(id)) {
                self.close(client, node);
            }
            self.intend(client, node, Tag::Undo(id));
        }
        self.alarm(client, self.plan.ttl / 4, Timer::Undo(id));
    }

    /// A request, or what was to become one, has lost its connection.
    pub(super) fn unanswered(&mut self, client: usize, node: usize, tag: Tag) {
        match tag {
            Tag::Greet | Tag::Undo(_) => {}
            Tag::Ask(trial) | Tag::Confirm(trial, _) => {
                self.hear(client, node, trial, crate::quorum::AttemptReply::Silent);
            }
            Tag::Extend(round) => self.hear_kept(client, node, round, Kept::Silent),
        }
    }

    /// Sends what was meant to be sent when the node is greeted.
    pub(super) fn perform(&mut self, client: usize, node: usize, tag: Tag) {
        match tag {
            Tag::Greet => self.greet(client, node),
            Tag::Ask(trial) => self.ask(client, node, trial),
            Tag::Confirm(trial, token) => self.confirm(client, node, trial, token),
            Tag::Extend(round) => self.ask_to_extend(client, node, round),
            Tag::Undo(undo) => self.ask_to_undo(client, node, undo),
        }
    }
}

/// A guard by name, for the promises: values are not always unique, where a rule is switched off.
fn name(client: usize, id: u64) -> String {
    format!("client {client} ({id})")
}
