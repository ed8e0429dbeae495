//! A lock on one Redis that Sentinel finds, through failovers that lose data: when may a new master grant?
//!
//! Two servers, of which one is the master by the sentinels. The other one has a copy of its data that may be
//! as old as it likes. A server that was replaced goes on for a while; it may come back as a replica or, for
//! some time, as a master, with its data or without, and be promoted again. Clients keep their connections
//! through all of that unless the server's process ends. Times are relative, so there is no horizon: a search
//! ends when nothing new can happen. Requests are served at once, which is the worst: a lease counts from the
//! send. Clocks run alike; what their rates differ by is the margin of the guard.
//!
//! What is modelled is the protocol of `backends/redis/sentinel` with `scripts/greet.lua` and
//! `scripts/reign.lua`; the promise is that at most one guard says held.

mod tests;
mod world;

use world::World;

use crate::search::{Model, Steps};

/// The longest lease.
const TTL: u8 = 2;
/// For so long a master writes that hears nothing of its replicas.
const LAG: u8 = 1;
/// For so much longer its replicas may stay with it when another one is promoted.
const GRAIN: u8 = 1;

/// The protocol, with each of its parts there or left out, and what may happen how often.
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// A new master waits.
    key: bool,
    /// For the longest lease, and for as long as the old master may have gone on.
    waits_for_leases: bool,
    waits_for_lag: bool,
    /// The script asks the server who it is, and not only the key.
    asks_the_server: bool,
    /// Clients go where a majority of the sentinels says, not to any server that calls itself master.
    majority: bool,
    /// A master without replicas does not grant; nor renew.
    alone_grants_not: bool,
    alone_renews_not: bool,
    /// A renewal asks whose reign it is, and where the old master may still grant, a lock must outlast that.
    renewals_ask: bool,
    renewals_wait: bool,
    /// A handle is attached only after a quarantine.
    attach_waits: bool,
    clients: usize,
    promotions: u8,
    restarts: u8,
    /// At the beginning the lock was detached, and its handle is known to all.
    detached: bool,
}

const BASE: Rules = Rules {
    key: true,
    waits_for_leases: true,
    waits_for_lag: true,
    asks_the_server: true,
    majority: true,
    alone_grants_not: true,
    alone_renews_not: true,
    renewals_ask: true,
    renewals_wait: true,
    attach_waits: true,
    clients: 2,
    promotions: 2,
    restarts: 1,
    detached: false,
};

impl Rules {
    fn pause(&self) -> u8 {
        let leases = if self.waits_for_leases { TTL } else { 0 };
        leases + if self.waits_for_lag { LAG + GRAIN } else { 0 }
    }
}

impl Model for Rules {
    type State = World;

    fn initial(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn steps(&self, world: &World, steps: &mut Steps<World>) {
        world.steps(self, steps);
    }

    fn canonical(&self, world: World) -> World {
        world.canonical()
    }

    fn violation(&self, _: &World, after: &World) -> Option<String> {
        let held = after.clients.iter().filter(|client| client.left > 0).count();
        (held > 1).then(|| "EXCLUSION two guards say held".to_owned())
    }

    fn sometimes(&self) -> &'static [&'static str] {
        &[
            "a holder, and a master that knows nothing of it",
            "a lock that is held through a failover",
            "a grant after a quarantine",
            "a replaced master that still grants",
        ]
    }

    fn sees(&self, world: &World) -> u32 {
        world.sights()
    }
}
