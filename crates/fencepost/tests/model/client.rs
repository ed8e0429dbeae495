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
        let process = limits.processes.get(heir);
        heir != me && process == limits.processes.get(me) && waiter.place == Place::Waiting
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
        self.knew = false;
        self.floor = 0;
        self.was_first = false;
    }

    pub(crate) fn lose(&mut self) {
        self.phase = Phase::Lost;
        self.left = 0;
        self.renewing = false;
        self.age = 0;
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
            let (phase, place) = (self.state.owners[other].phase, self.state.owners[other].place);
            let waits = matches!(phase, Phase::Asking | Phase::Waiting | Phase::Quitting);
            let seated = waits && place != Place::None;
            other != me && limits.processes[other] == limits.processes[me] && seated
        });
        let tries = self.tries();
        let it = self.it();
        it.floor = floor;
        if !tries {
            it.place = Place::Waiting;
        }
        if others_wait && !tries {
            it.phase = Phase::Waiting;
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

    /// Does not wait.
    fn tries(&self) -> bool {
        self.limits.last_tries && self.me + 1 == self.limits.processes.len()
    }

    fn send_ask(&mut self) {
        let tries = self.tries();
        let it = self.it();
        it.phase = Phase::Asking;
        it.age = 0;
        it.counter = None;
        it.asked = true;
        it.knew = it.place.is_handed();
        it.send(if tries { Request::Try } else { Request::Ask });
    }

    pub(crate) fn read(&mut self) {
        let Some(message) = self.it().down.pop() else { return };
        let phase = self.it().phase;
        match (phase, message) {
            (Phase::Asking, Message::Granted(_)) if self.is_handed() && !self.it().knew => self.send_ask(),
            (Phase::Asking, Message::Granted(token)) => {
                let age = if self.rules.grant_from_send { self.it().age } else { 0 };
                self.serve();
                self.hold(token, TTL, age);
            }
            (Phase::Asking, Message::Busy { .. }) if self.tries() => self.give_up(),
            (Phase::Asking, Message::Busy { counter }) => {
                let it = self.it();
                it.phase = Phase::Waiting;
                it.counter = Some(counter);
                it.knew = false;
            }
            (Phase::Asking | Phase::Waiting, Message::PushedGrant(token)) => self.it().letter = Some(token),
            (Phase::Asking | Phase::Waiting, Message::PushedRevocation) => self.it().revoked = true,
            (Phase::Holding, Message::PushedRevocation) => self.lose(),
            (Phase::Quitting, Message::HasQuit) => self.hold_handed(),
            (Phase::Holding | Phase::Lost, Message::Renewed { term, newest }) => self.renewed(term, newest),
            (Phase::Holding, Message::NotRenewed) => self.lose(),
            (Phase::Lost, Message::NotRenewed) => self.it().renewing = false,
            (Phase::Releasing, Message::Handed(token)) => self.handed(token),
            (Phase::Releasing, Message::HandedToRow { token, count }) => self.handed_to_row(token, count),
            (Phase::Releasing, Message::NotHanded) => self.not_handed(true),
            (Phase::Releasing, Message::Queued) => self.not_handed(false),
            (Phase::Releasing, Message::Released(found)) => self.released(found),
            (Phase::Undoing, Message::Left(found)) => self.undone(found),
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
            Some(_) if age + DRIFT < TERM && self.is_handed() => self.send_ask(),
            Some(_) if age + DRIFT < TERM => {
                self.sights.note(Sight::PushUsed);
                self.serve();
                self.hold(token, TERM, age);
            }
            _ => {}
        }
    }

    /// A holder of this process hands it the lock, or is about to. What it did not ask for since then does not count.
    fn is_handed(&mut self) -> bool {
        self.rules.chosen_asks_again && self.it().place.is_handed()
    }

    pub(crate) fn look_at_news(&mut self) {
        let rules = *self.rules;
        let it = self.it();
        let Place::Granted { token, row, .. } = it.place else { return };
        // The hand-over has taken out whom it named, if that one stood in the queue then.
        let before = it.counter.is_some_and(|counter| counter < token) || !rules.taken_out_by_counter;
        if row.is_none() {
            if it.asked && !before && rules.lost_hand_over_is_declined {
                // Who asked behind it and did not find itself at the server has lost it.
                it.place = Place::Waiting;
                return self.send_ask();
            }
            return self.hold_handed();
        }
        let named = it.was_first;
        let may_stand_in_queue = if it.asked { !named || !before } else { !named && it.uncertain };
        if !may_stand_in_queue || !rules.members_quit {
            return self.hold_handed();
        }
        it.phase = Phase::Quitting;
        it.age = 0;
        it.send(Request::Quit);
        self.sights.note(Sight::HasQuit);
    }

    fn hold_handed(&mut self) {
        if let Place::Granted { token, age, row } = self.it().place {
            self.sights.note(if row.is_some() { Sight::TurnTaken } else { Sight::HandOverUsed });
            self.it().turn = row;
            self.hold(token, TTL, age);
        }
    }

    /// Makes a guard of a grant. One that is over already is given back at once.
    pub(crate) fn hold(&mut self, token: u8, term: u8, age: u8) {
        let drift = if self.rules.drift { DRIFT } else { 0 };
        let used = self.state.used;
        let newest = self.state.newest_used();
        let it = self.it();
        let (floor, left) = (it.floor, term.saturating_sub(drift + age));
        let overslept = left == 0 && (it.uncertain || it.turn.is_some() && it.asked);
        it.forget();
        it.age = 0;
        if it.place != Place::Served {
            it.place = Place::None;
        }
        it.uncertain = false;
        it.token = token;
        if left == 0 || it.revoked {
            it.phase = Phase::Lost;
            self.state.overslept |= overslept;
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
        if let Place::Granted { row: Some(turn), .. } = self.it().place {
            return self.give_up_turn(turn);
        }
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
        it.turn = None;
        it.value = 0;
        it.also = None;
        it.second = false;
        it.rows = 0;
        it.to = None;
        it.repeated = false;
        it.last = false;
        it.uncertain = false;
        it.asks = if it.lives > 0 { it.asks } else { 0 };
        it.renewals = 0;
    }

    // --- holding -----------------------------------------------------------------------------------------------

    pub(crate) fn renew(&mut self) {
        let me = self.me;
        let it = self.it();
        it.renewals -= 1;
        // The last one asks for more, as `extend_to` does.
        let term = if it.renewals == 0 { LONG } else { TTL };
        it.renewing = true;
        it.age = 0;
        let (value, turn) = (it.identity(me), it.turn);
        let newest = turn.map_or(it.token, |turn| turn.newest);
        it.send(Request::Renew { value, term, newest });
        if term > TTL {
            // The others did not ask for so long a term.
            self.state.close_row(turn);
        }
    }

    fn renewed(&mut self, term: u8, newest: bool) {
        let drift = if self.rules.drift { DRIFT } else { 0 };
        let from_send = self.rules.grant_from_send;
        let it = self.it();
        it.renewing = false;
        let age = if from_send { it.age } else { 0 };
        it.age = 0;
        let left = term.saturating_sub(drift + age);
        self.row_renewed(age, term);
        if self.it().phase == Phase::Lost {
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
        let turn = self.it().turn;
        self.state.close_row(turn);
        self.it().lose();
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
                it.repeated = true;
                it.send(match it.to {
                    Some(to) => Request::HandOver { from: it.value, to },
                    None => Request::Release(it.giving()),
                });
            }
            Phase::Quitting => self.hold_handed(),
            Phase::Undoing => {
                it.last = false;
                it.send(Request::Leave);
            }
            _ => {}
        }
    }
}
