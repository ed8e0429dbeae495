//! Three masters as a store under test. A cluster takes seconds to form, so tests hand theirs on, empty.

use std::sync::{Mutex, PoisonError};

use super::{Cluster, slot};
use crate::conformance::{Harness, Logged, TestStore};
use crate::redis::Server;

/// Clusters that no test uses right now. They end with this process.
static IDLE: Mutex<Vec<Cluster>> = Mutex::new(Vec::new());

/// One of them for as long as a test runs.
struct Borrowed(Option<Cluster>);

/// An empty one.
pub(super) fn harness() -> Harness {
    let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
    // Tests stop all of it for a while: nobody shall be given up meanwhile.
    let cluster = idle
        .unwrap_or_else(|| Cluster::start_with(3, 0, |config| config.line("cluster-node-timeout 120000")));
    Harness::new(Borrowed(Some(cluster)))
}

impl Borrowed {
    fn cluster(&self) -> &Cluster {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // After a failure it may be in any state.
        if std::thread::panicking() {
            return;
        }
        let Some(cluster) = self.0.take() else { return };
        cluster.iter().for_each(Server::resume);
        cluster.settle();
        for node in cluster.iter() {
            // A client of the last test that is still about does not reach the next one.
            node.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
            node.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
            node.cli(&["FLUSHALL"]);
        }
        IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(cluster);
    }
}

impl TestStore for Borrowed {
    fn url(&self) -> String {
        self.cluster().url()
    }

    fn stop(&self) {
        self.cluster().iter().for_each(Server::pause);
    }

    fn resume(&self) {
        self.cluster().iter().for_each(Server::resume);
    }

    fn remove(&self, name: &str) {
        let (cluster, key) = (self.cluster(), format!("lock:{name}"));
        assert_eq!(cluster[cluster.master_of(slot(&key))].cli(&["DEL", &key]), "1");
    }

    fn traces(&self) -> usize {
        self.cluster().keys_like("lock:*").len()
    }

    fn with_login(&self, password: &str) -> Option<Logged> {
        let words =
            ["ACL", "SETUSER", "alice", "on", "resetpass", &format!(">{password}"), "~*", "&*", "+@all"];
        self.cluster().iter().for_each(|node| assert_eq!(node.cli(&words), "OK"));
        Some((self.url().replace("://", &format!("://alice:{password}@")), Box::new(())))
    }
}
