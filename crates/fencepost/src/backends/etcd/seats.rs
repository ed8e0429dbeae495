//! One contender a name: of all tasks of this client that want a lock, one at a time has its key at the server, and the
//! others stand in line behind it here. The key's layout leaves no other way, and no herd arises at the server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{Mutex as Turn, OwnedMutexGuard, watch};

use crate::backend::WaitObservation;
use crate::runtime::sync::lock;
use crate::{Holder, Name};

#[derive(Debug, Default)]
pub(super) struct Seats(Mutex<HashMap<Name, Arc<Row>>>);

#[derive(Debug, Default)]
struct Row {
    turn: Arc<Turn<()>>,
    /// Who holds the lock, as far as the one in front knows.
    holder: watch::Sender<Option<Holder>>,
}

/// A place in line, and in front of it the right to contend.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Arc<Seats>,
    name: Name,
    row: Arc<Row>,
    front: Option<OwnedMutexGuard<()>>,
}

impl Seats {
    /// Comes to the line of a name.
    pub(super) fn enter(self: &Arc<Self>, name: &Name) -> Seat {
        let row = lock(&self.0).entry(name.clone()).or_default().clone();
        Seat { seats: self.clone(), name: name.clone(), row, front: None }
    }
}

impl Seat {
    /// Goes to the front if nobody is there.
    pub(super) fn try_front(&mut self) -> bool {
        if self.front.is_none() {
            self.front = self.row.turn.clone().try_lock_owned().ok();
        }
        self.front.is_some()
    }

    /// Waits until it is in front; notes meanwhile who holds the lock.
    pub(super) async fn front(&mut self, seen: &WaitObservation) {
        let mut holder = self.row.holder.subscribe();
        holder.mark_changed();
        let turn = self.row.turn.clone().lock_owned();
        tokio::pin!(turn);
        loop {
            tokio::select! {
                biased;
                front = &mut turn => {
                    self.front = Some(front);
                    return;
                }
                Ok(()) = holder.changed() => {
                    if let Some(holder) = &*holder.borrow_and_update() {
                        seen.note(holder.clone());
                    }
                }
            }
        }
    }

    /// Waits until the one in front is gone or knows more.
    pub(super) async fn changes(&self) {
        let mut holder = self.row.holder.subscribe();
        tokio::select! {
            _ = holder.changed() => {}
            _ = self.row.turn.lock() => {}
        }
    }

    /// Tells those behind who holds the lock.
    pub(super) fn note(&self, holder: Holder) {
        self.row.holder.send_replace(Some(holder));
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.front.take().is_some() {
            self.row.holder.send_replace(None);
        }
        let mut rows = lock(&self.seats.0);
        // The table's and ours: nobody else stands in line.
        if Arc::strong_count(&self.row) == 2 {
            rows.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_line_is_served_in_order_and_leaves_nothing_behind() {
        let (seats, name, seen) =
            (Arc::new(Seats::default()), Name::new("a").unwrap(), WaitObservation::default());
        let mut first = seats.enter(&name);
        assert!(first.try_front());
        first.note(Holder::unknown(name.clone()));
        let mut second = seats.enter(&name);
        assert!(!second.try_front());
        {
            let wait = second.front(&seen);
            tokio::pin!(wait);
            let polled = std::future::poll_fn(|context| {
                std::task::Poll::Ready(wait.as_mut().poll(context).is_pending())
            });
            assert!(polled.await);
            assert!(seen.holder().is_some(), "those behind know who holds it");
            drop(first);
            wait.await;
        }
        drop(second);
        assert!(lock(&seats.0).is_empty());
    }
}
