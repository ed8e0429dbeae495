//! Deals faults to servers that were started for the run, one at a time, on a thread of its own: a server
//! that starts again takes its time.

use std::sync::Arc;
use std::time::Duration;

use fencepost_testkit::history::{Moment, Target};
use fencepost_testkit::local::{Blow, Kind, Local};

use super::dice::Dice;
use super::workers::{Shared, locked};
use super::{Fault, Plan};

/// Breaks servers for as long as the run lasts.
pub(crate) struct ServerNemesis {
    plan: Arc<Plan>,
    shared: Arc<Shared>,
    kind: Kind,
    local: Local,
    dice: Dice,
}

impl ServerNemesis {
    pub(crate) fn new(plan: Arc<Plan>, shared: Arc<Shared>, kind: Kind, local: Local) -> Self {
        let dice = Dice::new(plan.seed ^ 2);
        Self { plan, shared, kind, local, dice }
    }

    /// Breaks and mends until the run is over; returns the servers, all running.
    pub(crate) fn run(mut self) -> Local {
        let blows: Vec<_> =
            self.kind.0.blows.iter().copied().filter(|blow| self.plan.deals(Fault::Server(*blow))).collect();
        if blows.is_empty() {
            return self.local;
        }
        let ttl = self.plan.ttl;
        let mut round = Vec::new();
        while self.rest(ttl, ttl * 3) {
            if round.is_empty() {
                round.clone_from(&blows);
            }
            let blow = round.swap_remove(self.dice.below(round.len()));
            self.strike(blow);
        }
        self.local
    }

    fn strike(&mut self, blow: Blow) {
        let (ttl, count) = (self.plan.ttl, self.local.servers());
        let leaders = self.local.leaders();
        // A leader is where it hurts.
        let aimed = !leaders.is_empty() && (blow.is_for_leaders() || self.dice.in_hundred(50));
        let server = if aimed { leaders[self.dice.below(leaders.len())] } else { self.dice.below(count) };
        let led = leaders.contains(&server);
        let name = if count == 1 { "the server".to_owned() } else { format!("server {}", server + 1) };
        let name = match (led, leaders.len()) {
            (false, _) => name,
            (true, 1) => format!("{name} (the leader)"),
            (true, _) => format!("{name} (a master)"),
        };
        let kind = Fault::Server(blow).name();
        let excuse = self.kind.excuse(blow, ttl, led);
        let fault = locked(&self.shared.collector).begin(kind, Target::Server(name), excuse);
        self.local.strike(blow, server);
        if self.local.feels(blow, server) {
            locked(&self.shared.collector).struck(fault);
        }
        let most = if count == 1 { ttl } else { ttl * 2 };
        self.rest(ttl / 20, most);
        self.local.mend(blow, server);
        locked(&self.shared.collector).end(fault);
        if led && self.local.leaders().contains(&server) {
            // A leader that nobody has replaced explains less.
            locked(&self.shared.collector).faults[fault].excuse = self.kind.excuse(blow, ttl, false);
        }
    }

    /// Waits for a while; `false` if the run is over.
    fn rest(&mut self, least: Duration, most: Duration) -> bool {
        let until = Moment::now().plus(self.dice.between(least, most));
        while Moment::now() < until && !self.shared.is_over() {
            std::thread::sleep(Duration::from_millis(10));
        }
        !self.shared.is_over()
    }
}
