//! Renewals that fall due at about the same time and go to a store together.

use std::sync::{Arc, Mutex};

use tokio::runtime;

use crate::runtime::keeper::Keeper;
use crate::runtime::sync::lock;

/// Renewals that one request makes. Larger ones would keep a server busy for too long at a time.
const BATCH: usize = 100;

#[derive(Debug)]
pub(in crate::backends) struct Batches<T> {
    keeper: Arc<Keeper>,
    gathered: Mutex<Gathered<T>>,
}

#[derive(Debug)]
struct Gathered<T> {
    waiting: Vec<T>,
    /// Somebody is about to send them.
    gathering: bool,
}

impl<T: Send + 'static> Batches<T> {
    pub(in crate::backends) fn new(keeper: Arc<Keeper>) -> Self {
        Self { keeper, gathered: Mutex::new(Gathered { waiting: Vec::new(), gathering: false }) }
    }

    /// Sends a renewal: with whatever else the keeper renews now, or alone if the caller is somebody else. A
    /// caller's runtime may be busy, or gone, before a batch is sent, and everybody's renewals with it.
    pub(in crate::backends) fn send(self: &Arc<Self>, one: T, send: impl Fn(Vec<T>) + Send + 'static) {
        if runtime::Handle::current().id() != self.keeper.runtime().id() {
            return send(vec![one]);
        }
        let first = {
            let mut gathered = lock(&self.gathered);
            gathered.waiting.push(one);
            !std::mem::replace(&mut gathered.gathering, true)
        };
        if first {
            let batches = self.clone();
            self.keeper.spawn(async move {
                let mut before = 0;
                while let Some(count) = batches.send_some(before, &send) {
                    before = count;
                    // The keeper's runtime gets to some of those that are due, and then to us again.
                    tokio::task::yield_now().await;
                }
            });
        }
    }

    /// Sends a whole batch, or what is left if nobody joined since there were `before`. How many wait then,
    /// if that is known; `None` if it is over. One batch at a time: connections write it before the next one
    /// is put into their buffers.
    fn send_some(&self, before: usize, send: &impl Fn(Vec<T>)) -> Option<usize> {
        let batch = {
            let mut gathered = lock(&self.gathered);
            let count = gathered.waiting.len();
            if count < BATCH && count != before {
                return Some(count);
            }
            let rest = gathered.waiting.split_off(count.min(BATCH));
            gathered.gathering = count >= BATCH;
            std::mem::replace(&mut gathered.waiting, rest)
        };
        let full = batch.len() == BATCH;
        if !batch.is_empty() {
            send(batch);
        }
        full.then_some(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::clock::Clock;

    #[tokio::test]
    async fn what_is_due_at_the_same_time_goes_in_full_batches() {
        let keeper = Keeper::of(&Clock::system()).unwrap();
        let batches = Arc::new(Batches::new(keeper.clone()));
        let (sender, mut sent) = tokio::sync::mpsc::unbounded_channel();
        let (due, runtime) = (batches.clone(), keeper.runtime().clone());
        // From one task of the keeper's, as in its rounds.
        keeper.spawn(async move {
            for number in 0..250 {
                let (due, sender) = (due.clone(), sender.clone());
                runtime.spawn(async move { due.send(number, move |batch| drop(sender.send(batch))) });
            }
        });
        let mut all: Vec<Vec<i32>> = Vec::new();
        while let Some(batch) = sent.recv().await {
            all.push(batch);
        }
        // Three; one more if other tests keep the keeper busy meanwhile.
        let sizes: Vec<_> = all.iter().map(Vec::len).collect();
        assert!(sizes.len() <= 4 && sizes.iter().all(|size| *size <= BATCH), "{sizes:?}");
        assert!(all.concat().into_iter().eq(0..250), "in order");
        assert!(!lock(&batches.gathered).gathering, "the next one begins anew");
    }

    #[tokio::test]
    async fn a_batch_can_be_written_before_the_next_one_is_sent() {
        let batches = Batches::new(Keeper::of(&Clock::system()).unwrap());
        lock(&batches.gathered).waiting.extend(0..2 * BATCH + 1);
        let sizes = Mutex::new(Vec::new());
        let mut before = 0;
        let mut some = || {
            let count = batches.send_some(before, &|batch| lock(&sizes).push(batch.len()));
            before = count.unwrap_or_default();
            (count, lock(&sizes).drain(..).collect::<Vec<_>>())
        };
        assert_eq!(some().1, [BATCH]);
        assert_eq!(some().1, [BATCH]);
        assert_eq!(some(), (Some(1), vec![]), "others may join");
        assert_eq!(some(), (None, vec![1]));
    }
}
