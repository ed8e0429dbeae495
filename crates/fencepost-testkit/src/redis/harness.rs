//! One Redis, three of them, and one that Sentinel finds, as stores under test.

use std::time::Duration;

use super::{Nodes, Sentinels, Server};
use crate::conformance::{Harness, Logged, TestStore};
use crate::eventually;

/// What those with a quarantine are told: that long leases are fine.
const TERMS: &str = "max_ttl=20m";

/// An empty Redis.
pub(super) fn harness() -> Harness {
    Harness::new(Server::start())
}

/// Three that were declared to be new.
pub(super) fn redlock_harness() -> Harness {
    let nodes = Nodes::start(3);
    declare(&nodes.url_with(TERMS));
    Harness::new(nodes)
}

/// One without replicas: nothing fails over. It was declared to be new, so that nobody waits.
pub(super) fn sentinel_harness() -> Harness {
    let all = Sentinels::start(0, Duration::from_secs(60)).with_parameters(TERMS);
    declare(&all.url());
    Harness::new(all)
}

pub(super) fn declare(url: &str) {
    let url = url.to_owned();
    let init = std::thread::spawn(move || fencepost::blocking::Locks::init(&url));
    init.join().expect("it does not panic").expect("the nodes can be declared");
}

/// A user with all rights.
fn add_user(server: &Server, password: &str) {
    let words = ["ACL", "SETUSER", "alice", "on", &format!(">{password}"), "~*", "&*", "+@all"];
    assert_eq!(server.cli(&words), "OK");
}

impl TestStore for Server {
    fn url(&self) -> String {
        self.url()
    }

    fn stop(&self) {
        self.pause();
    }

    fn resume(&self) {
        self.resume();
    }

    fn remove(&self, name: &str) {
        assert_eq!(self.cli(&["DEL", &format!("lock:{name}")]), "1");
    }

    fn traces(&self) -> usize {
        self.keys_like("lock:*").len()
    }

    fn with_login(&self, password: &str) -> Option<Logged> {
        add_user(self, password);
        Some((self.url().replace("://", &format!("://alice:{password}@")), Box::new(())))
    }
}

impl TestStore for Nodes {
    fn url(&self) -> String {
        self.url_with(TERMS)
    }

    fn stop(&self) {
        self.iter().for_each(Server::pause);
    }

    fn resume(&self) {
        self.iter().for_each(Server::resume);
    }

    fn remove(&self, name: &str) {
        let key = format!("lock:{name}");
        // A majority is enough for a grant: the request to another node may still be on the way.
        eventually("every node has it", || self.iter().all(|node| !node.keys_like(&key).is_empty()));
        for node in self.iter() {
            node.cli(&["DEL", &key]);
        }
    }

    fn traces(&self) -> usize {
        self.iter().map(|node| node.keys_like("lock:*").len()).sum()
    }

    fn with_login(&self, password: &str) -> Option<Logged> {
        self.iter().for_each(|node| add_user(node, password));
        Some((self.url_with(TERMS).replace("://", &format!("://alice:{password}@")), Box::new(())))
    }
}

impl TestStore for Sentinels {
    fn url(&self) -> String {
        self.url()
    }

    fn stop(&self) {
        self[0].pause();
    }

    fn resume(&self) {
        self[0].resume();
    }

    fn remove(&self, name: &str) {
        TestStore::remove(&self[0], name);
    }

    fn traces(&self) -> usize {
        self[0].traces()
    }

    fn with_login(&self, password: &str) -> Option<Logged> {
        add_user(&self[0], password);
        Some((self.url().replace("://", &format!("://alice:{password}@")), Box::new(())))
    }
}
