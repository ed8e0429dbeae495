//! Renewals that fall due at about the same time and go to a store together.

use std::sync::{Arc, Mutex};

use tokio::runtime;

use crate::backend::lock;
use crate::keeper::Keeper;

/// Renewals that one request makes. Larger ones would keep a server busy for too long at a time.
const BATCH: usize = 100;

#[derive(Debug)]
pub(super) struct Batches<T> {
    keeper: Arc<Keeper>,
    waiting: Mutex<Vec<T>>,
}

impl<T: Send + 'static> Batches<T> {
    pub(super) fn new(keeper: Arc<Keeper>) -> Self {
        Self { keeper, waiting: Mutex::default() }
    }

    /// Sends a renewal: with whatever else the keeper renews in this turn of its runtime, or alone if the caller is
    /// somebody else. A caller's runtime may be busy, or gone, before a batch is sent, and everybody's renewals with it.
    pub(super) fn send(self: &Arc<Self>, one: T, send: impl Fn(Vec<T>) + Send + 'static) {
        if runtime::Handle::current().id() != self.keeper.runtime().id() {
            return send(vec![one]);
        }
        let first = {
            let mut waiting = lock(&self.waiting);
            waiting.push(one);
            waiting.len() == 1
        };
        if first {
            let batches = self.clone();
            self.keeper.spawn(async move {
                // Whoever else is due in this turn of the runtime joins.
                tokio::task::yield_now().await;
                let mut all = std::mem::take(&mut *lock(&batches.waiting));
                while !all.is_empty() {
                    let rest = all.split_off(all.len().min(BATCH));
                    send(std::mem::replace(&mut all, rest));
                }
            });
        }
    }
}
