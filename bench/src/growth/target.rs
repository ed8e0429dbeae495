//! A store that is started to be measured: its URL, and what its servers have used.

use fencepost_measure::usage::processor_time;
use fencepost_testkit::redis::Server;

pub(super) struct Target {
    pub(super) url: String,
    servers: Vec<Server>,
}

impl Target {
    pub(super) fn redis() -> Self {
        let server = Server::start();
        Self { url: server.url(), servers: vec![server] }
    }

    /// Processor time of its servers so far, in microseconds.
    pub(super) fn spent(&self) -> f64 {
        self.servers.iter().map(|server| processor_time(server.pid()) / 1e3).sum()
    }

    /// How many scripts they have run.
    pub(super) fn scripts(&self) -> f64 {
        self.servers.iter().map(|server| server.evalsha_calls() as f64).sum()
    }

    /// The memory of their data, in bytes.
    pub(super) fn memory(&self) -> f64 {
        let of = |server: &Server| {
            let info = server.cli(&["INFO", "memory"]);
            let line = info.lines().find_map(|line| line.strip_prefix("used_memory:")).map(str::to_owned);
            line.and_then(|bytes| bytes.parse::<f64>().ok()).expect("every server says so")
        };
        self.servers.iter().map(of).sum()
    }
}
