//! The scripts, line by line as in `src/backends/redis/*.lua`, and the server's timer.

use crate::rules::Rules;
use crate::search::{Sight, Sights};
use crate::state::{Heirs, Key, Message, Phase, ROWS, Request, RowLetter, State, TERM, TTL};

/// One run of a script.
pub(crate) struct Server<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) rules: &'a Rules,
    /// Whether the server still takes an ended connection for a live one, so that a push to it counts as received.
    pub(crate) deceived: bool,
    pub(crate) sights: &'a mut Sights,
}

impl Server<'_> {
    pub(crate) fn run(&mut self, caller: u8, request: Request) -> Message {
        match request {
            Request::Ask => self.acquire(caller, true),
            Request::Try => self.acquire(caller, false),
            Request::Leave => {
                self.unqueue(caller);
                Message::Left(self.release(caller))
            }
            Request::Quit => {
                self.unqueue(caller);
                Message::HasQuit
            }
            Request::Release(value) => Message::Released(self.release(value)),
            Request::Free(value) => Message::Left(self.release(value)),
            Request::Renew { value, term, newest } => self.renew(value, term, newest),
            Request::HandOver { from, to } => self.hand_over(from, to),
        }
    }

    pub(crate) fn revoke(&mut self, now: bool) {
        let Some(key) = self.state.key else { return };
        self.next_token();
        if key.owner >= ROWS {
            self.state.row_letter = Some(RowLetter { row: key.owner, read: false });
        } else {
            let victim = &mut self.state.owners[usize::from(key.owner)];
            if victim.connected && victim.phase != Phase::Gone {
                victim.down.push(Message::PushedRevocation);
            }
        }
        if !now {
            self.state.key = Some(Key { revoked: true, ..key });
        } else if self.pass_on(None).is_none() {
            self.state.key = None;
        }
    }

    fn next_token(&mut self) -> u8 {
        self.state.counter += 1;
        self.state.counter
    }

    fn set(&mut self, owner: u8, left: u8) {
        self.state.key = Some(Key { owner, left, revoked: false });
    }

    fn holds(&self, value: u8) -> bool {
        self.state.key.is_some_and(|key| key.owner == value && !key.revoked)
    }

    fn unqueue(&mut self, value: u8) {
        self.state.queue.retain(|waiter| waiter != value);
    }

    fn enqueue(&mut self, value: u8) {
        if !self.state.queue.iter().any(|waiter| waiter == value) {
            self.state.queue.push(value);
        }
    }

    fn pass_on(&mut self, caller: Option<u8>) -> Option<(u8, u8)> {
        while let Some(head) = self.state.queue.pop() {
            let token = if self.rules.push_raises_counter || caller == Some(head) {
                self.next_token()
            } else {
                self.state.counter
            };
            if caller == Some(head) {
                return Some((head, token));
            }
            if self.publish(head, token) {
                self.set(head, TERM);
                return Some((head, token));
            }
            self.sights.note(Sight::UnreachableSkipped);
        }
        None
    }

    /// Pushes a grant; `false` if nobody is subscribed.
    fn publish(&mut self, to: u8, token: u8) -> bool {
        let owner = &mut self.state.owners[usize::from(to)];
        if owner.connected {
            if matches!(owner.phase, Phase::Asking | Phase::Waiting) {
                owner.down.push(Message::PushedGrant(token));
            }
            return true;
        }
        if self.deceived {
            owner.stray = Some(token);
        }
        self.deceived
    }

    fn acquire(&mut self, caller: u8, wait: bool) -> Message {
        if self.state.key.is_none() {
            self.set(caller, TTL);
            if !wait || self.state.queue.is_empty() {
                return Message::Granted(self.next_token());
            }
            self.enqueue(caller);
            if let Some((head, token)) = self.pass_on(Some(caller))
                && head == caller
            {
                return Message::Granted(token);
            }
        }
        if self.holds(caller) {
            self.sights.note(Sight::GrantedUnheard);
            if self.rules.regrant_extends {
                self.lengthen(TTL);
            }
            return Message::Granted(self.state.counter);
        }
        if wait {
            self.enqueue(caller);
        }
        Message::Busy { counter: self.state.counter }
    }

    /// Whether it was theirs.
    fn release(&mut self, value: u8) -> bool {
        let theirs = self.state.key.is_some_and(|key| key.owner == value);
        if !theirs && (self.rules.release_checks_owner || self.state.key.is_none()) {
            return false;
        }
        if self.pass_on(None).is_none() {
            self.state.key = None;
        }
        true
    }

    fn lengthen(&mut self, term: u8) {
        if let Some(key) = &mut self.state.key
            && (key.left < term || !self.rules.renew_never_shortens)
        {
            key.left = term;
        }
    }

    fn renew(&mut self, value: u8, term: u8, newest: u8) -> Message {
        let newest = self.state.counter == newest;
        let ours = match self.state.key {
            None if !self.rules.renew_never_creates => {
                self.set(value, term);
                true
            }
            None => false,
            Some(key) if key.revoked && self.rules.renew_sees_revocation => false,
            Some(key) => key.owner == value || !self.rules.renew_checks_owner,
        };
        if !ours {
            return Message::NotRenewed;
        }
        self.lengthen(term);
        Message::Renewed { term, newest }
    }

    fn hand_over(&mut self, from: u8, to: Heirs) -> Message {
        let (Heirs { first, turns, row, .. }, mut count) = (to, to.count());
        let theirs = self.state.key.is_some_and(|key| key.owner == from);
        if !theirs && self.rules.hand_over_checks_owner {
            return Message::NotHanded;
        }
        self.unqueue(first);
        if turns == 0 && self.pass_on(None).is_some() {
            self.enqueue(first);
            self.sights.note(Sight::AnotherProcessGotItsTurn);
            return Message::Queued;
        }
        if count == 1 {
            self.set(first, TTL);
            if self.rules.hand_over_raises_counter {
                self.next_token();
            }
            return Message::Handed(self.state.counter);
        }
        self.set(row, TTL);
        if turns > 0 && turns < count && !self.state.queue.is_empty() {
            self.sights.note(Sight::RowCutShort);
            count = turns;
        }
        let token = self.state.counter + 1;
        self.state.counter += if self.rules.row_raises_counter_for_each { count } else { 1 };
        Message::HandedToRow { token, count }
    }
}
