//! Rows, as in `row.rs`, `seat.rs` and `hold.rs`: waiters of a process that one answer has granted the lock to, one after the
//! other. The server has it under an identity of the row; memory says whose turn it is.

use crate::client::Client;
use crate::search::{Sight, Sights};
use crate::state::{Heirs, Line, Owner, Phase, Place, ROWS, Request, Row, RowLetter, State, TTL, Turn};

impl Heirs {
    /// The first one first.
    fn lined_up(self) -> impl Iterator<Item = u8> {
        let behind = (0..ROWS).filter(move |member| self.members >> member & 1 == 1 && *member != self.first);
        std::iter::once(self.first).chain(behind)
    }
}

impl Owner {
    /// What the server has its lock under.
    pub(crate) fn identity(&self, me: usize) -> u8 {
        self.turn.map_or(u8::try_from(me).unwrap_or(0), |turn| turn.row)
    }

    /// It has no place in a row any more.
    pub(crate) fn wait_on(&mut self) {
        match self.place {
            Place::InRow => self.place = Place::Waiting,
            Place::Served => self.place = Place::None,
            _ => {}
        }
    }
}

impl State {
    /// The row that has a turn's lock, if somebody is left in it.
    fn row_of(&self, turn: Option<Turn>) -> Option<Row> {
        self.row.filter(|row| Some(row.turn) == turn)
    }

    /// Lets nobody else have a turn.
    pub(crate) fn close_row(&mut self, turn: Option<Turn>) {
        if let Some(row) = self.row_of(turn) {
            row.next.iter().for_each(|(member, _)| self.owners[usize::from(member)].wait_on());
            self.row = None;
        }
    }

    /// Gives the next member its turn that is still there; `false`, and nobody is left, if nobody is.
    fn take_turn(&mut self, turn: Turn, sights: &mut Sights, from_send: bool) -> bool {
        let Some(mut row) = self.row_of(Some(turn)) else { return false };
        let revoked = self.row_letter == Some(RowLetter { row: turn.row, read: true });
        let served =
            row.next.iter().any(|(member, _)| self.owners[usize::from(member)].place == Place::Served);
        if served {
            sights.note(Sight::ServedMemberEndsRow);
        }
        while let Some((member, token)) = row.next.pop().filter(|_| !revoked && !served) {
            let owner = &mut self.owners[usize::from(member)];
            if owner.place == Place::InRow {
                let age = if from_send { row.age } else { 0 };
                owner.place = Place::Granted { token, age, row: Some(turn) };
                self.row = Some(row).filter(|row| !row.next.is_empty());
                return true;
            }
        }
        self.close_row(Some(turn));
        false
    }
}

impl Client<'_> {
    pub(crate) fn choose_row(&mut self, to: Heirs) {
        for member in to.lined_up() {
            let first = to.first == member;
            let member = self.other(member);
            member.place = Place::InRow;
            member.uncertain |= first;
            member.was_first = first;
        }
    }

    /// The answer to a hand-over: there is a row.
    pub(crate) fn handed_to_row(&mut self, token: u8, count: u8) {
        let (Some(to), age) = (self.it().to, self.it().age) else { return };
        let turn = Turn { row: to.row, newest: token + count - 1 };
        self.other(to.first).uncertain = false;
        let mut row = Row { turn, next: Line::EMPTY, age: age.min(TTL) };
        for (index, member) in (0u8..).zip(to.lined_up()) {
            if index < count {
                row.next.push((member, token + index));
            } else {
                self.other(member).wait_on();
            }
        }
        self.state.row = Some(row);
        if self.take_turn(turn) {
            self.go();
        } else {
            self.give_back_row(turn);
        }
    }

    fn take_turn(&mut self, turn: Turn) -> bool {
        self.state.take_turn(turn, self.sights, self.rules.row_from_send)
    }

    /// Nobody of the row is left: it is the caller's to give back.
    fn give_back_row(&mut self, turn: Turn) {
        let it = self.it();
        it.forget();
        it.phase = Phase::Giving;
        it.value = turn.row;
        it.to = None;
        it.age = 0;
    }

    /// The choice has no outcome: who is left finds out by itself.
    pub(crate) fn drop_row(&mut self, to: Heirs) {
        let here = |member: &u8| self.state.owners[usize::from(*member)].place == Place::InRow;
        if let Some(first) = to.lined_up().find(here) {
            // It is told to ask.
            self.other(first).asks += 1;
        }
        for member in to.lined_up() {
            self.other(member).wait_on();
        }
    }

    /// Gives the next one its turn, in memory; or, if nobody is left, begins to give the lock back.
    pub(crate) fn pass(&mut self) {
        let Some(turn) = self.it().turn else { return };
        if self.take_turn(turn) {
            self.sights.note(Sight::TurnPassed);
            if self.rules.passed_is_not_given_back {
                return self.go();
            }
        }
        self.give_back_row(turn);
    }

    /// One that gives up as its turn has come. What it has asked for itself is undone beside it.
    pub(crate) fn give_up_turn(&mut self, turn: Turn) {
        self.sights.note(Sight::TurnGivenUp);
        let it = self.it();
        let (asked, chosen) = (it.asked, it.uncertain);
        if (asked || chosen) && it.connected {
            it.send(Request::Leave);
        }
        it.place = Place::None;
        it.uncertain = false;
        it.forget();
        if !self.take_turn(turn) {
            self.give_back_row(turn);
        } else if asked || chosen {
            let it = self.it();
            it.phase = Phase::Undoing;
            it.age = 0;
            it.last = it.connected && !chosen;
        } else {
            self.go();
        }
    }

    /// Granted the lock by the server. If it was its turn, it gives back what the row has.
    pub(crate) fn serve(&mut self) {
        match self.it().place {
            Place::Granted { row: Some(turn), .. } => {
                self.state.close_row(Some(turn));
                self.it().place = Place::None;
                self.it().send(Request::Free(turn.row));
            }
            Place::InRow => self.it().place = Place::Served,
            _ => self.it().place = Place::None,
        }
    }

    /// A member has set the server's timer.
    pub(crate) fn row_renewed(&mut self, age: u8, term: u8) {
        if let Some(turn) = self.it().turn
            && let Some(row) = self.state.row.as_mut().filter(|row| row.turn == turn)
            && term >= TTL
            && row.age < TTL
        {
            row.age = row.age.min(age);
        }
    }
}

/// A revocation of what a row has reaches whoever has it then.
pub(crate) fn read_row_letter(state: &mut State) {
    let Some(letter) = &mut state.row_letter else { return };
    letter.read = true;
    let id = letter.row;
    for owner in &mut state.owners {
        match (owner.phase, owner.place, owner.turn) {
            (Phase::Holding, _, Some(turn)) if turn.row == id => owner.lose(),
            (_, Place::Granted { row: Some(turn), .. }, _) if turn.row == id => owner.revoked = true,
            _ => {}
        }
    }
}
