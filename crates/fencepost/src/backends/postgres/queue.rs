//! The waiters of this process for one lock. Only the first of them asks the server; the others wait here, in order.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::key::Key;
use crate::Holder;
use crate::backend::lock;

#[derive(Debug, Default)]
pub(super) struct Queue(Mutex<HashMap<Key, Line>>);

#[derive(Debug, Default)]
struct Line {
    seats: VecDeque<Arc<Notify>>,
    /// The holder that the one who asks saw last.
    seen: Option<Holder>,
    /// This process is on the server's list of waiters.
    listed: bool,
    /// The server has told that the lock is ours to take.
    told: bool,
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

    /// The server has told us that a lock is ours to take, and taken us off its list.
    pub(super) fn told(&self, key: Key) {
        if let Some(line) = lock(&self.0).get_mut(&key) {
            line.listed = false;
            line.told = true;
        }
        self.hint(key);
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

    /// Whether this process is on the server's list of waiters.
    pub(super) fn is_listed(&self) -> bool {
        self.with(|line| line.listed)
    }

    /// Whether the server has told that the lock is ours to take, since this was last asked.
    pub(super) fn take_told(&self) -> bool {
        self.with(|line| std::mem::take(&mut line.told))
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

    /// Gives the place up. `true` if nobody waits here any more and the server's list says otherwise.
    pub(super) fn leave(self) -> bool {
        self.with(|line| line.listed && line.seats.len() == 1)
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
        one.list(true);
        assert!(!one.leave(), "another one waits here");
        assert!(two.is_first() && has_news(&two));
        assert!(two.leave(), "the server has to be told");
        assert!(lock(&queue.0).is_empty());
    }

    #[test]
    fn whoever_was_told_is_not_on_the_list_any_more() {
        let queue = Arc::<Queue>::default();
        let place = queue.join(Key::from(1));
        place.list(true);
        queue.told(Key::from(1));
        assert!(has_news(&place) && !place.is_listed());
        assert!(!place.leave(), "there is nothing to tell the server");
    }
}
