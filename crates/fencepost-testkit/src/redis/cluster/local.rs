//! Three masters with a replica each, as a store of locks.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Cluster, Move, harness, slot};
use crate::history::Cause;
use crate::local::{self, Blow, Servers, Store};

/// Leases end before a replica is promoted, as SAFETY.md advises: a grant that it did not hear of is over by
/// then.
pub static LOCAL: Store = Store {
    name: "redis-cluster",
    missing: || (!crate::redis::is_installed()).then_some("redis-server"),
    start: |ttl| Box::new(Sharded::start(ttl)),
    blows: &[Blow::Kill, Blow::Pause, Blow::Empty, Blow::Failover, Blow::Reshard],
    excuse: |blow, _, replaced| match blow {
        Blow::Empty => Some((
            Cause::Forgot,
            "a master that restarts without its keys before a replica is promoted has forgotten its locks",
        )),
        Blow::Pause if replaced => Some((
            Cause::WokeUp,
            "a master that stood still, was replaced and wakes up may grant before it hears of that",
        )),
        _ => None,
    },
    harness: harness::harness,
};

/// How long a master takes writes that its replica does not confirm, in seconds.
const LAG: u64 = 2;
/// What the machine's clocks and the nodes' timers may add to that.
const MARGIN: u64 = 2;

/// A cluster, with the slots that are on their way.
#[derive(Debug)]
struct Sharded {
    cluster: Cluster,
    moving: Vec<Move>,
    /// Whether the last reshard moved anything.
    has_moved: bool,
    /// How many blows there were so far: their manners take turns.
    blows: usize,
}

impl Sharded {
    fn start(ttl: Duration) -> Self {
        let patience = (ttl + Duration::from_secs(LAG + MARGIN)).as_millis();
        let cluster = Cluster::start_with(3, 1, |config| {
            config
                .line(format!("cluster-node-timeout {patience}"))
                .line("min-replicas-to-write 1")
                .line(format!("min-replicas-max-lag {LAG}"))
        });
        Self { cluster, moving: Vec::new(), has_moved: false, blows: 0 }
    }

    /// Moves all slots of a master that have keys, or begins to; to a master without any those of another
    /// one.
    fn reshard(&mut self, master: usize) {
        let cluster = &self.cluster;
        let used =
            |master: usize| -> BTreeSet<_> { cluster[master].keys().iter().map(|key| slot(key)).collect() };
        let others: Vec<_> = cluster.masters().into_iter().filter(|other| *other != master).collect();
        let other = others[self.blows % others.len()];
        let (slots, to) = match used(master) {
            none if none.is_empty() => (used(other), master),
            slots => (slots, other),
        };
        self.has_moved = !slots.is_empty();
        if cluster.can_move_at_once() && self.blows.is_multiple_of(2) {
            return cluster.move_at_once(slots, to);
        }
        self.moving = slots.into_iter().map(|slot| cluster.begin_move(slot, to)).collect();
        for slot in &self.moving {
            cluster.move_keys(slot, 1);
        }
    }
}

impl Servers for Sharded {
    fn url(&self) -> String {
        self.cluster.url()
    }

    fn count(&self) -> usize {
        self.cluster.len()
    }

    fn get(&mut self, index: usize) -> &mut dyn local::Server {
        &mut self.cluster[index]
    }

    fn leaders(&self) -> Vec<usize> {
        self.cluster.masters()
    }

    fn strike(&mut self, blow: Blow, server: usize) {
        self.blows += 1;
        let replicas = self.cluster.replicas_of(server);
        match blow {
            Blow::Pause => self.cluster[server].pause(),
            Blow::Kill | Blow::Empty => self.cluster[server].kill(),
            Blow::Failover => {
                self.cluster.failover(server);
            }
            Blow::Reshard => self.reshard(server),
        }
        // It comes back to find another one in its place; or, now and then, soon enough.
        let replaced = blow == Blow::Kill || blow == Blow::Pause && self.blows.is_multiple_of(2);
        if replaced && !replicas.is_empty() {
            self.cluster.promoted(&replicas);
        }
    }

    fn feels(&mut self, blow: Blow, server: usize) -> bool {
        match blow {
            Blow::Pause | Blow::Kill | Blow::Empty => !self.cluster[server].is_up(),
            Blow::Failover => !self.cluster.masters().contains(&server),
            Blow::Reshard => self.has_moved,
        }
    }

    fn mend(&mut self, blow: Blow, server: usize) {
        match blow {
            Blow::Pause => self.cluster[server].resume(),
            Blow::Kill => self.cluster[server].restart(),
            Blow::Empty => self.cluster[server].restart_empty(),
            Blow::Failover => {}
            Blow::Reshard => {
                for slot in std::mem::take(&mut self.moving) {
                    self.cluster.end_move(slot);
                }
            }
        }
        self.cluster.settle();
    }

    fn entries(&self, prefix: &str) -> Vec<String> {
        self.cluster.keys_like(&format!("lock:{prefix}*"))
    }
}
