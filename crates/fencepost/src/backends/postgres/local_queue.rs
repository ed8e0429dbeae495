//! The waiters of this process for one lock. The server's queue has one entry for each process and lock,
//! so the waiters of a process take turns with it: the first one asks the server, the others wait here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::{MutexGuard, Notify, watch};

use super::keys::Key;
use super::record::PushedGrant;
use crate::Holder;
use crate::backend::WaitObservation;
use crate::runtime::sync::lock;

#[derive(Debug, Default)]
pub(super) struct LocalQueues(Mutex<HashMap<Key, Weak<LocalQueue>>>);

#[derive(Debug)]
pub(super) struct LocalQueue {
    all: Arc<LocalQueues>,
    key: Key,
    /// Held by the waiter that asks the server. Given on in order.
    turn: tokio::sync::Mutex<()>,
    /// The server has told that waiter something.
    news: Notify,
    pushed: Mutex<Option<PushedGrant>>,
    /// The holder that it saw last.
    holder: watch::Sender<Option<Holder>>,
}

impl LocalQueues {
    /// The queue of a key, which lasts for as long as somebody has it.
    pub(super) fn join(self: &Arc<Self>, key: Key) -> Arc<LocalQueue> {
        let mut queues = lock(&self.0);
        if let Some(queue) = queues.get(&key).and_then(Weak::upgrade) {
            return queue;
        }
        let queue = Arc::new(LocalQueue {
            all: self.clone(),
            key,
            turn: tokio::sync::Mutex::default(),
            news: Notify::new(),
            pushed: Mutex::default(),
            holder: watch::Sender::new(None),
        });
        queues.insert(key, Arc::downgrade(&queue));
        queue
    }

    fn get(&self, key: Key) -> Option<Arc<LocalQueue>> {
        lock(&self.0).get(&key).and_then(Weak::upgrade)
    }

    /// The lock may be free: whoever has the turn asks the server.
    pub(super) fn hint(&self, key: Key) {
        if let Some(queue) = self.get(key) {
            queue.news.notify_one();
        }
    }

    /// The server has granted the lock to a waiter, and removed its entry. One that has gone gives it back.
    pub(super) fn push(&self, key: Key, grant: PushedGrant) {
        if let Some(queue) = self.get(key) {
            *lock(&queue.pushed) = Some(grant);
            queue.news.notify_one();
        }
    }
}

impl LocalQueue {
    /// Takes the turn if it is free.
    pub(super) fn try_turn(&self) -> Option<MutexGuard<'_, ()>> {
        self.turn.try_lock().ok()
    }

    /// Waits for the turn, and notes meanwhile whom the waiter that has it sees holding the lock.
    pub(super) async fn turn(&self, seen: &WaitObservation) -> MutexGuard<'_, ()> {
        let mut turn = std::pin::pin!(self.turn.lock());
        let mut holder = self.holder.subscribe();
        holder.mark_changed();
        loop {
            tokio::select! {
                biased;
                turn = &mut turn => return turn,
                Ok(()) = holder.changed() => {
                    if let Some(holder) = &*holder.borrow_and_update() {
                        seen.note(holder.clone());
                    }
                }
            }
        }
    }

    /// Waits for news, at most so long. Only for the waiter that has the turn.
    pub(super) async fn news(&self, most: Duration) -> Option<PushedGrant> {
        let _ = tokio::time::timeout(most, self.news.notified()).await;
        lock(&self.pushed).take()
    }

    /// Tells all waiters who holds the lock. A holder without a name replaces none that has one.
    pub(super) fn saw(&self, holder: Holder, seen: &WaitObservation) {
        if holder.owner.is_some() || holder.note.is_some() || self.holder.borrow().is_none() {
            self.holder.send_replace(Some(holder.clone()));
            seen.note(holder);
        }
    }
}

impl Drop for LocalQueue {
    fn drop(&mut self) {
        let mut queues = lock(&self.all.0);
        if queues.get(&self.key).is_some_and(|queue| queue.strong_count() == 0) {
            queues.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Name, Owner};

    const SOON: Duration = Duration::from_millis(1);

    fn grant(token: i64) -> PushedGrant {
        PushedGrant { owner: Owner::fresh(), token, until: 8 }
    }

    #[tokio::test]
    async fn waiters_take_turns_and_those_behind_learn_who_holds_the_lock() {
        let queues = Arc::<LocalQueues>::default();
        let (one, two) = (queues.join(Key::from(1)), queues.join(Key::from(1)));
        let (seen, seen_behind) = (WaitObservation::default(), Arc::<WaitObservation>::default());
        let turn = one.try_turn().expect("nobody else is here");
        let behind = {
            let seen = seen_behind.clone();
            tokio::spawn(async move { drop(two.turn(&seen).await) })
        };
        let mut holder = Holder::unknown(Name::new("a").unwrap());
        holder.note = Some("somebody".to_owned());
        one.saw(holder.clone(), &seen);
        one.saw(Holder::unknown(Name::new("a").unwrap()), &seen);
        while seen_behind.holder().is_none() {
            tokio::task::yield_now().await;
        }
        assert_eq!(
            (seen.holder().as_deref(), seen_behind.holder().as_deref()),
            (Some(&holder), Some(&holder))
        );
        assert!(!behind.is_finished());
        drop(turn);
        behind.await.unwrap();
        drop(one);
        assert!(lock(&queues.0).is_empty());
    }

    #[tokio::test]
    async fn a_grant_reaches_the_queue_of_its_key() {
        let queues = Arc::<LocalQueues>::default();
        let queue = queues.join(Key::from(1));
        let (here, elsewhere) = (grant(7), grant(9));
        queues.push(Key::from(2), elsewhere);
        queues.push(Key::from(1), here);
        assert_eq!(queue.news(Duration::MAX).await, Some(here));
        assert_eq!(queue.news(SOON).await, None);
        queues.hint(Key::from(1));
        assert_eq!(queue.news(Duration::MAX).await, None, "a hint is no grant");
    }
}
