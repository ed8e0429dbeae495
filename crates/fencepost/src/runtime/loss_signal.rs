//! Carries a loss from a store to the guard of the lock.

use std::fmt::Debug;
use std::sync::OnceLock;
use std::sync::atomic::{Ordering::SeqCst, fence};

use tokio::sync::Notify;

use crate::Loss;
use crate::runtime::sync::until;

/// What is told of a loss when it comes. It must not wait.
pub(crate) trait LossListener: Debug + Send + Sync {
    fn lost(&self);
}

/// Carries a loss from the store to the guard, and wakes whoever watches it.
#[derive(Debug, Default)]
pub struct LossSignal {
    loss: OnceLock<Loss>,
    changed: Notify,
    /// What counts and logs a loss, from when the lock is granted.
    listener: OnceLock<Box<dyn LossListener>>,
}

impl LossSignal {
    /// Declares the lock lost. Only the first call counts. Never waits, and drops nothing of a store's.
    pub fn raise(&self, loss: Loss) {
        if self.loss.set(loss).is_ok() {
            // Whoever begins to listen now sees the loss, or is seen here.
            fence(SeqCst);
            if let Some(listener) = self.listener.get() {
                listener.lost();
            }
            self.wake();
        }
    }

    /// Tells `listener` of a loss when it comes. One that has come already is the caller's to look for.
    pub(crate) fn report_to(&self, listener: Box<dyn LossListener>) {
        let _ = self.listener.set(listener);
        fence(SeqCst);
    }

    pub(crate) fn loss(&self) -> Option<&Loss> {
        self.loss.get()
    }

    pub(crate) fn wake(&self) {
        self.changed.notify_waiters();
    }

    /// Waits until `look` finds something, looking whenever something may have changed.
    pub(crate) async fn until<T>(&self, look: impl FnMut() -> Option<T>) -> T {
        until(&self.changed, look).await
    }
}
