//! Processor time that one cycle takes, in the client and in all servers. Says more than rates where others
//! use the machine at the same time: it is the same however long somebody has to wait for a core.

use std::ops::{AddAssign, Sub};

use fencepost_measure::usage::processor_time;
use fencepost_testkit::redis::{Nodes, Server};

use crate::rounds::{Slice, report_number};

/// In nanoseconds.
#[derive(Clone, Copy, Default)]
struct Spent {
    client: f64,
    servers: f64,
}

impl Spent {
    fn so_far(nodes: &Nodes) -> Self {
        let servers = nodes.iter().map(Server::pid).map(processor_time).sum();
        Self { client: processor_time(std::process::id()), servers }
    }
}

impl Sub for Spent {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { client: self.client - other.client, servers: self.servers - other.servers }
    }
}

impl AddAssign for Spent {
    fn add_assign(&mut self, other: Self) {
        self.client += other.client;
        self.servers += other.servers;
    }
}

/// What the cycles of several slices took together.
#[derive(Default)]
pub(super) struct Bill {
    spent: Spent,
    cycles: usize,
}

impl Bill {
    /// Measures a slice and adds what it took.
    pub(super) fn add(&mut self, nodes: &Nodes, measure: impl FnOnce() -> Slice) -> Slice {
        let before = Spent::so_far(nodes);
        let slice = measure();
        self.spent += Spent::so_far(nodes) - before;
        self.cycles += slice.times.len();
        slice
    }

    /// Client, servers, and both, in microseconds a cycle.
    fn a_cycle(&self) -> [f64; 3] {
        let Spent { client, servers } = self.spent;
        [client, servers, client + servers].map(|time| time / 1e3 / self.cycles.max(1) as f64)
    }
}

pub(super) fn report(what: &str, ours: &Bill, theirs: &Bill) {
    let [client, servers, all] = ours.a_cycle();
    let [their_client, their_servers, their_all] = theirs.a_cycle();
    let detail = format!(
        "{client:.1} + {servers:.1} us beside {their_client:.1} + {their_servers:.1} us, client + servers"
    );
    report_number(what, all / their_all, &detail, None);
}
