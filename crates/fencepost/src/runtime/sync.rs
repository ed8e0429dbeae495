//! Mutexes that survive a panic, and waits that miss no change.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Locks a mutex; a panic elsewhere while it was held cannot have left half a change behind.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until `look` finds something, looking at first and whenever `changed` wakes.
pub(crate) async fn until<T>(changed: &Notify, mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        let woken = changed.notified();
        tokio::pin!(woken);
        // Listen before the look: a change in between is not missed.
        woken.as_mut().enable();
        if let Some(found) = look() {
            return found;
        }
        woken.await;
    }
}
