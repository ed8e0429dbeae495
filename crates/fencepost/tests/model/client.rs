//! What a client does, as in `claim.rs`, `cohort.rs`, `hold.rs` and `lease.rs`. Where the real one decides by a timer,
//! this one may do either thing at any time.

use crate::rules::{Limits, Rules};
use crate::search::{Promise, Sight, Sights};
use crate::state::{DRIFT, LONG, Line, Message, Owner, Phase, Place, Request, State, TERM, TTL};

pub(crate) struct Client<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) rules: &'a Rules,
    pub(crate) limits: &'a Limits,
    pub(crate) sights: &'a mut Sights,
    pub(crate) me: usize,
    pub(crate) broken: Option<Promise>,
}

impl Owner {
    /// Whether a holder, `me`, may hand the lock to the waiter `heir`.
    pub(crate) fn may_choose(&self, state: &State, limits: &Limits, me: usize, heir: usize) -> bool {
        let waiter = &state.owners[heir];
        heir != me && limits.processes[heir] == limits.processes[me] && waiter.place == Place::Waiting
    }

    pub(crate) fn send(&mut self, request: Request) {
        self.up.push(request);
    }

    /// Ends an attempt or a hold: nothing it heard matters any more.
    pub(crate) fn forget(&mut self) {
        self.counter = None;
        self.letter = None;
        self.stray = None;
        self.left = 0;
        self.renewing = false;
        self.asked = false;
        self.floor = 0;
    }
}

impl Client<'_> {
    pub(crate) fn it(&mut self) -> &mut Owner {
        &mut self.state.owners[self.me]
    }

    pub(crate) fn other(&mut self, owner: u8) -> &mut Owner {
        &mut self.state.owners[usize::from(owner)]
    }

    pub(crate) fn start(&mut self) {
        let floor = self.state.newest_used();
        let (me, limits) = (self.me, self.limits);
        let others_wait = (0..limits.processes.len()).any(|other| {
            let seated = self.state.owners[other].place != Place::None;
            other != me && limits.processes[other] == limits.processes[me] && seated
        });
        self.it().floor = floor;
        if others_wait {
            self.it().phase = Phase::Waiting;
            self.it().place = Place::Waiting;
        } else {
            self.send_ask();
        }
    }

    /// Only without fresh owners.
    pub(crate) fn start_again(&mut self) {
        self.it().lives -= 1;
        self.it().down = Line::EMPTY;
        self.start();
    }

    pub(crate) fn ask(&mut self) {
        self.it().asks -= 1;
        self.send_ask();
    }

    fn send_ask(&mut self) {
        let tries = self.limits.last_tries && self.me + 1 == self.limits.processes.len();
        let it = self.it();
        it.phase = Phase::Asking;
        it.age = 0;
        it.counter = None;
        it.asked = true;
        it.send(if tries { Request::Try } else { Request::Ask });
    }

    pub(crate) fn read(&mut self) {
        let Some(message) = self.it().down.pop() else { return };
        let phase = self.it().phase;
        match (phase, message) {
            (Phase::Asking, Message::Granted(token)) => {
                let age = if self.rules.grant_from_send { self.it().age } else { 0 };
                self.hold(token, TTL, age);
            }
            (Phase::Asking, Message::Busy { .. })
                if self.limits.last_tries && self.me + 1 == self.limits.processes.len() =>
            {
                self.give_up();
            }
            (Phase::Asking, Message::Busy { counter }) => {
                let it = self.it();
                it.phase = Phase::Waiting;
                it.counter = Some(counter);
                if it.place == Place::None {
                    it.place = Place::Waiting;
                }
            }
            (Phase::Asking | Phase::Waiting, Message::PushedGrant(token)) => self.it().letter = Some(token),
            (Phase::Asking | Phase::Waiting, Message::PushedRevocation) => self.it().revoked = true,
            (Phase::Holding, Message::PushedRevocation) => self.lose(),
            (Phase::Holding | Phase::Lost, Message::Renewed { term, newest }) => self.renewed(term, newest),
            (Phase::Holding, Message::NotRenewed) => self.lose(),
            (Phase::Lost, Message::NotRenewed) => self.it().renewing = false,
            (Phase::Releasing, Message::Handed(token)) => self.handed(token),
            (Phase::Releasing, Message::NotHanded | Message::Queued) => self.not_handed(),
            (Phase::Releasing, Message::Released(_)) => self.go(),
            (Phase::Undoing, Message::Released(found)) => self.undone(found),
            _ => {}
        }
    }

    pub(crate) fn read_stray(&mut self) {
        self.sights.note(Sight::StrayPushRead);
        let it = self.it();
        it.letter = it.stray.take();
    }

    // --- waiting -----------------------------------------------------------------------------------------------

    pub(crate) fn look_at_letter(&mut self) {
        let rules = *self.rules;
        let it = self.it();
        let (Some(token), counter) = (it.letter.take(), it.counter) else { return };
        let age = if rules.push_from_send { it.age } else { 0 };
        match counter {
            Some(counter) if rules.push_above_counter && token <= counter => {
                self.sights.note(Sight::OldPushRefused);
            }
            Some(_) if age + DRIFT < TERM => {
                self.sights.note(Sight::PushUsed);
                self.hold(token, TERM, age);
            }
            _ => {}
        }
    }

    pub(crate) fn look_at_news(&mut self) {
        if let Place::Granted { token, age } = self.it().place {
            self.sights.note(Sight::HandOverUsed);
            self.hold(token, TTL, age);
        }
    }

    /// Makes a guard of a grant. One that is over already is given back at once.
    fn hold(&mut self, token: u8, term: u8, age: u8) {
        let drift = if self.rules.drift { DRIFT } else { 0 };
        let used = self.state.used;
        let newest = self.state.newest_used();
        let it = self.it();
        let (floor, left) = (it.floor, term.saturating_sub(drift + age));
        it.forget();
        it.age = 0;
        it.place = Place::None;
        it.uncertain = false;
        it.token = token;
        if left == 0 || it.revoked {
            it.phase = Phase::Lost;
            return;
        }
        it.phase = Phase::Holding;
        it.left = left;
        self.state.used |= 1 << token;
        if token <= floor || used >> token & 1 == 1 {
            self.broken = Some(Promise::Order);
        } else if token < newest {
            self.broken = Some(Promise::Newest);
        }
    }

    pub(crate) fn give_up(&mut self) {
        let rules = *self.rules;
        let it = self.it();
        let handed = matches!(it.place, Place::Chosen | Place::Granted { .. });
        let unheard = handed || it.uncertain && rules.unheard_is_undone;
        let undo = it.asked || unheard;
        // Right behind the one request that it undoes, its first answer settles it.
        let settles = it.asked && !(unheard && rules.unheard_is_undone_for_good);
        it.last = settles && it.connected;
        it.place = if it.place == Place::Chosen { Place::Left } else { Place::None };
        it.forget();
        it.age = 0;
        if !undo || !rules.leave_is_sent {
            self.go();
            return;
        }
        it.phase = Phase::Undoing;
        match it.connected {
            true if rules.leave_is_behind => it.send(Request::Leave),
            true => it.up.push_front(Request::Leave),
            false => {}
        }
    }

    fn undone(&mut self, found: bool) {
        let me = self.me;
        let may_come = self
            .state
            .owners
            .iter()
            .any(|owner| owner.up.iter().chain(owner.late.iter()).any(|request| request.hands_to(me)));
        let it = self.it();
        if found || it.last || !may_come {
            self.go();
        } else {
            it.send(Request::Leave);
        }
    }

    pub(crate) fn go(&mut self) {
        let it = self.it();
        it.forget();
        it.phase = Phase::Gone;
        it.down = Line::EMPTY;
        it.age = 0;
        it.token = 0;
        it.value = 0;
        it.to = None;
        it.last = false;
        it.uncertain = false;
        it.asks = if it.lives > 0 { it.asks } else { 0 };
        it.renewals = 0;
    }

    // --- holding -----------------------------------------------------------------------------------------------

    pub(crate) fn renew(&mut self) {
        let it = self.it();
        it.renewals -= 1;
        // The last one asks for more, as `extend_to` does.
        let term = if it.renewals == 0 { LONG } else { TTL };
        it.renewing = true;
        it.age = 0;
        it.send(Request::Renew(term));
    }

    fn renewed(&mut self, term: u8, newest: bool) {
        let drift = if self.rules.drift { DRIFT } else { 0 };
        let from_send = self.rules.grant_from_send;
        let it = self.it();
        it.renewing = false;
        let age = if from_send { it.age } else { 0 };
        it.age = 0;
        let left = term.saturating_sub(drift + age);
        if it.phase == Phase::Lost {
            self.sights.note(Sight::LateRenewalRefused);
            if self.rules.lost_is_final || left == 0 {
                return;
            }
            self.it().phase = Phase::Holding;
        }
        self.sights.note(Sight::Renewed);
        let it = self.it();
        if left > it.left {
            it.left = left;
            if !newest {
                self.broken = Some(Promise::NoStaleRenewal);
            }
        }
    }

    fn lose(&mut self) {
        self.sights.note(Sight::RevocationHeard);
        let it = self.it();
        it.phase = Phase::Lost;
        it.left = 0;
        it.renewing = false;
        it.age = 0;
    }

    // --- the connection ----------------------------------------------------------------------------------------

    pub(crate) fn orphan_requests(&mut self) {
        let it = self.it();
        while let Some(request) = it.up.pop() {
            it.late.push(request);
        }
    }

    pub(crate) fn lose_connection(&mut self, push_survives: bool) {
        self.state.breaks -= 1;
        self.orphan_requests();
        let it = self.it();
        while let Some(message) = it.down.pop() {
            if let Message::PushedGrant(token) = message
                && push_survives
            {
                it.stray = Some(token);
            }
        }
        it.connected = false;
        if it.renewing && it.phase != Phase::Asking {
            it.renewing = false;
            it.age = 0;
        }
    }

    /// What was unanswered is sent once more.
    pub(crate) fn reconnect(&mut self) {
        let repeats = self.limits.repeats;
        let it = self.it();
        it.connected = true;
        match it.phase {
            Phase::Asking if repeats => self.send_ask(),
            Phase::Asking => self.give_up(),
            Phase::Releasing => {
                it.age = 0;
                it.send(match it.to {
                    Some(to) => Request::HandOver { from: it.value, to, last: it.last },
                    None => Request::Release(it.value),
                });
            }
            Phase::Undoing => {
                it.last = false;
                it.send(Request::Leave);
            }
            _ => {}
        }
    }
}
