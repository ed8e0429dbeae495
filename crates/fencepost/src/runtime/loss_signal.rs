//! Carries a loss from a store to the guard of the lock.

use std::sync::atomic::{Ordering::SeqCst, fence};
use std::sync::{Arc, OnceLock, Weak};

use tokio::sync::Notify;

use crate::Loss;
use crate::runtime::keeper::Keeper;
use crate::runtime::lease_state::LeaseState;
use crate::runtime::sync::until;

/// Carries a loss from the store to the guard, and wakes whoever watches it.
#[derive(Debug, Default)]
pub struct LossSignal {
    loss: OnceLock<Loss>,
    changed: Notify,
    /// Who counts and logs a loss of which lock, from when it is granted.
    listener: OnceLock<(Weak<Keeper>, Weak<LeaseState>)>,
}

impl LossSignal {
    /// Declares the lock lost. Only the first call counts. Never waits, and drops nothing of a store's.
    pub fn raise(&self, loss: Loss) {
        if self.loss.set(loss).is_ok() {
            // Whoever begins to listen now sees the loss, or is seen here.
            fence(SeqCst);
            if let Some((keeper, held)) = self.listener.get()
                && let Some(keeper) = keeper.upgrade()
            {
                keeper.report(held.clone());
            }
            self.wake();
        }
    }

    /// Has a loss counted and logged when it comes, by the keeper. One that has come already is the caller's
    /// to look for.
    pub(crate) fn report_to(&self, keeper: &Arc<Keeper>, held: &Arc<LeaseState>) {
        let _ = self.listener.set((Arc::downgrade(keeper), Arc::downgrade(held)));
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
