//! A store that is started to be measured: its URL, and what its servers have used.

use fencepost_measure::usage::processor_time;
use fencepost_testkit::redis::{Cluster, Server};

pub(super) struct Target {
    pub(super) url: String,
    servers: Servers,
}

enum Servers {
    One(Box<Server>),
    Cluster(Cluster),
}

impl Target {
    pub(super) fn redis() -> Self {
        let server = Box::new(Server::start());
        Self { url: server.url(), servers: Servers::One(server) }
    }

    /// A cluster of so many masters, without replicas.
    pub(super) fn cluster(masters: usize) -> Self {
        let cluster = Cluster::start(masters, 0);
        Self { url: format!("{}?allow=failover", cluster.url()), servers: Servers::Cluster(cluster) }
    }

    fn servers(&self) -> Box<dyn Iterator<Item = &Server> + '_> {
        match &self.servers {
            Servers::One(server) => Box::new(std::iter::once(&**server)),
            Servers::Cluster(cluster) => Box::new(cluster.iter()),
        }
    }

    /// Processor time of its servers so far, in microseconds.
    pub(super) fn spent(&self) -> f64 {
        self.servers().map(|server| processor_time(server.pid()) / 1e3).sum()
    }

    /// How many scripts they have run.
    pub(super) fn scripts(&self) -> f64 {
        self.servers().map(|server| server.evalsha_calls() as f64).sum()
    }

    /// The memory of their data, in bytes.
    pub(super) fn memory(&self) -> f64 {
        let of = |server: &Server| {
            let info = server.cli(&["INFO", "memory"]);
            let line = info.lines().find_map(|line| line.strip_prefix("used_memory:")).map(str::to_owned);
            line.and_then(|bytes| bytes.parse::<f64>().ok()).expect("every server says so")
        };
        self.servers().map(of).sum()
    }
}
