//! A standby that follows a server, and takes its place when it is told to.

use std::net::SocketAddr;

use super::{Config, Server, binary, done, user_command};

impl Server {
    /// Starts a standby of a server that was started with [`Config::replicated`], which it reaches by way of
    /// `address`: its own, or that of a [`Proxy`](crate::Proxy).
    ///
    /// # Panics
    /// If it does not start; the message says why.
    pub fn start_standby(address: SocketAddr) -> Self {
        let source = format!("host={} port={} user=postgres", address.ip(), address.port());
        Self::launched(Config::new().replicated(), |server| {
            let mut copy = user_command(&binary("pg_basebackup"));
            copy.args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "-d", &source, "-D"]);
            done(copy.arg(server.data()));
        })
    }

    /// Makes a standby a server of its own; returns when it takes writes.
    ///
    /// # Panics
    /// If it does not.
    pub fn promote(&self) {
        assert_eq!(self.psql("postgres", "SELECT pg_promote()"), "t", "{}", self.log());
    }
}
