//! A row: waiters of this process that one answered request has granted a lock to, one after the other. The server keeps it
//! for all of them under one identity, and each has a token of its own.
//!
//! Only who has the lock hands it on, and nobody gives it back before the row is closed: from then on no member gets a turn. So
//! memory says which of them has it, and the server that one of them does. Tokens of closed rows are never used.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;

use super::inbox::LetterBox;
use super::record;
use super::seat::{HandOver, Seat};
use crate::backend::lock;
use crate::clock::Moment;
use crate::{Loss, Owner};

/// How long the answer to a hand-over stands for what the server would say now.
pub(super) const CERTAIN: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct Row {
    /// Nobody else ever has it, no member either: what a member undoes of its own attempt leaves the row alone.
    pub(super) id: Owner,
    pub(super) ttl: Duration,
    /// Whom the hand-over named, and when it was sent.
    first: Option<Owner>,
    began: Moment,
    /// For revocations, which go to whoever has the lock then.
    letters: LetterBox,
    state: Mutex<State>,
    /// Somebody will tell the server who has it when that time is over.
    telling: AtomicBool,
    /// Whether the lock was still the row's when it was given back.
    given_back: watch::Sender<Option<bool>>,
}

#[derive(Debug)]
struct State {
    next: VecDeque<Member>,
    /// When the last answered request was sent that set the server's timer.
    sent: Moment,
    /// Who has the lock, or had it last.
    turn: Option<Turn>,
    /// The one that has the lock gives it back.
    giving: bool,
}

#[derive(Debug)]
struct Turn {
    owner: Owner,
    value: Arc<str>,
    token: i64,
}

/// One that has not had its turn.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) seat: Arc<Seat>,
    pub(super) token: i64,
    pub(super) handed: usize,
}

impl Row {
    /// The row of a request sent at `sent` that was answered. Its letter box was opened before.
    pub(super) fn new(letters: LetterBox, ttl: Duration, members: Vec<Member>, sent: Moment) -> Arc<Self> {
        let (id, first) = (letters.owner(), members.first().map(|member| member.seat.owner));
        let state = Mutex::new(State { next: members.into(), sent, turn: None, giving: false });
        let (telling, given_back) = (AtomicBool::default(), watch::Sender::new(None));
        Arc::new(Self { id, ttl, first, began: sent, letters, state, telling, given_back })
    }

    /// Whether the hand-over has named this member.
    pub(super) fn has_named(&self, owner: Owner) -> bool {
        self.first == Some(owner)
    }

    /// Gives the first member its turn that is still there, and returns its token.
    pub(super) fn begin(self: &Arc<Self>) -> Option<i64> {
        self.turn(&mut lock(&self.state))
    }

    /// Gives the next member its turn, and returns its token. `None` if nobody is left, or too little validity is, or the lock
    /// is lost: then the row is closed, and the lock is the caller's to give back.
    pub(super) fn pass(self: &Arc<Self>, now: Moment) -> Option<i64> {
        let mut state = lock(&self.state);
        let fresh = now.since(state.sent) <= self.ttl / 2;
        let token = if fresh { self.turn(&mut state) } else { None };
        if token.is_none() {
            state.give();
        }
        token
    }

    fn turn(self: &Arc<Self>, state: &mut State) -> Option<i64> {
        // Who was served by the server itself shows that the row has lost the lock.
        if state.next.iter().any(|member| member.seat.is_served()) {
            return None;
        }
        while let Some(Member { seat, token, handed }) = state.next.pop_front() {
            if !self.letters.forward(&seat.signal) {
                seat.wait_on();
                return None;
            }
            if seat.take_turn(HandOver { token, sent: state.sent, handed, row: Some(self.clone()) }) {
                state.turn = Some(Turn { owner: seat.owner, value: seat.value.clone(), token });
                return Some(token);
            }
        }
        None
    }

    /// What the lock's value is, by whose turn it is.
    pub(super) fn value(&self) -> Option<String> {
        let state = lock(&self.state);
        let Turn { owner, value, token } = state.turn.as_ref()?;
        Some(record::with_token(&record::in_row(self.id, *owner, value), *token))
    }

    /// Whether the server has just said that the lock is the row's.
    pub(super) fn is_certain(&self, now: Moment) -> bool {
        now.since(self.began) <= CERTAIN
    }

    /// Whether the caller has to see to it that others are told, when nothing is certain any more. One does.
    pub(super) fn has_to_tell(&self) -> bool {
        !self.telling.swap(true, Ordering::Relaxed)
    }

    /// Lets nobody else have a turn.
    pub(super) fn close(&self) {
        lock(&self.state).close();
    }

    /// The same, for one that makes the lock its own, or gives it back, by a request to come.
    pub(super) fn give(&self) {
        lock(&self.state).give();
    }

    /// Whether somebody does.
    pub(super) fn is_giving(&self) -> bool {
        lock(&self.state).giving
    }

    /// Notes what that came to.
    pub(super) fn given_back(&self, ours: bool) {
        self.given_back.send_if_modified(|given_back| {
            let first = given_back.is_none();
            given_back.get_or_insert(ours);
            first
        });
    }

    /// Whether the lock was the row's when it was given back, if it is. A row's identity never comes back: what was true then
    /// was true all the time before.
    pub(super) async fn was_given_back(&self) -> Option<bool> {
        if !self.is_giving() {
            return None;
        }
        self.given_back.subscribe().wait_for(Option::is_some).await.ok().and_then(|given_back| *given_back)
    }

    /// The lock is not the row's any more.
    pub(super) fn lose(&self, why: Loss) {
        self.close();
        self.letters.lose(why);
    }

    /// A request of one that had the lock has set the server's timer.
    pub(super) fn renewed(&self, sent: Moment, term: Duration, now: Moment) {
        let mut state = lock(&self.state);
        // What is over stays over.
        if term >= self.ttl && now < state.sent.plus(self.ttl) {
            state.sent = state.sent.max(sent);
        }
    }
}

impl State {
    fn give(&mut self) {
        self.giving = true;
        self.close();
    }

    fn close(&mut self) {
        self.next.drain(..).for_each(|member| member.seat.wait_on());
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::super::cohort::tests::sit;
    use super::super::cohort::{Cohorts, Membership};
    use super::super::inbox::Inbox;
    use super::super::resp::Value;
    use super::super::seat::{Left, News, Served};
    use super::*;
    use crate::Name;

    const TTL: Duration = Duration::from_secs(10);

    fn at(second: u64) -> Moment {
        Moment::at(Duration::from_secs(second))
    }

    /// A row of three, sent at second 100, with tokens from 7 on.
    fn row() -> (Arc<Inbox>, Arc<Row>, [Membership; 3]) {
        let (cohorts, inbox) = (Arc::<Cohorts>::default(), Arc::<Inbox>::default());
        let seats = [0; 3].map(|_| sit(&cohorts, TTL.as_secs()));
        let choice = cohorts.choose(&Name::new("x").unwrap(), 2).unwrap();
        let letters = inbox.open(Owner::fresh(), Arc::default());
        let row = Row::new(letters, TTL, choice.line_up(7, 3), at(100));
        (inbox, row, seats)
    }

    async fn turn(seat: &Membership) -> (i64, Moment, usize) {
        match seat.news().await {
            News::Granted(HandOver { token, sent, handed, .. }) => (token, sent, handed),
            news => panic!("{news:?}"),
        }
    }

    #[tokio::test]
    async fn members_have_their_turns_in_order_and_nobody_comes_twice() {
        let (_inbox, row, seats) = row();
        assert!(row.begin().is_some());
        assert_eq!(turn(&seats[0]).await, (7, at(100), 3));
        assert!(seats[1].is_chosen() && seats[2].is_chosen());
        assert_eq!(row.pass(at(101)), Some(8));
        let value = row.value().unwrap();
        assert!(value.starts_with(&row.id.to_string()) && value.ends_with("\"token\":8}"));
        assert_eq!(turn(&seats[1]).await, (8, at(100), 4));
        row.renewed(at(103), TTL, at(104));
        assert!(row.pass(at(108)).is_some(), "by the renewal it is young");
        assert_eq!(turn(&seats[2]).await, (9, at(103), 5));
        assert!(!row.is_giving() && row.pass(at(108)).is_none() && row.is_giving());
    }

    #[tokio::test]
    async fn nobody_has_a_turn_by_a_lease_that_is_half_over() {
        let begun = || {
            let (inbox, row, seats) = row();
            assert!(row.begin().is_some());
            (inbox, row, seats)
        };
        let (_inbox, row, _seats) = begun();
        assert!(row.pass(at(105)).is_some());
        let (_inbox, row, seats) = begun();
        assert!(row.pass(at(106)).is_none());
        assert!(seats[1..].iter().all(|seat| !seat.is_chosen()), "they wait on");
        let (_inbox, row, _seats) = begun();
        row.renewed(at(104), TTL - Duration::from_secs(1), at(104));
        assert!(row.pass(at(106)).is_none(), "a shorter term says nothing about the ttl of others");
        let (_inbox, row, _seats) = begun();
        row.renewed(at(111), TTL, at(112));
        assert!(row.pass(at(112)).is_none(), "what is over is not renewed");
    }

    #[test]
    fn a_hand_over_names_the_first_alone() {
        let (_inbox, row, seats) = row();
        assert_eq!(seats.map(|seat| row.has_named(seat.owner())), [true, false, false]);
    }

    #[tokio::test]
    async fn who_has_left_is_skipped_and_its_token_with_it() {
        let (_inbox, row, seats) = row();
        let [first, second, third] = seats;
        assert!(row.begin().is_some());
        assert!(matches!(second.leave(), Left::Nothing), "nothing at the server names it");
        assert!(
            matches!(first.leave(), Left::Turn { turn, chosen: false } if turn.token == 7),
            "which has to go on"
        );
        assert!(row.pass(at(101)).is_some());
        assert_eq!(turn(&third).await.0, 9);
    }

    #[tokio::test]
    async fn a_row_that_has_lost_the_lock_gives_nobody_a_turn() {
        let (_inbox, row, seats) = row();
        assert!(row.begin().is_some());
        let News::Granted(HandOver { row: Some(_), .. }) = seats[0].news().await else { panic!() };
        row.lose(Loss::Taken);
        assert!(row.pass(at(101)).is_none() && seats[1..].iter().all(|seat| !seat.is_chosen()));
    }

    #[test]
    fn a_member_that_the_server_has_served_ends_the_row() {
        let (_inbox, one, seats) = row();
        assert!(one.begin().is_some());
        assert!(matches!(seats[2].serve(None), Served::Now));
        assert!(one.pass(at(101)).is_none() && !seats[1].is_chosen());
        let (_inbox, other, seats) = row();
        assert!(matches!(seats[0].serve(None), Served::Now));
        assert!(other.begin().is_none(), "also before it begins");
        let (_inbox, other, seats) = row();
        assert!(other.begin().is_some());
        assert!(
            matches!(seats[0].serve(None), Served::BesideTurn(row) if Arc::ptr_eq(&row, &other)),
            "whose turn it was gives it back"
        );
    }

    #[tokio::test]
    async fn a_revocation_reaches_who_has_the_lock_then_and_ends_the_row() {
        let (inbox, row, seats) = row();
        let message = format!("revoked {} stuck", row.id);
        let push = ["message", "channel", &message].map(|text| Value::Text(text.into()));
        assert!(row.begin().is_some() && row.pass(at(101)).is_some());
        inbox.deliver(&push);
        let lost: Vec<_> = seats.iter().map(|seat| seat.signal().loss().is_some()).collect();
        assert_eq!(lost, [false, true, false]);
        assert!(row.pass(at(101)).is_none() && !seats[2].is_chosen());
        let (inbox, early, _seats) = self::row();
        let message = format!("revoked {} stuck", early.id);
        inbox.deliver(&["message", "channel", &message].map(|text| Value::Text(text.into())));
        assert!(
            early.begin().is_none(),
            "nobody has a turn if it was revoked before the answer was looked at"
        );
    }

    #[tokio::test]
    async fn a_row_names_whose_turn_it_is_and_what_giving_back_came_to() {
        let (_inbox, row, _seats) = row();
        assert!(row.value().is_none(), "nobody's yet");
        assert!(row.begin() == Some(7) && row.pass(at(101)) == Some(8));
        assert!(row.value().unwrap().ends_with("\"token\":8}"));
        assert_eq!(row.was_given_back().await, None);
        row.give();
        row.given_back(true);
        row.given_back(false);
        assert_eq!(row.was_given_back().await, Some(true), "only the first answer says what was");
    }

    #[test]
    fn a_hand_over_is_certain_for_a_moment_and_one_tells_others_afterwards() {
        let (_inbox, row, _seats) = row();
        let later = |milliseconds| at(100).plus(Duration::from_millis(milliseconds));
        assert!(row.is_certain(later(10)) && !row.is_certain(later(11)));
        row.renewed(later(20), TTL, later(21));
        assert!(!row.is_certain(later(21)), "nobody would tell others");
        assert!(row.has_to_tell() && !row.has_to_tell());
    }
}
