//! How a server shall be started. Written to a file, so that no password shows in the process list.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::Server;
use crate::Certificates;

/// How a server shall be started.
#[derive(Clone, Debug, Default)]
#[must_use = "nothing runs until `start`"]
pub struct Config {
    pub(super) login: Option<(Option<String>, String)>,
    pub(super) tls: Option<Tls>,
    pub(super) movable_clock: bool,
    /// What to run, if not the usual program.
    pub(super) program: Option<PathBuf>,
    /// Those of another server, to be shared.
    pub(super) certificates: Option<Certificates>,
    pub(super) is_in_cluster: bool,
    lines: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Tls {
    pub(super) client_certificate: bool,
    pub(super) expired: bool,
}

impl Config {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Asks every client for this password.
    pub fn password(mut self, password: &str) -> Self {
        self.login = Some((None, password.to_owned()));
        // The second is what a replica logs in with, at a master that asks for the same.
        self.line(format!("requirepass {password}")).line(format!("masterauth {password}"))
    }

    /// Lets in one user with this password and nobody else.
    pub fn user(mut self, user: &str, password: &str) -> Self {
        self.login = Some((Some(user.to_owned()), password.to_owned()));
        self.line("user default off")
            .line(format!("user {user} on >{password} ~* &* +@all"))
            .line(format!("masteruser {user}"))
            .line(format!("masterauth {password}"))
    }

    /// Speaks TLS only.
    pub fn tls(mut self) -> Self {
        self.tls = Some(Tls { client_certificate: false, expired: false });
        self
    }

    /// Speaks TLS only, with a certificate that ended years ago.
    pub fn tls_expired(mut self) -> Self {
        self.tls = Some(Tls { client_certificate: false, expired: true });
        self
    }

    /// Speaks TLS only, and only to clients that show a certificate.
    pub fn tls_with_client_certificate(mut self) -> Self {
        self.tls = Some(Tls { client_certificate: true, expired: false });
        self
    }

    /// Sets what the server does when its memory is full.
    pub fn maxmemory_policy(self, policy: &str) -> Self {
        self.line("maxmemory 64mb").line(format!("maxmemory-policy {policy}"))
    }

    /// Makes it a read-only replica of another server.
    pub fn replica_of(self, primary: &Server) -> Self {
        let addr = primary.addr();
        self.line(format!("replicaof {} {}", addr.ip(), addr.port()))
    }

    /// Gives it a wall clock of its own, for [`Server::set_clock`]. Linux only.
    pub fn movable_clock(mut self) -> Self {
        self.movable_clock = true;
        // That thread of the allocator sleeps until a time of day, which for the kernel is the true one: with
        // a clock that is behind it would never sleep.
        self.line("jemalloc-bg-thread no")
    }

    /// Runs this program, one of [`programs`](super::programs).
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// Makes it a node of a cluster.
    pub(super) fn cluster(mut self) -> Self {
        self.is_in_cluster = true;
        self.line("cluster-enabled yes")
            .line("cluster-node-timeout 3000")
            .line("cluster-require-full-coverage no")
            // A replica that has been cut off for long may be promoted all the same.
            .line("cluster-replica-validity-factor 0")
            .line("repl-diskless-sync-delay 0")
    }

    /// Adds a line to `redis.conf`.
    pub fn line(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Panics
    /// If it does not start; the message says why.
    pub fn start(self) -> Server {
        Server::start_with(self)
    }

    pub(super) fn text(
        &self,
        port: u16,
        socket: &Path,
        folder: &Path,
        certificates: Option<&Certificates>,
    ) -> String {
        let mut text = String::new();
        let mut line =
            |line: &dyn std::fmt::Display| writeln!(text, "{line}").expect("a string takes any line");
        line(&"bind 127.0.0.1");
        line(&"save \"\"");
        line(&format!("unixsocket \"{}\"", socket.display()));
        line(&format!("dir \"{}\"", folder.display()));
        match (self.tls, certificates) {
            (Some(tls), Some(files)) => {
                line(&"port 0");
                line(&format!("tls-port {port}"));
                line(&format!("tls-ca-cert-file \"{}\"", files.ca.display()));
                line(&format!("tls-cert-file \"{}\"", files.server.display()));
                line(&format!("tls-key-file \"{}\"", files.server_key.display()));
                line(&format!("tls-auth-clients {}", if tls.client_certificate { "yes" } else { "no" }));
                if self.is_in_cluster {
                    line(&"tls-cluster yes");
                    line(&"tls-replication yes");
                    // To each other they are clients.
                    line(&format!("tls-client-cert-file \"{}\"", files.client.display()));
                    line(&format!("tls-client-key-file \"{}\"", files.client_key.display()));
                }
            }
            _ => line(&format!("port {port}")),
        }
        self.lines.iter().for_each(|extra| line(extra));
        text
    }
}
