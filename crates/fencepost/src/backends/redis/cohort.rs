//! The waiters of this process for one name. They share one contender at the server: only the first of them asks
//! there, the others wait here, and a holder of this process hands the lock to one of them in one round trip.
//!
//! Whatever is said here is a shortcut. A waiter that was chosen and hears no more simply asks the server, which
//! knows it by the same identity.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::lock;
use crate::clock::Moment;
use crate::{Holder, Name};

/// How often in a row a lock stays in one process while another one waits.
const TURNS: u32 = 16;

#[derive(Debug, Default)]
pub(super) struct Cohorts(Mutex<HashMap<Name, Cohort>>);

#[derive(Debug, Default)]
struct Cohort {
    seats: VecDeque<Arc<Seat>>,
    /// The holder that the one who asks saw last.
    seen: Option<Holder>,
}

/// One waiter.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) value: Arc<str>,
    pub(super) ttl: Duration,
    place: Mutex<Place>,
    news: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Waiting,
    /// Was chosen, and heard no more: should ask the server.
    Asking,
    /// A holder is about to hand the lock over.
    Chosen,
    /// Handed over, by a request sent then.
    Granted {
        token: i64,
        sent: Moment,
        handed: u32,
    },
    /// Has the lock by the server's own word.
    Served,
    /// Gave up.
    Left,
}

/// What a waiter learns here.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    Granted {
        token: i64,
        sent: Moment,
        /// How often in a row it stayed in this process.
        handed: u32,
    },
    /// Ask the server now.
    Ask,
    /// The place in the cohort may have changed.
    Moved,
}

impl Cohorts {
    /// Takes a seat behind those who wait already.
    pub(super) fn join(self: &Arc<Self>, name: &Name, value: &Arc<str>, ttl: Duration) -> Membership {
        let (place, news) = (Mutex::new(Place::Waiting), Notify::new());
        let seat = Arc::new(Seat { value: value.clone(), ttl, place, news });
        lock(&self.0).entry(name.clone()).or_default().seats.push_back(seat.clone());
        Membership { cohorts: self.clone(), name: name.clone(), seat }
    }

    /// Chooses the waiter that a holder hands the lock to, and says how often it may still stay in this process.
    pub(super) fn choose(&self, name: &Name, handed: u32) -> Option<Choice> {
        let mut names = lock(&self.0);
        if names.is_empty() {
            return None;
        }
        let cohort = names.get_mut(name)?;
        let seat = cohort.seats.iter().find(|seat| {
            let mut place = lock(&seat.place);
            let free = matches!(*place, Place::Waiting | Place::Asking);
            if free {
                *place = Place::Chosen;
            }
            free
        })?;
        Some(Choice {
            seat: seat.clone(),
            turns: TURNS.saturating_sub(handed),
            handed: handed.saturating_add(1),
        })
    }
}

/// A waiter that a holder is about to hand the lock to. Dropped without an outcome, the waiter asks the server.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) seat: Arc<Seat>,
    pub(super) turns: u32,
    handed: u32,
}

impl Choice {
    /// Tells the waiter that it has the lock; `false` if it is gone and the lock has to go elsewhere.
    pub(super) fn granted(self, token: i64, sent: Moment) -> bool {
        let mut place = lock(&self.seat.place);
        match *place {
            Place::Chosen => *place = Place::Granted { token, sent, handed: self.handed },
            Place::Left => return false,
            _ => {}
        }
        self.seat.news.notify_one();
        true
    }
}

impl Drop for Choice {
    fn drop(&mut self) {
        let mut place = lock(&self.seat.place);
        if *place == Place::Chosen {
            *place = Place::Asking;
            self.seat.news.notify_one();
        }
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

    /// Waits for something to be said. May be dropped and called again; nothing is missed.
    pub(super) async fn news(&self) -> News {
        self.seat.news.notified().await;
        match *lock(&self.seat.place) {
            Place::Granted { token, sent, handed } => News::Granted { token, sent, handed },
            Place::Asking => News::Ask,
            _ => News::Moved,
        }
    }

    /// The server itself gave the lock to this waiter.
    pub(super) fn served(&self) {
        *lock(&self.seat.place) = Place::Served;
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

    /// Gives the seat up. `true` if a holder has handed, or may still hand, the lock to this waiter.
    pub(super) fn leave(self) -> bool {
        self.seat.leave()
    }
}

impl Seat {
    fn leave(&self) -> bool {
        let mut place = lock(&self.place);
        let before = *place;
        if before != Place::Served {
            *place = Place::Left;
        }
        matches!(before, Place::Chosen | Place::Asking | Place::Granted { .. })
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
            Some(first) if first_left => first.news.notify_one(),
            Some(_) => {}
            None => drop(names.remove(&self.name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cohorts() -> (Arc<Cohorts>, Name) {
        (Arc::default(), Name::new("x").unwrap())
    }

    fn sit(cohorts: &Arc<Cohorts>, name: &Name, value: &str) -> Membership {
        cohorts.join(name, &value.into(), Duration::from_secs(1))
    }

    fn at(second: u64) -> Moment {
        Moment::at(Duration::from_secs(second))
    }

    #[tokio::test]
    async fn waiters_are_chosen_in_order_and_the_next_moves_up() {
        let (cohorts, name) = cohorts();
        assert!(cohorts.choose(&name, 0).is_none());
        let (one, two) = (sit(&cohorts, &name, "1"), sit(&cohorts, &name, "2"));
        assert!(one.is_first() && !two.is_first());
        let choice = cohorts.choose(&name, 0).unwrap();
        assert_eq!(&*choice.seat.value, "1");
        assert!(choice.granted(7, at(1)));
        assert_eq!(one.news().await, News::Granted { token: 7, sent: at(1), handed: 1 });
        drop(one);
        assert_eq!(two.news().await, News::Moved);
        assert!(two.is_first());
        drop(two);
        assert!(lock(&cohorts.0).is_empty(), "an empty cohort leaves nothing behind");
    }

    #[tokio::test]
    async fn a_choice_without_an_outcome_makes_the_waiter_ask() {
        let (cohorts, name) = cohorts();
        let one = sit(&cohorts, &name, "1");
        drop(cohorts.choose(&name, 0).unwrap());
        assert_eq!(one.news().await, News::Ask);
        assert!(cohorts.choose(&name, 0).is_some(), "and it can be chosen again");
        assert!(one.leave(), "what it was chosen for may still arrive");
        assert!(!sit(&cohorts, &name, "2").leave());
    }

    #[test]
    fn a_lock_for_a_waiter_that_left_comes_back() {
        let (cohorts, name) = cohorts();
        let one = sit(&cohorts, &name, "1");
        let choice = cohorts.choose(&name, 0).unwrap();
        assert!(one.leave(), "it may get the lock yet");
        assert!(!choice.granted(7, at(1)));
    }

    #[test]
    fn one_that_was_served_by_the_server_keeps_what_it_has() {
        let (cohorts, name) = cohorts();
        let one = sit(&cohorts, &name, "1");
        let choice = cohorts.choose(&name, 0).unwrap();
        one.served();
        drop(one);
        assert!(choice.granted(7, at(1)), "it is the same lock: nothing has to be undone");
    }

    #[test]
    fn another_process_gets_its_turn() {
        let (cohorts, name) = cohorts();
        let _seats: Vec<_> = (0..40).map(|index| sit(&cohorts, &name, &index.to_string())).collect();
        assert_eq!(cohorts.choose(&name, 0).unwrap().turns, TURNS);
        assert_eq!(cohorts.choose(&name, TURNS).unwrap().turns, 0);
        assert_eq!(cohorts.choose(&name, u32::MAX).unwrap().turns, 0);
    }
}
