//! The tasks of this client that want the same name. One at a time has its key at the server: the layout of
//! keys allows no more on a shared lease, and the server sees no herd.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::OwnedMutexGuard;

use crate::Name;
use crate::runtime::sync::lock;

type Queues = Arc<Mutex<HashMap<Name, Weak<NameQueue>>>>;

#[derive(Debug, Default)]
pub(super) struct LocalQueue(Queues);

/// The tasks that want one name.
#[derive(Debug)]
struct NameQueue {
    queues: Queues,
    name: Name,
    first: Arc<tokio::sync::Mutex<()>>,
}

/// The right to use a name, for as long as any copy of it lives.
#[derive(Clone, Debug)]
pub(super) struct QueueTurn {
    _first: Arc<OwnedMutexGuard<()>>,
    _queue: Arc<NameQueue>,
}

impl LocalQueue {
    fn of(&self, name: &Name) -> Arc<NameQueue> {
        let mut queues = lock(&self.0);
        if let Some(queue) = queues.get(name).and_then(Weak::upgrade) {
            return queue;
        }
        let queue = NameQueue { queues: self.0.clone(), name: name.clone(), first: Arc::default() };
        let queue = Arc::new(queue);
        queues.insert(name.clone(), Arc::downgrade(&queue));
        queue
    }

    /// The turn, if nobody has it.
    pub(super) fn try_turn(&self, name: &Name) -> Option<QueueTurn> {
        let queue = self.of(name);
        let first = Arc::new(queue.first.clone().try_lock_owned().ok()?);
        Some(QueueTurn { _first: first, _queue: queue })
    }

    /// Waits for the turn.
    pub(super) async fn turn(&self, name: &Name) -> QueueTurn {
        let queue = self.of(name);
        let first = Arc::new(queue.first.clone().lock_owned().await);
        QueueTurn { _first: first, _queue: queue }
    }
}

impl Drop for NameQueue {
    fn drop(&mut self) {
        let mut queues = lock(&self.queues);
        // Somebody may have begun another queue since.
        if queues.get(&self.name).is_some_and(|queue| queue.strong_count() == 0) {
            queues.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_queue_is_served_in_order_and_leaves_nothing_behind() {
        let (queue, name) = (LocalQueue::default(), Name::new("a").unwrap());
        let first = queue.try_turn(&name).unwrap();
        let second = {
            let turn = queue.turn(&name);
            tokio::pin!(turn);
            let polled = std::future::poll_fn(|context| {
                std::task::Poll::Ready(turn.as_mut().poll(context).is_pending())
            });
            assert!(polled.await);
            let copy = first.clone();
            drop(first);
            assert!(queue.try_turn(&name).is_none(), "a copy is the turn, too");
            drop(copy);
            assert!(queue.try_turn(&name).is_none(), "who came first is next");
            turn.await
        };
        drop(second);
        assert!(lock(&queue.0).is_empty());
    }
}
