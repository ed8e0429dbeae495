//! The nodes that a session watches. The server tells the next change of each once. A new connection of the
//! session watches them again, and the server tells then what changed in between.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

use tokio::sync::watch;

use crate::runtime::sync::lock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeChange {
    Changed,
    Deleted,
}

/// The next change of a node. It is known here before anything that the server sent after it.
#[derive(Clone, Debug)]
pub(crate) struct NodeWatch(watch::Receiver<Option<NodeChange>>);

impl NodeWatch {
    /// What happened to the node since it was watched.
    pub(crate) fn change(&self) -> Option<NodeChange> {
        *self.0.borrow()
    }

    /// Waits for the change.
    pub(crate) async fn changed(&mut self) -> Option<NodeChange> {
        self.0.wait_for(Option::is_some).await.ok().and_then(|change| *change)
    }
}

#[derive(Debug, Default)]
pub(super) struct Watches {
    nodes: Mutex<HashMap<String, watch::Sender<Option<NodeChange>>>>,
    /// The last transaction that a server told us of. A server that does not know it yet must not serve us.
    last_zxid: AtomicI64,
}

impl Watches {
    /// To be called before the request that sets the watch at the server.
    pub(super) fn watch(&self, path: &str) -> NodeWatch {
        NodeWatch(lock(&self.nodes).entry(path.to_owned()).or_default().subscribe())
    }

    pub(super) fn tell(&self, path: &str, change: NodeChange) {
        if let Some(node) = lock(&self.nodes).remove(path) {
            node.send_replace(Some(change));
        }
    }

    /// All nodes that somebody still watches.
    pub(super) fn paths(&self) -> Vec<String> {
        let mut nodes = lock(&self.nodes);
        nodes.retain(|_, node| node.receiver_count() > 0);
        nodes.keys().cloned().collect()
    }

    pub(super) fn note_zxid(&self, zxid: i64) {
        self.last_zxid.fetch_max(zxid, Ordering::Relaxed);
    }

    pub(super) fn last_zxid(&self) -> i64 {
        self.last_zxid.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_once_to_everybody() {
        let watches = Watches::default();
        let (first, second) = (watches.watch("/a"), watches.watch("/a"));
        watches.tell("/b", NodeChange::Deleted);
        assert_eq!(first.change(), None);
        watches.tell("/a", NodeChange::Changed);
        let later = watches.watch("/a");
        watches.tell("/a", NodeChange::Deleted);
        let changes = [first, second, later].map(|watch| watch.change());
        assert_eq!(changes, [NodeChange::Changed, NodeChange::Changed, NodeChange::Deleted].map(Some));
        assert!(watches.paths().is_empty());
    }

    #[test]
    fn what_nobody_watches_any_more_is_not_kept() {
        let watches = Watches::default();
        let kept = watches.watch("/a");
        drop(watches.watch("/b"));
        assert_eq!(watches.paths(), ["/a"]);
        drop(kept);
        assert!(watches.paths().is_empty());
    }
}
