//! One Redis and five of them, as stores of locks.

use std::time::Duration;

use super::{Nodes, Sentinels, Server};
use crate::history::Cause;
use crate::local::{self, Blow, Servers, Store};

/// One without persistence: a killed one comes back empty.
pub static LOCAL: Store = Store {
    name: "redis",
    missing,
    start: |_| Box::new(Server::start()),
    blows: &[Blow::Kill, Blow::Pause, Blow::Empty],
    excuse: |blow, _, _| {
        (blow != Blow::Pause).then_some((
            Cause::Forgot,
            "one Redis that restarts without its keys has forgotten its locks; a holder learns it at its \
             next \
             renewal",
        ))
    },
    harness: super::harness::harness,
};

/// Five of them for Redlock.
pub static LOCAL_REDLOCK: Store = Store {
    name: "redlock5",
    missing,
    start: |ttl| {
        let nodes = Nodes::start(5);
        // The shortest quarantine that goes with the ttl, or half of a run would be spent in it.
        let quarantine = ttl.mul_f64(1.05) + Duration::from_secs(1);
        let (ttl, quarantine) = (ttl.as_millis(), quarantine.as_millis());
        let url = nodes.url_with(&format!("max_ttl={ttl}ms&quarantine={quarantine}ms&deployment=local"));
        Box::new(Redlock { nodes, url })
    },
    blows: &[Blow::Kill, Blow::Pause, Blow::Empty],
    excuse: |_, _, _| None,
    harness: super::harness::redlock_harness,
};

/// A master with two replicas and three sentinels. A killed master comes back with its data, and takes itself
/// for a master until the sentinels tell it otherwise.
pub static LOCAL_SENTINEL: Store = Store {
    name: "redis-sentinel",
    missing,
    start: |ttl| {
        // The shortest quarantine that goes with the ttl, or half of a run would be spent in it.
        let max_ttl = ttl.max(Duration::from_secs(1)).as_millis();
        let configure = |config: super::Config| config.line("appendonly yes");
        let all = Sentinels::start_with(2, Duration::from_secs(1), configure);
        let all = all.with_parameters(&format!("max_ttl={max_ttl}ms"));
        super::harness::declare(&all.url());
        Box::new(all)
    },
    blows: &[Blow::Kill, Blow::Pause, Blow::Empty],
    excuse: |_, _, _| None,
    harness: super::harness::sentinel_harness,
};

fn missing() -> Option<&'static str> {
    (!super::is_installed()).then_some("redis-server")
}

local::server!(Server);

fn entries<'a>(servers: impl Iterator<Item = &'a Server>, prefix: &str) -> Vec<String> {
    servers.flat_map(|server| server.keys_like(&format!("lock:{prefix}*"))).collect()
}

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

    fn entries(&self, prefix: &str) -> Vec<String> {
        entries(std::iter::once(self), prefix)
    }
}

#[derive(Debug)]
struct Redlock {
    nodes: Nodes,
    url: String,
}

impl Servers for Redlock {
    fn url(&self) -> String {
        self.url.clone()
    }

    fn count(&self) -> usize {
        self.nodes.len()
    }

    fn get(&mut self, index: usize) -> &mut dyn local::Server {
        &mut self.nodes[index]
    }

    fn entries(&self, prefix: &str) -> Vec<String> {
        entries(self.nodes.iter(), prefix)
    }
}

impl Servers for Sentinels {
    fn url(&self) -> String {
        self.url()
    }

    fn count(&self) -> usize {
        self.count()
    }

    fn get(&mut self, index: usize) -> &mut dyn local::Server {
        &mut self[index]
    }

    fn leaders(&self) -> Vec<usize> {
        self.master().into_iter().collect()
    }

    fn entries(&self, prefix: &str) -> Vec<String> {
        let master = self.master().map(|master| &self[master]);
        entries(master.into_iter(), prefix)
    }
}
