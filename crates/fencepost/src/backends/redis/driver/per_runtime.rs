//! What each runtime that uses a store has of it. A connection belongs to the runtime whose task drives it,
//! so each has its own, the keeper's among them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::runtime;
use uuid::Uuid;

use crate::runtime::sync::lock;

#[derive(Debug)]
pub(in crate::backends) struct PerRuntime<T>(Mutex<HashMap<runtime::Id, Arc<T>>>);

impl<T> Default for PerRuntime<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> PerRuntime<T> {
    /// What the current runtime has, made if it has nothing yet. Runtimes come and go, in tests above all:
    /// what is neither connected nor held by anybody is forgotten then.
    pub(in crate::backends) fn current(
        &self,
        is_connected: impl Fn(&T) -> bool,
        make: impl FnOnce() -> T,
    ) -> Arc<T> {
        let id = runtime::Handle::current().id();
        let mut all = lock(&self.0);
        if let Some(own) = all.get(&id) {
            return own.clone();
        }
        all.retain(|_, own| Arc::strong_count(own) > 1 || is_connected(own));
        let own = Arc::new(make());
        all.insert(id, own.clone());
        own
    }

    pub(in crate::backends) fn all(&self) -> Vec<Arc<T>> {
        lock(&self.0).values().cloned().collect()
    }
}

/// A channel that nobody else has, not even a process that was forked from this one.
pub(in crate::backends) fn new_channel() -> String {
    let mut channel = Uuid::new_v4().simple().to_string();
    channel.truncate(16);
    channel
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_runtime_that_is_gone_had_is_forgotten() {
        let all = PerRuntime::default();
        let runtime = || runtime::Builder::new_current_thread().build().unwrap();
        let current = |runtime: &runtime::Runtime, connected: bool| {
            let _inside = runtime.enter();
            all.current(|connected| *connected, || connected)
        };
        let (first, second, third, fourth) = (runtime(), runtime(), runtime(), runtime());
        current(&first, true);
        let held = current(&second, false);
        current(&third, false);
        current(&fourth, false);
        assert_eq!(all.all().len(), 3, "the first is connected, the second is held");
        assert!(Arc::ptr_eq(&held, &current(&second, true)));
    }

    #[test]
    fn no_two_channels_are_the_same() {
        let channels = [new_channel(), new_channel()];
        assert!(channels.iter().all(|channel| channel.len() == 16));
        assert_ne!(channels[0], channels[1]);
    }
}
