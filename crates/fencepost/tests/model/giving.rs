//! How a client gives a lock back, as in `hold.rs` and `cohort.rs`: to a waiter of its own process, or to the server.

use crate::client::Client;
use crate::search::Sight;
use crate::state::{Line, Phase, Place, Request, TTL};

impl Client<'_> {
    pub(crate) fn give_back(&mut self) {
        let me = u8::try_from(self.me).unwrap_or(0);
        let it = self.it();
        it.forget();
        it.phase = Phase::Giving;
        it.value = me;
    }

    pub(crate) fn release(&mut self) {
        let it = self.it();
        it.phase = Phase::Releasing;
        it.to = None;
        it.age = 0;
        it.send(Request::Release(it.value));
    }

    pub(crate) fn hand_over(&mut self, to: u8, last: bool) {
        self.other(to).place = Place::Chosen;
        let it = self.it();
        it.phase = Phase::Releasing;
        it.to = Some(to);
        it.last = last;
        it.age = 0;
        it.send(Request::HandOver { from: it.value, to, last });
    }

    pub(crate) fn handed(&mut self, token: u8) {
        let (Some(to), age) = (self.it().to, self.it().age) else { return };
        let heir = self.other(to);
        match heir.place {
            Place::Chosen => heir.place = Place::Granted { token, age: age.min(TTL) },
            Place::Left => {
                heir.place = Place::None;
                if self.rules.left_is_passed_on {
                    self.sights.note(Sight::PassedOnForOneThatLeft);
                    let it = self.it();
                    it.phase = Phase::Giving;
                    it.value = to;
                    it.to = None;
                    it.age = 0;
                    return;
                }
            }
            _ => {}
        }
        self.go();
    }

    pub(crate) fn not_handed(&mut self) {
        let Some(to) = self.it().to else { return };
        self.drop_choice(to);
        self.go();
    }

    /// The waiter has to find out by itself.
    fn drop_choice(&mut self, to: u8) {
        let heir = self.other(to);
        match heir.place {
            Place::Chosen => {
                heir.place = Place::Waiting;
                heir.uncertain = true;
            }
            Place::Left => heir.place = Place::None,
            _ => {}
        }
    }

    /// The caller drops the release; it goes on in the background, over another connection.
    pub(crate) fn abort_release(&mut self) {
        self.state.aborts -= 1;
        if let Some(to) = self.it().to {
            self.drop_choice(to);
        }
        self.orphan_requests();
        let me = u8::try_from(self.me).unwrap_or(0);
        let it = self.it();
        it.down = Line::EMPTY;
        it.phase = Phase::Giving;
        it.value = me;
        it.to = None;
        it.last = false;
        it.age = 0;
    }
}
