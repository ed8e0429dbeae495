//! How a client gives a lock back, as in `hold.rs` and `cohort.rs`: to waiters of its own process, or to the server.

use crate::client::Client;
use crate::search::Sight;
use crate::state::{Heirs, Line, Phase, Place, Request, TTL};

impl Client<'_> {
    pub(crate) fn give_back(&mut self) {
        let me = self.me;
        let turn = self.it().turn;
        self.state.close_row(turn);
        let it = self.it();
        it.forget();
        it.phase = Phase::Giving;
        it.value = it.identity(me);
    }

    pub(crate) fn release(&mut self) {
        let it = self.it();
        it.phase = Phase::Releasing;
        it.to = None;
        it.age = 0;
        it.send(Request::Release(it.giving()));
    }

    pub(crate) fn released(&mut self, found: bool) {
        let it = self.it();
        if found || it.second || it.also.is_none() {
            return self.go();
        }
        it.second = true;
        self.release();
        self.sights.note(Sight::RowGivenBackUnheard);
    }

    pub(crate) fn hand_over(&mut self, to: Heirs) {
        if to.count() > 1 {
            self.it().rows += 1;
            self.choose_row(to);
        } else {
            let heir = self.other(to.first);
            heir.place = Place::Chosen;
            heir.knew = false;
        }
        let it = self.it();
        it.phase = Phase::Releasing;
        it.to = Some(to);
        it.repeated = false;
        it.age = 0;
        it.send(Request::HandOver { from: it.value, to });
    }

    pub(crate) fn handed(&mut self, token: u8) {
        let (Some(to), age) = (self.it().to, self.it().age) else { return };
        let heir = self.other(to.first);
        match heir.place {
            Place::Chosen => heir.place = Place::Granted { token, age: age.min(TTL), row: None },
            Place::Left => {
                heir.place = Place::None;
                if self.rules.left_is_passed_on {
                    self.sights.note(Sight::PassedOnForOneThatLeft);
                    let it = self.it();
                    it.phase = Phase::Giving;
                    it.value = to.first;
                    it.to = None;
                    it.age = 0;
                    return;
                }
            }
            _ => {}
        }
        self.go();
    }

    /// `unfound` if the lock was not there.
    pub(crate) fn not_handed(&mut self, unfound: bool) {
        let Some(to) = self.it().to else { return };
        self.drop_choice(to);
        if unfound && to.count() > 1 && self.it().repeated {
            self.give_back_both(to);
        } else {
            self.go();
        }
    }

    /// The waiters have to find out by themselves.
    fn drop_choice(&mut self, to: Heirs) {
        if to.count() > 1 {
            return self.drop_row(to);
        }
        let heir = self.other(to.first);
        match heir.place {
            Place::Chosen => {
                heir.place = Place::Waiting;
                heir.uncertain = true;
                heir.asks += 1;
            }
            Place::Left => heir.place = Place::None,
            _ => {}
        }
    }

    /// The server may have it under the old identity or, later, under that of the row.
    fn give_back_both(&mut self, to: Heirs) {
        let rules = *self.rules;
        let it = self.it();
        it.phase = Phase::Giving;
        it.to = None;
        it.last = false;
        it.age = 0;
        it.also = Some(to.row).filter(|_| rules.unheard_row_is_given_back);
        if !rules.old_identity_first {
            (it.value, it.also) = (to.row, Some(it.value));
        }
    }

    /// The caller drops the release; it goes on in the background, over another connection.
    pub(crate) fn abort_release(&mut self) {
        self.state.aborts -= 1;
        let to = self.it().to;
        if let Some(to) = to {
            self.drop_choice(to);
        }
        self.orphan_requests();
        let it = self.it();
        it.down = Line::EMPTY;
        it.phase = Phase::Giving;
        it.to = None;
        it.last = false;
        it.second = false;
        it.age = 0;
        if let Some(to) = to.filter(|to| to.count() > 1) {
            self.give_back_both(to);
        }
    }
}
