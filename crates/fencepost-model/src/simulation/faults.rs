//! What goes wrong.

use crate::node::Store;

use super::client::{Doing, Link};
use super::plan::{Clocks, Fault};
use super::sights::Sight;
use super::world::{Event, WILD, World, note};

impl World {
    pub(super) fn fault(&mut self) {
        let fault = self.plan.faults[self.random.index(self.plan.faults.len())];
        let (node, client) = (self.random.index(self.plan.nodes), self.random.index(self.plan.clients));
        let long = self.random.within(0..3 * self.plan.ttl);
        note!(self, "{fault:?}: node {node}, client {client}, {long} us");
        match fault {
            Fault::Cut => self.cut(client, node),
            Fault::Partition => self.part(client, node, long),
            Fault::Freeze => {
                let frozen = &mut self.servers[node].frozen_until;
                *frozen = (self.now + long).max(*frozen);
            }
            Fault::Crash => self.crash(client),
            Fault::Pause => {
                self.see(Sight::Pause);
                let paused = &mut self.clients[client].paused_until;
                *paused = (self.now + long).max(*paused);
            }
            Fault::StepClock => self.step_clock(node),
            Fault::Snapshot => self.servers[node].snapshot = self.servers[node].node.store.clone(),
            Fault::RestartEmpty => self.restart(node, Store::default()),
            Fault::RestartOld => {
                let snapshot = self.servers[node].snapshot.clone();
                self.restart(node, snapshot);
            }
            Fault::Replace => {
                (0..self.plan.clients).for_each(|client| self.cut(client, node));
                self.servers[node].replace();
            }
            Fault::Flush => self.servers[node].flush(),
            Fault::Delete => {
                let lock = self.random.index(self.plan.locks);
                self.servers[node].node.store.del(&self.keys[lock].lock);
            }
        }
        let next = self.now + self.random.within(1..2 * self.plan.calm);
        if next < self.plan.duration {
            self.at(next, Event::Fault);
        }
    }

    fn cut(&mut self, client: usize, node: usize) {
        let link = &mut self.clients[client].links[node];
        link.broken = true;
        let connection = link.connection;
        self.servers[node].node.listeners.remove(&super::client::channel(client));
        let noticed = self.now + self.random.within(0..self.plan.ttl / 10);
        self.at(noticed, Event::Cut { client, node, connection });
    }

    /// One link, all links of a client, or all links of a node.
    fn part(&mut self, client: usize, node: usize, long: u64) {
        let until = self.now + long;
        let which = self.random.index(3);
        for (index, state) in self.clients.iter_mut().enumerate() {
            for (other, link) in state.links.iter_mut().enumerate() {
                let hit = [index == client && other == node, index == client, other == node][which];
                if hit {
                    link.parted_until = until;
                }
            }
        }
    }

    /// Everything that a client knows is gone, and so are its connections.
    pub(super) fn crash(&mut self, client: usize) {
        self.see(Sight::Crash);
        let state = &mut self.clients[client];
        state.life += 1;
        state.paused_until = 0;
        state.undos.clear();
        state.met.fill(None);
        state.counters.fill(0);
        if let Doing::Holding(guard) = std::mem::replace(&mut state.doing, Doing::Nothing) {
            self.promises.ended(guard.lock, &format!("client {client} ({})", guard.id));
        }
        for node in 0..self.plan.nodes {
            let parted_until = self.clients[client].links[node].parted_until;
            self.clients[client].links[node] = Link { parted_until, ..Link::new() };
            self.servers[node].node.listeners.remove(&super::client::channel(client));
        }
        self.rest(client);
    }

    fn restart(&mut self, node: usize, store: Store) {
        for client in 0..self.plan.clients {
            self.cut(client, node);
        }
        let now = self.now;
        self.servers[node].restart(store);
        if self.random.chance(0.5) {
            self.servers[node].down_until = now + self.random.within(0..self.plan.ttl);
        }
    }

    fn step_clock(&mut self, node: usize) {
        let (clocks, most) = (self.plan.clocks, self.plan.steady_error());
        let Self { servers, random, now, .. } = self;
        let server = &mut servers[node];
        // What has ended by the old clock may be gone for good, or not.
        if random.chance(0.5) {
            server.node.store.at(server.clock.at(*now) / 1000);
            server.node.store.sweep();
        }
        match clocks {
            Clocks::Good => server.clock.step(random.around(100)),
            Clocks::Stepping => server.clock.set(random.around(most)),
            Clocks::Wild => server.clock.set(random.around(WILD)),
        }
    }

    /// A client that is told to stop finishes what it does.
    pub(super) fn finish(&mut self, client: usize) {
        match &self.clients[client].doing {
            Doing::Waiting(_) => self.leave(client),
            Doing::Holding(guard) => {
                let id = guard.id;
                self.release(client, id);
            }
            Doing::Nothing | Doing::Revoking(_) => {}
        }
    }
}
