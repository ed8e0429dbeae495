//! Who wants to know of the next change of a node. A watch is told once; on another connection of the same session it is
//! set again, and what changed in between is told then.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

use tokio::sync::oneshot;

use crate::runtime::sync::lock;

/// Called by the task that read the event, before anything that the server sent after it: with whether the node is gone.
pub(super) type Call = Box<dyn FnOnce(bool) + Send>;

enum Watcher {
    Waits(oneshot::Sender<()>),
    Call(Call),
}

#[derive(Default)]
pub(super) struct Watches {
    paths: Mutex<HashMap<String, Vec<Watcher>>>,
    /// The last transaction that the server told us of. A server that does not know it yet must not serve us.
    zxid: AtomicI64,
}

impl std::fmt::Debug for Watches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} watched nodes", lock(&self.paths).len())
    }
}

impl Watches {
    /// Waits for the next change of a node. To be called before the request that sets the watch.
    pub(super) fn wait(&self, path: &str) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.add(path, Watcher::Waits(sender));
        receiver
    }

    /// The same for a call.
    pub(super) fn call(&self, path: &str, call: Call) {
        self.add(path, Watcher::Call(call));
    }

    fn add(&self, path: &str, watcher: Watcher) {
        let mut paths = lock(&self.paths);
        let watchers = paths.entry(path.to_owned()).or_default();
        // A node that is held for long sees many a waiter come and go.
        watchers.retain(|watcher| !matches!(watcher, Watcher::Waits(sender) if sender.is_closed()));
        watchers.push(watcher);
    }

    /// Forgets everybody who watches a node: it is gone.
    pub(super) fn forget(&self, path: &str) {
        lock(&self.paths).remove(path);
    }

    /// The node has changed.
    pub(super) fn tell(&self, path: &str, deleted: bool) {
        for watcher in lock(&self.paths).remove(path).unwrap_or_default() {
            match watcher {
                // Who does not wait any more need not know.
                Watcher::Waits(sender) => drop(sender.send(())),
                Watcher::Call(call) => call(deleted),
            }
        }
    }

    /// All watched nodes.
    pub(super) fn all(&self) -> Vec<String> {
        lock(&self.paths).keys().cloned().collect()
    }

    pub(super) fn saw(&self, zxid: i64) {
        self.zxid.fetch_max(zxid, Ordering::Relaxed);
    }

    pub(super) fn last_zxid(&self) -> i64 {
        self.zxid.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_change_is_told_once_to_everybody() {
        let watches = Watches::default();
        let gone = Arc::new(AtomicBool::new(false));
        let mut waits = watches.wait("/a");
        let told = gone.clone();
        watches.call("/a", Box::new(move |deleted| told.store(deleted, Ordering::Relaxed)));
        watches.tell("/b", true);
        assert!(waits.try_recv().is_err());
        watches.tell("/a", true);
        assert!(waits.try_recv().is_ok() && gone.load(Ordering::Relaxed));
        assert!(watches.all().is_empty());
    }

    #[test]
    fn who_left_is_not_kept() {
        let watches = Watches::default();
        for _ in 0..10 {
            drop(watches.wait("/a"));
        }
        assert_eq!(lock(&watches.paths)["/a"].len(), 1);
        assert_eq!(watches.all(), ["/a"]);
    }
}
