//! One PostgreSQL, as a store of locks.

use std::time::Duration;

use super::Server;
use crate::history::Cause;
use crate::local::{self, Blow, Servers, Store};

/// One server with a database of its own.
pub static LOCAL: Store = Store {
    name: "postgres",
    missing: || (!super::is_installed()).then_some("postgresql"),
    start: |_| {
        let server = Server::start();
        let database = server.create_database();
        Box::new(Database { url: server.url(&database), server })
    },
    blows: &[Blow::Kill, Blow::Pause],
    excuse: |blow, _, _| {
        (blow == Blow::Kill).then_some((
            Cause::ForgotTheNewest(Duration::from_millis(600)),
            "a crash may lose leases that are less than 0.6 s old, and a holder that stands still learns of \
             it \
             late",
        ))
    },
    harness: super::harness::harness,
};

#[derive(Debug)]
struct Database {
    server: Server,
    url: String,
}

impl Servers for Database {
    fn url(&self) -> String {
        self.url.clone()
    }

    fn count(&self) -> usize {
        1
    }

    fn get(&mut self, _: usize) -> &mut dyn local::Server {
        &mut self.server
    }
}

impl local::Server for Server {
    fn addr(&self) -> std::net::SocketAddr {
        self.addr()
    }
    fn pid(&self) -> u32 {
        self.pid()
    }
    fn pause(&self) {
        self.pause();
    }
    fn resume(&self) {
        self.resume();
    }
    fn kill(&mut self) {
        self.kill();
    }
    fn restart(&mut self) {
        self.restart();
    }
    fn restart_empty(&mut self) {
        unreachable!("no promise is about a database that lost its data")
    }
}
