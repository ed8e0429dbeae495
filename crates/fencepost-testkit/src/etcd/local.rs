//! One member of etcd and three of them, as stores of locks.

use super::{Cluster, Member};
use crate::history::Cause;
use crate::local::{self, Blow, Servers, Store};
use crate::redis::which;

/// One member.
pub static LOCAL: Store = Store {
    name: "etcd1",
    missing,
    start: |_| Box::new(Cluster::start(1)),
    blows: &[Blow::Kill, Blow::Pause],
    excuse: |_, _, _| None,
    harness: super::harness::harness,
};

/// Three of them.
pub static LOCAL_CLUSTER: Store = Store {
    name: "etcd3",
    missing,
    start: |_| Box::new(Cluster::start(3)),
    blows: &[Blow::Kill, Blow::Pause],
    excuse: |blow, _, replaced| {
        (blow == Blow::Pause && replaced).then_some((
            Cause::WokeUp,
            "an etcd leader that stood still, was replaced and wakes up may end leases that its successor \
             keeps \
             (etcd releases before November 2023)",
        ))
    },
    harness: super::harness::harness,
};

fn missing() -> Option<&'static str> {
    let client = which("etcdctl");
    let package = if client { "etcd-server" } else { "etcd-client" };
    (!client || !which("etcd")).then_some(package)
}

local::server!(Member);

impl Servers for Cluster {
    fn url(&self) -> String {
        self.url()
    }

    fn count(&self) -> usize {
        self.iter().count()
    }

    fn get(&mut self, index: usize) -> &mut dyn local::Server {
        &mut self[index]
    }

    fn leaders(&self) -> Vec<usize> {
        if self.iter().count() > 1 { vec![self.leader()] } else { Vec::new() }
    }

    fn entries(&self, prefix: &str) -> Vec<String> {
        self.keys(prefix)
    }
}
