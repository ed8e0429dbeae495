//! A real pgbouncer in front of a server.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use super::{Server, give, user_words};
use crate::eventually::{LIMIT, within};
use crate::process::Process;
use crate::{Folder, port};

/// For how long a client keeps its connection to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Until it disconnects.
    Session,
    /// Until its transaction ends.
    Transaction,
    /// For one statement.
    Statement,
}

/// A running pooler. Dropping it ends the process and removes its folder.
#[derive(Debug)]
pub struct Bouncer {
    port: u16,
    _process: Process,
    _folder: Folder,
}

impl Bouncer {
    /// Starts a pooler for all databases of a server.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(server: &Server, pooling: Pooling) -> Self {
        let folder = Folder::new("pgbouncer");
        give(folder.path());
        for _ in 0..10 {
            let port = port::free();
            let mode = format!("{pooling:?}").to_lowercase();
            let text = format!(
                "[databases]\n* = host={} port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = \
                {port}\n\
                 unix_socket_dir =\nauth_type = any\npool_mode = {mode}\ndefault_pool_size = 5\n",
                server.socket().display(),
                server.addr().port(),
            );
            // With `any` everybody is the user of the connection string.
            let text = text.replace("* = ", "* = user=postgres ");
            let file = folder.path().join("pgbouncer.ini");
            fs::write(&file, text).expect("the folder is writable");
            let mut words = user_words("/usr/sbin/pgbouncer");
            words.push(file.display().to_string());
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let process = Process::start(folder.path(), &[], words[0], &words[1..]);
            let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let answered = within(LIMIT, &mut || process.is_dead() || TcpStream::connect(addr).is_ok());
            if answered && !process.is_dead() {
                return Self { port, _process: process, _folder: folder };
            }
        }
        let log = fs::read_to_string(folder.path().join("log")).unwrap_or_default();
        panic!("pgbouncer does not start; is the Debian package `pgbouncer` installed?\n{log}");
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }
}
