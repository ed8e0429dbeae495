//! How a server is started.

use std::path::Path;

use super::Server;
use crate::Certificates;

/// The superuser is trusted; everybody else has a password.
pub(super) const HBA: &str = "\
local all all trust
host all postgres 127.0.0.1/32 trust
host all all 127.0.0.1/32 scram-sha-256
host replication postgres 127.0.0.1/32 trust
";

/// What a server shall be like.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Config {
    pub(super) tls: bool,
    fsync: bool,
    more: Vec<String>,
}

impl Config {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Speaks TLS to whoever asks for it.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Writes through to the disk, as a server with data that matters does.
    pub fn fsync(mut self) -> Self {
        self.fsync = true;
        self
    }

    /// Lets standbys follow it.
    pub fn replicated(self) -> Self {
        self.line("wal_level = replica").line("max_wal_senders = 4")
    }

    /// One more line of `postgresql.conf`.
    pub fn line(mut self, line: &str) -> Self {
        self.more.push(line.to_owned());
        self
    }

    /// Starts the server.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(self) -> Server {
        Server::start_with(self)
    }

    pub(super) fn text(&self, port: u16, folder: &Path, certificates: Option<&Certificates>) -> String {
        let mut lines = vec![
            "listen_addresses = '127.0.0.1'".to_owned(),
            format!("port = {port}"),
            format!("unix_socket_directories = '{}'", folder.display()),
            format!("fsync = {}", if self.fsync { "on" } else { "off" }),
            // In its folder, not in the system's, where nobody would clean up after a crash.
            "dynamic_shared_memory_type = mmap".to_owned(),
            "shared_buffers = 16MB".to_owned(),
            "max_connections = 200".to_owned(),
            "wal_level = minimal".to_owned(),
            "max_wal_senders = 0".to_owned(),
        ];
        if let Some(files) = certificates {
            lines.push("ssl = on".to_owned());
            lines.push(format!("ssl_cert_file = '{}'", files.server.display()));
            lines.push(format!("ssl_key_file = '{}'", files.server_key.display()));
        }
        lines.extend(self.more.iter().cloned());
        lines.join("\n") + "\n"
    }
}
