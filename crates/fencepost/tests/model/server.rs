//! The steps of `src/backends/redis/scripts/ops.lua`, and whom its pushes reach.

use crate::rules::{Limits, Rules};
use crate::search::{Promise, Sight, Sights};
use crate::state::{Body, Grant, Id, Key, Message, State, Store, TERM, TTL, UNITS, Verb};

/// One call of the script.
pub(crate) struct Server<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) at: u8,
    pub(crate) rules: &'a Rules,
    pub(crate) limits: &'a Limits,
    pub(crate) sights: &'a mut Sights,
    pub(crate) broken: Option<Promise>,
}

impl Server<'_> {
    fn index(&self) -> usize {
        usize::from(self.at)
    }

    fn store(&mut self) -> &mut Store {
        &mut self.state.stores[usize::from(self.at)]
    }

    fn key(&self) -> Option<Key> {
        self.state.stores[self.index()].key
    }

    pub(crate) fn run(&mut self, verb: Verb) -> Body {
        if !self.state.writable[self.index()] {
            return self.read_only(verb);
        }
        match verb {
            Verb::Try(id) => self.acquire(id, false, false),
            Verb::Wait(id) => self.acquire(id, true, false),
            Verb::Again(id) => self.acquire(id, true, true),
            Verb::Leave(id) => self.leave(id),
            Verb::Change(old, new) => {
                self.leave(old);
                self.acquire(new, true, false)
            }
            Verb::Free(grant) => {
                self.free(grant);
                Body::Freed
            }
            Verb::Renew(grant) => self.renew(grant),
            Verb::Attach(grant, new) => self.attach(grant, new),
        }
    }

    /// A replica answers what it need not write, and refuses the rest.
    fn read_only(&mut self, verb: Verb) -> Body {
        self.sights.note(Sight::ReadOnly);
        match (verb, self.key()) {
            (Verb::Try(id), Some(key)) if key.grant.id != id => {
                Body::Busy { id, holder: key.grant.token, asked: false }
            }
            (Verb::Free(grant), key) if key.is_none_or(|key| key.grant != grant) => Body::Freed,
            (Verb::Renew(grant), key) if key.is_none_or(|key| key.grant != grant || key.asked) => {
                Body::NotRenewed
            }
            (Verb::Attach(grant, _), key) if key.is_none_or(|key| key.grant.token != grant.token) => {
                Body::NotRenewed
            }
            _ => Body::ReadOnly,
        }
    }

    fn draw(&mut self) -> u8 {
        let clock = match self.limits.ticks > 0 && self.rules.token_from_clock {
            true => {
                let now = UNITS * (self.state.now + 1);
                now.saturating_add_signed(self.state.skew[self.index()])
            }
            false => 0,
        };
        let after = if self.rules.token_above_fence { self.store().fence + 1 } else { 1 };
        self.store().fence = after.max(clock);
        self.store().fence
    }

    fn grant(&mut self, id: Id, left: u8) -> Grant {
        let grant = Grant { id, token: self.draw() };
        self.store().key = Some(Key { grant, left, asked: false });
        grant
    }

    /// Gives a free lock to the first that can be reached, or to the caller. Whether anybody has it.
    fn pass_on(&mut self, caller: Option<Id>) -> Option<Grant> {
        self.store().key = None;
        while let Some(head) = self.store().queue.pop() {
            if Some(head) == caller {
                break;
            }
            if self.push(head) {
                return None;
            }
            self.sights.note(Sight::UnreachableSkipped);
        }
        caller.map(|id| self.grant(id, TTL))
    }

    /// Whether somebody listens, who gets the lock then.
    fn push(&mut self, id: Id) -> bool {
        let (at, other) = (self.at, usize::from(1 - self.at));
        let owner = &self.state.owners[id.index()];
        let (listens, ghost) = (owner.waiter.open && owner.waiter.server == at, owner.ghost == Some(at));
        let reached = listens || ghost;
        // A replica repeats what was published.
        let repeated = owner.waiter.open && owner.waiter.server != at && !self.state.writable[other];
        let before = *self.store();
        if !reached && self.rules.counted_first {
            return false;
        }
        let token = if self.rules.push_draws_token { self.draw() } else { self.store().fence };
        let grant = Grant { id, token };
        if listens || repeated {
            let owner = &mut self.state.owners[id.index()];
            owner.waiter.down.push(Message { body: Body::PushedGrant(grant), age: 0 });
            if self.state.strays > 0 && owner.stray.is_none() {
                owner.stray = Some(grant);
                self.state.strays -= 1;
            }
        } else if ghost {
            self.sights.note(Sight::PushedToNobody);
        }
        if reached {
            self.store().key = Some(Key { grant, left: TERM, asked: false });
        } else {
            *self.store() = before;
        }
        reached
    }

    fn acquire(&mut self, id: Id, wait: bool, again: bool) -> Body {
        match self.key() {
            None => {
                if let Some(grant) = self.pass_on(Some(id)) {
                    return Body::Granted(grant);
                }
            }
            Some(key) if key.grant.id == id && key.asked => {
                return Body::Busy { id, holder: key.grant.token, asked: true };
            }
            Some(key) if key.grant.id == id && self.rules.again_finds_its_grant => {
                self.sights.note(Sight::GrantFound);
                if self.rules.again_extends {
                    self.extend();
                }
                return Body::Granted(key.grant);
            }
            Some(_) => {}
        }
        if wait && (!again || !self.store().queue.iter().any(|entry| entry == id)) {
            self.store().queue.push(id);
        }
        Body::Busy { id, holder: self.key().map_or(0, |key| key.grant.token), asked: false }
    }

    fn leave(&mut self, id: Id) -> Body {
        self.store().queue.retain(|entry| entry != id);
        if self.key().is_some_and(|key| key.grant.id == id) {
            self.pass_on(None);
        }
        Body::Left
    }

    fn free(&mut self, grant: Grant) {
        let rules = self.rules;
        let theirs = self.key().is_some_and(|key| {
            key.grant.id == grant.id
                && (key.grant.token == grant.token || !rules.free_names_token)
                && (!key.asked || rules.asked_is_freed)
        });
        if theirs {
            self.pass_on(None);
        }
    }

    fn extend(&mut self) {
        if let Some(key) = &mut self.store().key {
            key.left = key.left.max(TTL);
        }
    }

    fn renew(&mut self, grant: Grant) -> Body {
        let rules = self.rules;
        let theirs = self.key().is_some_and(|key| {
            (key.grant.id == grant.id || !rules.renew_names_identity)
                && (key.grant.token == grant.token || !rules.renew_names_token)
                && (!key.asked || !rules.asked_is_not_renewed)
        });
        if !theirs && (self.key().is_some() || rules.renew_never_creates) {
            self.sights.note(Sight::RenewalRefused);
            return Body::NotRenewed;
        }
        if !self.state.split && self.key().is_none_or(|key| key.grant != grant || key.asked) {
            self.broken = Some(Promise::NoRevival);
        }
        if self.key().is_none() {
            self.store().key = Some(Key { grant, left: TTL, asked: false });
        }
        self.extend();
        Body::Renewed
    }

    fn attach(&mut self, grant: Grant, new: Id) -> Body {
        let rules = self.rules;
        let found = self.key().filter(|key| {
            (key.grant.id == grant.id || key.grant.id == new && rules.attach_can_be_repeated)
                && (key.grant.token == grant.token || !rules.attach_names_token)
                && !key.asked
        });
        let Some(key) = found else { return Body::NotRenewed };
        if !self.state.split && key.grant.token != grant.token {
            self.broken = Some(Promise::NoRevival);
        }
        self.store().key = Some(Key { grant: Grant { id: new, ..key.grant }, ..key });
        self.extend();
        Body::Renewed
    }

    /// A force-release.
    pub(crate) fn revoke(&mut self, now: bool) {
        let Some(key) = self.key() else { return };
        self.draw();
        let (at, victim) = (self.at, &mut self.state.owners[key.grant.id.index()]);
        if victim.waiter.open && victim.waiter.server == at {
            victim.waiter.down.push(Message { body: Body::PushedRevocation(key.grant.id), age: 0 });
        }
        if now {
            self.state.lock_is_taken_from_its_holder();
            self.pass_on(None);
        } else {
            self.store().key = Some(Key { asked: true, ..key });
        }
    }
}
