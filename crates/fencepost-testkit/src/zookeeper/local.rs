//! One ZooKeeper and three of them, as stores of locks.

use super::{Ensemble, Server, TICK};
use crate::history::Cause;
use crate::local::{self, Blow, Servers, Store};
use crate::redis::which;
use std::path::Path;

/// One server.
pub static LOCAL: Store = Store {
    name: "zookeeper1",
    missing,
    start: |_| Box::new(Server::start()),
    blows: &[Blow::Kill, Blow::Pause],
    excuse: |_, _, _| None,
    harness: super::harness::harness,
};

/// Three of them.
pub static LOCAL_ENSEMBLE: Store = Store {
    name: "zookeeper3",
    missing,
    start: |_| Box::new(Ensemble::start(3)),
    blows: &[Blow::Kill, Blow::Pause],
    excuse: |blow, ttl, _| {
        (blow != Blow::Empty).then_some((
            Cause::DidNotTell(ttl / 2 + TICK / 2),
            "a ZooKeeper server that answered a holder and is gone before it told the leader leaves the \
             holder \
             believing for half a ttl and half a tick too long at most",
        ))
    },
    harness: super::harness::harness,
};

fn missing() -> Option<&'static str> {
    if !which("java") {
        return Some("default-jre-headless");
    }
    (!Path::new("/usr/share/java/zookeeper.jar").is_file()).then_some("zookeeper")
}

local::server!(Server);

impl Servers for Server {
    fn url(&self) -> String {
        self.url()
    }

    fn count(&self) -> usize {
        1
    }

    fn get(&mut self, _: usize) -> &mut dyn local::Server {
        self
    }
}

impl Servers for Ensemble {
    fn url(&self) -> String {
        self.url()
    }

    fn count(&self) -> usize {
        self.iter().count()
    }

    fn get(&mut self, index: usize) -> &mut dyn local::Server {
        self.get_mut(index)
    }

    fn leaders(&self) -> Vec<usize> {
        vec![self.leader()]
    }
}
