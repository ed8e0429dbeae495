//! The waiters of this process for one lock. Only the first of them asks the server; the others wait here, in order.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::key::Key;
use crate::runtime::sync::lock;
use crate::{Holder, Owner};

#[derive(Debug, Default)]
pub(super) struct Queue(Mutex<HashMap<Key, Line>>);

#[derive(Debug, Default)]
struct Line {
    seats: VecDeque<Arc<Notify>>,
    /// The holder that the one who asks saw last.
    seen: Option<Holder>,
    /// This process may be on the server's list of waiters.
    listed: bool,
    /// Who has asked the server last, as whom the lock may be granted to this process.
    asker: Option<Owner>,
    pushed: Option<Push>,
}

/// A grant that a release has made to one who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Push {
    pub(super) owner: Owner,
    pub(super) token: i64,
    /// Until when its waiter was on the list, which tells one entry from the next.
    pub(super) until: i64,
}

impl Push {
    /// Reads `OWNER TOKEN UNTIL`, and nothing behind it.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (owner, numbers) = text.split_once(' ')?;
        let (token, until) = numbers.split_once(' ')?;
        Some(Self { owner: owner.parse().ok()?, token: token.parse().ok()?, until: until.parse().ok()? })
    }
}

impl Queue {
    /// Takes a place behind those who wait already.
    pub(super) fn join(self: &Arc<Self>, key: Key) -> Place {
        let news = Arc::new(Notify::new());
        lock(&self.0).entry(key).or_default().seats.push_back(news.clone());
        Place { queue: self.clone(), key, news }
    }

    /// Has the first one ask the server.
    pub(super) fn hint(&self, key: Key) {
        if let Some(first) = lock(&self.0).get(&key).and_then(|line| line.seats.front()) {
            first.notify_one();
        }
    }

    /// The server has granted a lock to one of us, and taken us off its list. Who waits no more gives it back when it leaves.
    pub(super) fn pushed(&self, key: Key, push: Push) {
        let mut lines = lock(&self.0);
        if let Some(line) = lines.get_mut(&key).filter(|line| line.asker == Some(push.owner)) {
            line.pushed = Some(push);
            if let Some(first) = line.seats.front() {
                first.notify_one();
            }
        }
    }

    /// The holder that the first one saw last.
    pub(super) fn seen(&self, key: Key) -> Option<Holder> {
        lock(&self.0).get(&key).and_then(|line| line.seen.clone())
    }

    pub(super) fn hint_all(&self) {
        for line in lock(&self.0).values() {
            if let Some(first) = line.seats.front() {
                first.notify_one();
            }
        }
    }
}

/// A place, for as long as its waiter waits.
#[derive(Debug)]
pub(super) struct Place {
    queue: Arc<Queue>,
    key: Key,
    news: Arc<Notify>,
}

impl Place {
    fn with<T>(&self, look: impl FnOnce(&mut Line) -> T) -> T {
        look(lock(&self.queue.0).entry(self.key).or_default())
    }

    /// Whether this is the one that asks the server.
    pub(super) fn is_first(&self) -> bool {
        self.with(|line| line.seats.front().is_some_and(|first| Arc::ptr_eq(first, &self.news)))
    }

    /// Waits for a hint, or for the first place. May be dropped and called again; nothing is missed.
    pub(super) async fn news(&self) {
        self.news.notified().await;
    }

    /// Whether this process may be on the server's list of waiters.
    pub(super) fn is_listed(&self) -> bool {
        self.with(|line| line.listed)
    }

    /// The server is asked as `owner` from now on.
    pub(super) fn ask_as(&self, owner: Owner) {
        self.with(|line| line.asker = Some(owner));
    }

    /// What the server has granted, since this was last called.
    pub(super) fn take_pushed(&self) -> Option<Push> {
        self.with(|line| line.pushed.take())
    }

    pub(super) fn list(&self, listed: bool) {
        self.with(|line| line.listed = listed);
    }

    /// Notes for all who wait here whom the server says holds the lock.
    pub(super) fn saw(&self, holder: &Holder) {
        self.with(|line| line.seen = Some(holder.clone()));
    }

    pub(super) fn seen(&self) -> Option<Holder> {
        self.with(|line| line.seen.clone())
    }

    /// Gives the place up. `true` if the server has been asked as `owner`, and may grant the lock to it yet.
    pub(super) fn leave(self, owner: Owner) -> bool {
        self.with(|line| {
            let asked = line.asker == Some(owner);
            if asked {
                line.asker = None;
            }
            asked
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut lines = lock(&self.queue.0);
        let Some(line) = lines.get_mut(&self.key) else { return };
        let first_left = line.seats.front().is_some_and(|first| Arc::ptr_eq(first, &self.news));
        line.seats.retain(|seat| !Arc::ptr_eq(seat, &self.news));
        match line.seats.front() {
            Some(first) if first_left => first.notify_one(),
            Some(_) => {}
            None => drop(lines.remove(&self.key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn has_news(place: &Place) -> bool {
        matches!(pin!(place.news()).poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(()))
    }

    #[test]
    fn the_first_one_asks_and_the_next_moves_up() {
        let queue = Arc::<Queue>::default();
        let (one, two) = (queue.join(Key::from(1)), queue.join(Key::from(1)));
        assert!(one.is_first() && !two.is_first());
        queue.hint(Key::from(1));
        queue.hint(Key::from(2));
        assert!(has_news(&one) && !has_news(&two));
        let (first, second) = (Owner::fresh(), Owner::fresh());
        one.ask_as(first);
        assert!(!two.leave(second), "it has not asked");
        let two = queue.join(Key::from(1));
        assert!(one.leave(first), "the server has to be told");
        assert!(two.is_first() && has_news(&two));
        assert!(!two.leave(second));
        assert!(lock(&queue.0).is_empty());
    }

    #[test]
    fn a_grant_reaches_the_one_who_asked_and_nobody_else() {
        let queue = Arc::<Queue>::default();
        let place = queue.join(Key::from(1));
        let push = Push { owner: Owner::fresh(), token: 7, until: 8 };
        queue.pushed(Key::from(1), push);
        assert!(!has_news(&place), "nobody has asked");
        place.ask_as(push.owner);
        queue.pushed(Key::from(2), push);
        assert!(!has_news(&place));
        queue.pushed(Key::from(1), push);
        assert!(has_news(&place));
        assert_eq!(place.take_pushed(), Some(push));
        assert_eq!(place.take_pushed(), None);
        assert!(place.leave(push.owner), "the server has to be told");
    }

    #[test]
    fn a_grant_is_read_as_the_server_writes_it() {
        let owner = Owner::fresh();
        assert_eq!(Push::parse(&format!("{owner} 12 34")), Some(Push { owner, token: 12, until: 34 }));
        for wrong in [
            "",
            "12 34",
            "x 12 34",
            &format!("{owner} 12"),
            &format!("{owner} x 34"),
            &format!("{owner} 12 34 5"),
        ] {
            assert_eq!(Push::parse(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_message_makes_it_panic(text in ".{0,60}", token: i64, until: i64) {
            let _ = Push::parse(&text);
            let push = Push { owner: Owner::fresh(), token, until };
            prop_assert_eq!(Push::parse(&format!("{} {token} {until}", push.owner)), Some(push));
            prop_assert_eq!(Push::parse(&format!("{} {token} {text}x", push.owner)), None);
        }
    }
}
