//! The waiters of this process for one name. They share one contender at the server: only the first of them asks
//! there, the others wait here, and a holder of this process hands the lock to one or a row of them in one round trip.
//!
//! Whatever is said here is a shortcut. A waiter that was chosen and hears no more simply asks the server, which
//! knows it by the same identity if it was chosen alone.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use super::row::Member;
use super::seat::{HandOver, Left, News, Seat, Served};
use crate::backend::{Request, lock};
use crate::clock::Moment;
use crate::{Holder, Name};

/// How many turns a lock stays in one process while another one waits.
const TURNS: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Cohorts(Mutex<HashMap<Name, Cohort>>);

#[derive(Debug, Default)]
struct Cohort {
    seats: VecDeque<Arc<Seat>>,
    /// Holders that others of this process have handed the lock to.
    heirs: usize,
    /// The holder that the one who asks saw last.
    seen: Option<Holder>,
}

impl Cohorts {
    /// Takes a seat behind those who wait already.
    pub(super) fn join(self: &Arc<Self>, request: &Request, value: &Arc<str>) -> Membership {
        let (name, seat) = (request.name.clone(), Arc::new(Seat::new(request, value)));
        lock(&self.0).entry(name.clone()).or_default().seats.push_back(seat.clone());
        Membership { cohorts: self.clone(), name, seat }
    }

    /// Counts a holder that another one of this process has handed a lock to, for as long as it has it.
    pub(super) fn count_heir(self: &Arc<Self>, name: &Name) -> Heir {
        lock(&self.0).entry(name.clone()).or_default().heirs += 1;
        Heir { cohorts: self.clone(), name: name.clone() }
    }

    /// Whether other tasks of this process want a lock that one of them gives back, or have just had it.
    pub(super) fn want(&self, name: &Name) -> bool {
        lock(&self.0).get(name).is_some_and(|cohort| cohort.heirs > 1 || !cohort.seats.is_empty())
    }

    /// Lets the first who waits ask the server: no holder of this process hands it the lock.
    pub(super) fn prompt(&self, name: &Name) {
        if let Some(first) = lock(&self.0).get(name).and_then(|cohort| cohort.seats.front()) {
            first.prompt();
        }
    }

    /// Chooses the waiters that a holder hands the lock to, by how many turns it has had in this process: the first one that
    /// waits now, and those behind it that want it for as long.
    pub(super) fn choose(&self, name: &Name, handed: usize) -> Option<Choice> {
        let names = lock(&self.0);
        if names.is_empty() {
            return None;
        }
        let cohort = names.get(name)?;
        let mut seats: Vec<Arc<Seat>> = Vec::new();
        for seat in &cohort.seats {
            let alike = seats.first().is_none_or(|first| first.ttl == seat.ttl);
            if seats.len() >= TURNS || !alike && seat.waits() {
                break;
            }
            if alike && seat.choose(seats.is_empty()) {
                seats.push(seat.clone());
            }
        }
        if let [only] = &seats[..]
            && !only.choose_alone()
        {
            // It left in this very moment.
            drop(names);
            return self.choose(name, handed);
        }
        (!seats.is_empty()).then_some(Choice { seats, turns: TURNS.saturating_sub(handed), handed })
    }
}

/// Waiters that a holder is about to hand the lock to. Dropped without an outcome, the first of them that is left asks the server.
#[derive(Debug)]
pub(super) struct Choice {
    seats: Vec<Arc<Seat>>,
    /// How many turns are left to this process if another one waits.
    pub(super) turns: usize,
    handed: usize,
}

impl Choice {
    pub(super) fn first(&self) -> &Arc<Seat> {
        &self.seats[0]
    }

    pub(super) fn len(&self) -> usize {
        self.seats.len()
    }

    /// Tells the only waiter that it has the lock; `false` if it is gone and the lock has to go elsewhere.
    pub(super) fn granted(self, token: i64, sent: Moment) -> bool {
        let handed = self.before(1) + 1;
        self.first().grant(HandOver { token, sent, handed, row: None })
    }

    /// Of how many turns the first is the next, if they are so many: more than were left means that nobody else waits, and
    /// they are counted anew.
    fn before(&self, count: usize) -> usize {
        if count > self.turns { 0 } else { self.handed }
    }

    /// The members of a row that got `count` tokens. Who got none waits on.
    pub(super) fn line_up(mut self, token: i64, count: usize) -> Vec<Member> {
        let mut seats = std::mem::take(&mut self.seats);
        if let Some(first) = seats.first() {
            first.hear();
        }
        seats.drain(count.min(seats.len())..).for_each(|seat| seat.wait_on());
        let tokens = (token..).zip(self.before(count) + 1..);
        seats.into_iter().zip(tokens).map(|(seat, (token, handed))| Member { seat, token, handed }).collect()
    }
}

impl Drop for Choice {
    fn drop(&mut self) {
        let mut seats = self.seats.iter();
        // The first that is still there.
        let _ = seats.find(|seat| seat.ask());
        seats.for_each(|seat| seat.wait_on());
    }
}

/// A seat, for as long as its waiter waits.
#[derive(Debug)]
pub(super) struct Membership {
    cohorts: Arc<Cohorts>,
    name: Name,
    seat: Arc<Seat>,
}

impl Membership {
    /// Whether this is the one that asks at the server.
    pub(super) fn is_first(&self) -> bool {
        lock(&self.cohorts.0)
            .get(&self.name)
            .and_then(|cohort| cohort.seats.front())
            .is_some_and(|first| Arc::ptr_eq(first, &self.seat))
    }

    /// Whether tasks of this process hand the lock to each other now.
    pub(super) fn is_lively(&self) -> bool {
        lock(&self.cohorts.0).get(&self.name).is_some_and(|cohort| cohort.heirs > 0)
    }

    /// Whether a holder has chosen this one, and it need not ask.
    pub(super) fn is_chosen(&self) -> bool {
        !self.seat.waits()
    }

    /// Waits for something to be said. May be dropped and called again; nothing is missed.
    pub(super) async fn news(&self) -> News {
        self.seat.news().await
    }

    /// Takes what a holder has handed over.
    pub(super) fn accept(&self) -> Served {
        self.seat.accept()
    }

    /// Does not take it, and waits on.
    pub(super) fn decline(&self) {
        self.seat.decline();
    }

    /// How often a holder has chosen it alone.
    pub(super) fn choices(&self) -> u32 {
        self.seat.choices()
    }

    /// Takes what the server has granted by its answer to a question that was asked when it had been chosen so often, or by a push.
    pub(super) fn serve(&self, choices: Option<u32>) -> Served {
        self.seat.serve(choices)
    }

    /// Whether the server may have it in the queue though it did not ask.
    pub(super) fn may_stand_in_queue(&self) -> bool {
        self.seat.may_stand_in_queue()
    }

    #[cfg(test)]
    pub(super) fn owner(&self) -> crate::Owner {
        self.seat.owner
    }

    #[cfg(test)]
    pub(super) fn signal(&self) -> &crate::backend::Signal {
        &self.seat.signal
    }

    /// Notes for all who wait here whom the server says holds the lock.
    pub(super) fn saw(&self, holder: &Holder) {
        if let Some(cohort) = lock(&self.cohorts.0).get_mut(&self.name) {
            cohort.seen = Some(holder.clone());
        }
    }

    /// Whom the one that asks saw last.
    pub(super) fn seen(&self) -> Option<Holder> {
        lock(&self.cohorts.0).get(&self.name)?.seen.clone()
    }

    /// Gives the seat up.
    pub(super) fn leave(self) -> Left {
        self.seat.leave()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.seat.leave();
        let mut names = lock(&self.cohorts.0);
        let Some(cohort) = names.get_mut(&self.name) else { return };
        let first_left = cohort.seats.front().is_some_and(|first| Arc::ptr_eq(first, &self.seat));
        cohort.seats.retain(|seat| !Arc::ptr_eq(seat, &self.seat));
        match cohort.seats.front() {
            // Only a new first is told: news start the pause of the one that asks anew.
            Some(first) if first_left => first.notify(),
            Some(_) => {}
            None if cohort.heirs > 0 => {}
            None => drop(names.remove(&self.name)),
        }
    }
}

/// A holder that another one has handed the lock to.
#[derive(Debug)]
pub(super) struct Heir {
    cohorts: Arc<Cohorts>,
    name: Name,
}

impl Drop for Heir {
    fn drop(&mut self) {
        let mut names = lock(&self.cohorts.0);
        let Some(cohort) = names.get_mut(&self.name) else { return };
        cohort.heirs -= 1;
        if cohort.heirs == 0 && cohort.seats.is_empty() {
            names.remove(&self.name);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;

    fn cohorts() -> (Arc<Cohorts>, Name) {
        (Arc::default(), Name::new("x").unwrap())
    }

    pub(in super::super) fn sit(cohorts: &Arc<Cohorts>, ttl: u64) -> Membership {
        let (name, ttl) = (Name::new("x").unwrap(), Duration::from_secs(ttl));
        let request = Request::new(name, ttl, "".into(), Arc::default());
        cohorts.join(&request, &super::super::record::value(request.owner, "0123456789abcdef", "").into())
    }

    fn at(second: u64) -> Moment {
        Moment::at(Duration::from_secs(second))
    }

    #[tokio::test]
    async fn waiters_are_chosen_in_order_and_the_next_moves_up() {
        let (cohorts, name) = cohorts();
        assert!(cohorts.choose(&name, 0).is_none());
        let (one, two) = (sit(&cohorts, 1), sit(&cohorts, 2));
        assert!(one.is_first() && !two.is_first());
        let choice = cohorts.choose(&name, 0).unwrap();
        assert!(
            choice.len() == 1 && Arc::ptr_eq(choice.first(), &one.seat),
            "the other one wants another ttl"
        );
        assert!(choice.granted(7, at(1)));
        let News::Granted(HandOver { token: 7, handed: 1, row: None, .. }) = one.news().await else {
            panic!()
        };
        drop(one);
        assert!(matches!(two.news().await, News::Moved) && two.is_first());
        drop(two);
        let heirs = [cohorts.count_heir(&name), cohorts.count_heir(&name)];
        drop(sit(&cohorts, 1));
        assert!(cohorts.want(&name) && sit(&cohorts, 1).is_lively());
        let [one, another] = heirs;
        drop(another);
        assert!(!cohorts.want(&name), "nobody but the one who gives it back");
        drop(one);
        assert!(lock(&cohorts.0).is_empty(), "an empty cohort leaves nothing behind");
    }

    #[tokio::test]
    async fn a_choice_without_an_outcome_makes_the_first_waiter_ask() {
        let (cohorts, name) = cohorts();
        let one = sit(&cohorts, 1);
        drop(cohorts.choose(&name, 0).unwrap());
        assert!(matches!(one.news().await, News::Ask));
        assert!(cohorts.choose(&name, 0).is_some(), "and it can be chosen again");
        assert!(matches!(one.leave(), Left::Chosen), "what it was chosen for may still arrive");
        let two = [sit(&cohorts, 2), sit(&cohorts, 2)];
        drop(cohorts.choose(&name, 0).unwrap());
        assert!(matches!(two[0].news().await, News::Ask));
        assert!(two.into_iter().rev().all(|seat| !seat.is_chosen()), "they wait on");
        let [one, two] = [sit(&cohorts, 2), sit(&cohorts, 2)];
        let choice = cohorts.choose(&name, 0).unwrap();
        drop(one);
        drop(choice);
        assert!(matches!(two.news().await, News::Ask), "if the first has left, the next one asks");
    }

    #[test]
    fn s34_the_first_of_a_row_may_be_named_at_the_server_until_the_row_has_the_lock() {
        let (cohorts, name) = cohorts();
        let row = || [sit(&cohorts, 1), sit(&cohorts, 1)];
        let ([one, two], choice) = (row(), cohorts.choose(&name, 0).unwrap());
        assert!(matches!(one.leave(), Left::Chosen), "the request may put it into the queue");
        assert!(matches!(two.leave(), Left::Nothing));
        drop(choice);
        let [one, two] = row();
        drop(cohorts.choose(&name, 0).unwrap());
        assert!(matches!(one.leave(), Left::Chosen), "or has done so");
        assert!(matches!(two.leave(), Left::Nothing));
        let ([one, _two], choice) = (row(), cohorts.choose(&name, 0).unwrap());
        let _members = choice.line_up(7, 2);
        assert!(matches!(one.leave(), Left::Nothing), "or has taken it out");
    }

    #[test]
    fn nobody_is_chosen_twice_and_what_was_not_heard_is_remembered() {
        let (cohorts, name) = cohorts();
        let one = sit(&cohorts, 1);
        let choice = cohorts.choose(&name, 0).unwrap();
        assert!(cohorts.choose(&name, 0).is_none());
        drop(choice);
        let two = sit(&cohorts, 1);
        let choice = cohorts.choose(&name, 0).unwrap();
        assert!(choice.len() == 2 && cohorts.choose(&name, 0).is_none());
        assert!(matches!(one.leave(), Left::Chosen), "the server may have it for the holder yet");
        assert!(matches!(two.leave(), Left::Nothing));
        drop(choice);
        assert!(cohorts.choose(&name, 0).is_none());
    }

    #[test]
    fn a_lock_for_a_waiter_that_left_comes_back() {
        let (cohorts, name) = cohorts();
        let one = sit(&cohorts, 1);
        let choice = cohorts.choose(&name, 0).unwrap();
        assert!(matches!(one.leave(), Left::Chosen), "it may get the lock yet");
        assert!(!choice.granted(7, at(1)));
    }

    #[test]
    fn one_that_is_chosen_takes_only_what_it_has_asked_for_since() {
        let (cohorts, name) = cohorts();
        let one = sit(&cohorts, 1);
        let before = Some(one.choices());
        let choice = cohorts.choose(&name, 0).unwrap();
        assert!(matches!(one.serve(before), Served::AskAgain), "a holder has had the lock since");
        assert!(matches!(one.serve(None), Served::AskAgain), "and it is not known when a push was made");
        assert!(choice.granted(7, at(1)));
        assert!(matches!(one.serve(before), Served::AskAgain));
        assert!(matches!(one.serve(Some(one.choices())), Served::Now));
        drop(one);

        let asks = sit(&cohorts, 1);
        let choice = cohorts.choose(&name, 0).unwrap();
        assert!(matches!(asks.serve(Some(asks.choices())), Served::Now), "also if it hears no more of it");
        drop(asks);
        assert!(choice.granted(7, at(1)), "it is the same lock: nothing has to be undone");

        let other = sit(&cohorts, 1);
        drop(cohorts.choose(&name, 0).unwrap());
        assert!(matches!(other.serve(None), Served::Now), "it came to nothing");
    }

    #[test]
    fn another_process_gets_its_turn() {
        let (cohorts, name) = cohorts();
        let _seats: Vec<_> = (0..80).map(|_| sit(&cohorts, 1)).collect();
        let chosen =
            |handed| cohorts.choose(&name, handed).map(|choice| (choice.turns, choice.len())).unwrap();
        assert_eq!(chosen(0), (TURNS, 16));
        assert_eq!(chosen(TURNS - 3), (3, 16), "the server knows whether it is a way around that");
        assert_eq!(chosen(TURNS), (0, 16));
    }
}
