//! What makes large searches end: forgetting what cannot matter. `outcomes.rs` compares with searches that
//! keep everything.
//!
//! Two kinds of forgetting are done here. `forget` replaces a state by one from which at least as much can go
//! wrong, each time for a reason given beside it. `canonical` gives one name to states that differ in names
//! only.

use super::rules::{Flaw, Keep, Rules};
use super::state::{
    Actor, Confirmation, Event, Link, NODES, Node, Phase, Read, Reply, State, no_attempt, no_extension,
};
use crate::quorum::{Kept, majority};

impl State {
    pub(super) fn forget(&mut self, rules: &Rules) {
        for who in 0..rules.attempts {
            self.forget_what_was_decided(who);
            if rules.keep <= Keep::Releases {
                self.end_what_is_too_late(rules, who);
                self.drop_what_nodes_refuse(rules, who);
                self.end_what_cannot_be_attached(rules, who);
            }
            // With one owner id for many attempts the key of one serves the requests of another.
            if rules.keep <= Keep::Releases && rules.flaw != Flaw::OneOwner {
                self.drop_requests_without_a_key(who);
                self.forget_what_is_over(rules, who);
            }
        }
        if rules.keep == Keep::Least {
            self.forget_saved_keys(rules);
            self.free_keys_of_the_dead();
            self.bound_leases(rules);
            self.forget_low_counters(rules);
        }
    }

    /// A decided attempt says `Wait` to whatever it hears: replies to it are not needed, nor what it knows.
    fn forget_what_was_decided(&mut self, who: usize) {
        let actor = &mut self.actors[who];
        if matches!(actor.phase, Phase::Waiting | Phase::Asking | Phase::Reading | Phase::Raising) {
            return;
        }
        actor.attempt = no_attempt();
        for link in &mut actor.links {
            link.reply = Reply::None;
            link.doubtful = false;
            link.read = Read::None;
            forget_replies(link);
        }
        if actor.phase == Phase::Over {
            actor.extension = no_extension();
        }
        if actor.extension.decided {
            actor.extension = no_extension();
            actor.links.iter_mut().for_each(|link| link.extended = Kept::Open);
        }
    }

    /// An attempt that has no lock at the end of its validity gets none: all that it can do is give up.
    fn end_what_is_too_late(&mut self, rules: &Rules, who: usize) {
        let actor = &self.actors[who];
        let asks = matches!(actor.phase, Phase::Asking | Phase::Reading | Phase::Raising);
        let ends = match actor.phase {
            Phase::Attaching => actor.extension.until,
            _ => actor.attempt.until,
        };
        if (asks || actor.phase == Phase::Attaching)
            && rules.flaw != Flaw::ValidFromTheEnd
            && self.now >= ends
        {
            self.end(rules, who);
            self.forget_what_was_decided(who);
        }
    }

    /// A detached lock of which no majority of nodes has a key, or may get one, can be attached no more.
    fn end_what_cannot_be_attached(&mut self, rules: &Rules, who: usize) {
        let actor = &self.actors[who];
        let keys = (0..NODES).filter(|&index| {
            let (link, node) = (actor.links[index], self.nodes[index]);
            let key = [node.live, node.saved].iter().any(|record| record.is_of(who));
            let moved = self.actors.iter().enumerate().any(|(other, taker)| {
                let open = taker.phase == Phase::Attaching || taker.links[index].back;
                taker.from == Some(who as u8) && open && node.live.is_of(other)
            });
            key || moved || link.acquire + link.extends > 0
        });
        if actor.phase == Phase::Detached && keys.count() < majority(NODES) {
            self.end(rules, who);
            self.forget_what_was_decided(who);
        }
    }

    /// Requests that come too late for any node.
    fn drop_what_nodes_refuse(&mut self, rules: &Rules, who: usize) {
        let actor = &mut self.actors[who];
        let too_late = self.now > rules.acquire_limit(actor.start);
        for link in &mut actor.links {
            if too_late {
                link.acquire = 0;
            }
            if self.now > actor.limit {
                link.extends = 0;
            }
        }
    }

    /// Requests that need the key of their sender, where it is gone and does not come back. To confirm: a key
    /// comes back with a snapshot, by the request to acquire, or by an extension, and that raises the counter
    /// to the token itself. Where the counter has passed the token it stays above it, but for a snapshot. So
    /// it does when it was moved and is put back: whose lock is being taken over keeps its requests.
    fn drop_requests_without_a_key(&mut self, who: usize) {
        if self.actors.iter().any(|taker| taker.from == Some(who as u8)) {
            return;
        }
        let actor = &mut self.actors[who];
        for (link, node) in actor.links.iter_mut().zip(&self.nodes) {
            if node.saved.is_of(who) {
                continue;
            }
            let ours = node.live.is_of(who);
            let gone = !ours && link.acquire == 0;
            for confirmation in &mut link.confirms {
                if let Confirmation::Asked(token) = *confirmation
                    && (gone || ours && node.live.counter > token)
                {
                    *confirmation = Confirmation::None;
                }
            }
            if gone && link.extends == 0 {
                link.release = false;
            }
        }
    }

    /// Of an attempt that is over only requests that may still arrive count.
    ///
    /// - A confirmation that arrives now might as well have arrived just before the end: in between the key
    ///   was there and kept everybody else out, so nobody saw the difference. That order is searched, too, so
    ///   this one need not be.
    /// - An extension that arrives now raises the counter to the token where that is lower (the key that it
    ///   makes is the key of a dead, see below). Where it is not lower, it changes nothing; and should the
    ///   counter be lost, the quarantine lasts for longer than such a request is accepted.
    fn forget_what_is_over(&mut self, rules: &Rules, who: usize) {
        let actor = &mut self.actors[who];
        if actor.phase != Phase::Over {
            return;
        }
        let outlived = rules.extend_within && rules.quarantine > rules.ttl;
        for (link, node) in actor.links.iter_mut().zip(&self.nodes) {
            let no_effect = node.live.counter >= actor.token && outlived;
            *link = Link {
                acquire: link.acquire,
                extends: if no_effect { 0 } else { link.extends.min(1) },
                confirms: if rules.keys_come_back() { link.confirms } else { Default::default() },
                release: link.release && (rules.keep == Keep::Releases || actor.from.is_some()),
                attach: link.attach,
                back: link.back,
                ..Link::default()
            };
        }
        let who = who as u8;
        let moves = actor.links.iter().any(|link| link.attach || link.back);
        let has = |node: &Node| node.live.owner == Some(who) || node.saved.owner == Some(who);
        if !moves && !self.nodes.iter().any(has) {
            actor.from = None;
        }
        let acquires = actor.links.iter().any(|link| link.acquire > 0);
        let extends = actor.links.iter().any(|link| link.extends > 0);
        *actor = Actor {
            start: if acquires { actor.start } else { 0 },
            token: if extends || moves { actor.token } else { 0 },
            limit: if extends { actor.limit } else { 0 },
            until: 0,
            sent: 0,
            rounds: 0,
            ..actor.clone()
        };
    }

    /// A key in a snapshot is gone by the time its node votes again.
    fn forget_saved_keys(&mut self, rules: &Rules) {
        if !rules.keys_come_back() {
            self.nodes.iter_mut().for_each(|node| node.saved.free());
        }
    }

    /// A key whose owner is over stands in the way of others and does nothing else. Who is in nobody's way
    /// can still be slow: whatever others can do with that key there they can do without it, if their
    /// requests to that node arrive later or never. So the key may as well be gone. (And its owner has sent a
    /// release that may arrive now.) But a request to confirm has to find it; and what was moved from a
    /// detached lock keeps others out for that one, and may be put back.
    fn free_keys_of_the_dead(&mut self) {
        for (index, node) in self.nodes.iter_mut().enumerate() {
            for record in [&mut node.live, &mut node.saved] {
                let Some(owner) = record.owner else { continue };
                let actor = &self.actors[usize::from(owner)];
                let asked = actor.links[index].confirms != [Confirmation::None; 2];
                if actor.phase == Phase::Over && !asked && actor.from.is_none() {
                    record.free();
                }
            }
        }
    }

    /// A key lasts until its owner is over, as said above, so that it does not matter how much longer its
    /// lease is than the longest validity that its owner can come to.
    fn bound_leases(&mut self, rules: &Rules) {
        for node in &mut self.nodes {
            let Some(owner) = node.live.owner else { continue };
            let actor = &self.actors[usize::from(owner)];
            let open = !actor.extension.decided;
            let last = match actor.phase {
                _ if actor.rounds < rules.rounds => continue,
                Phase::Detached | Phase::Attaching => continue,
                Phase::Over if actor.from.is_some() => continue,
                Phase::Held | Phase::Lapsed if open => actor.until.max(actor.sent + rules.ttl),
                Phase::Held | Phase::Lapsed => actor.until,
                _ => actor.attempt.until,
            };
            node.live.expires = node.live.expires.min(last);
        }
    }

    /// A counter below all values that the node can grant from now on is like none: the next grant starts
    /// from the clock, and so does what is granted after that. Only who attaches compares it with an old
    /// token.
    fn forget_low_counters(&mut self, rules: &Rules) {
        if rules.attach {
            return;
        }
        for (index, node) in self.nodes.iter_mut().enumerate() {
            for record in [&mut node.live, &mut node.saved] {
                if record.owner.is_none() && record.counter < rules.floor(index, self.now) {
                    record.counter = 0;
                }
            }
        }
    }

    /// Nothing can go wrong any more: for that somebody must still return a lock after another was returned,
    /// or extend one while somebody else has one or has had a later one.
    pub(super) fn is_settled(&self, rules: &Rules) -> bool {
        let actors = &self.actors[..rules.attempts];
        let may_return = |actor: &&Actor| {
            matches!(actor.phase, Phase::Waiting | Phase::Asking | Phase::Reading | Phase::Raising)
        };
        let returns = actors.iter().filter(may_return).count();
        let holds = |actor: &&Actor| {
            matches!(actor.phase, Phase::Held | Phase::Detached | Phase::Attaching | Phase::Lapsed)
        };
        let held = actors.iter().filter(holds).count();
        let overtaken = actors.iter().filter(holds).any(|actor| actor.token < self.highest);
        match returns {
            0 => held < 2 && !overtaken,
            1 => self.highest == 0,
            _ => false,
        }
    }

    /// One name for states that differ in names only.
    pub(super) fn canonical(mut self, rules: &Rules) -> Self {
        self.event = Event::default();
        for node in &mut self.nodes {
            if node.ready < self.now {
                node.ready = 0;
            }
        }
        if rules.attempts_are_alike() && rules.flaw == Flaw::None {
            self.sort_attempts(rules);
        }
        if rules.nodes_are_alike() {
            let mut order = [0, 1, 2].map(|node| (self.column(node), node));
            order.sort_unstable();
            self.permute(order.map(|(_, node)| node));
        }
        self
    }

    /// Attempts that are not yet made stay where they are: behind all others.
    fn sort_attempts(&mut self, rules: &Rules) {
        let made = self.actors[..rules.attempts].iter().filter(|actor| actor.phase != Phase::Waiting).count();
        let mut order = [0, 1, 2];
        order[..made].sort_by_key(|&who: &usize| self.actors[who].words());
        if order == [0, 1, 2] {
            return;
        }
        self.actors = order.map(|who| self.actors[who].clone());
        let renamed =
            |owner: u8| order.iter().position(|who| *who == usize::from(owner)).map(|who| who as u8);
        for node in &mut self.nodes {
            node.live.owner = node.live.owner.and_then(renamed);
            node.saved.owner = node.saved.owner.and_then(renamed);
        }
        for actor in &mut self.actors {
            actor.from = actor.from.and_then(renamed);
        }
    }
}

/// Replies to requests to confirm. The requests themselves still have an effect on the node.
fn forget_replies(link: &mut Link) {
    for confirmation in &mut link.confirms {
        if matches!(confirmation, Confirmation::Yes(_) | Confirmation::No(_)) {
            *confirmation = Confirmation::None;
        }
    }
}

const _: () = assert!(NODES == 3, "the pairs of `steps.rs` are majorities");
