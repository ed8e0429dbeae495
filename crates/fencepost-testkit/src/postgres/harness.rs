//! A database of its own on a PostgreSQL that all tests share, as a store under test. What a test stops is
//! its
//! link to it.

use super::Server;
use crate::Proxy;
use crate::conformance::{Harness, Logged, TestStore};

struct Database {
    server: &'static Server,
    name: String,
    link: Proxy,
}

/// An empty one.
pub(super) fn harness() -> Harness {
    let server = Server::shared();
    Harness::new(Database { server, name: server.create_database(), link: Proxy::start(server.addr()) })
}

impl TestStore for Database {
    fn url(&self) -> String {
        // Longer than the default, so that a busy machine does not exceed it.
        format!("{}?timeout=10s", self.server.url_at(self.link.addr(), &self.name))
    }

    fn stop(&self) {
        self.link.stall();
    }

    fn resume(&self) {
        self.link.pass();
    }

    fn remove(&self, name: &str) {
        let sql = format!("DELETE FROM fencepost.locks WHERE name = '{name}' RETURNING 1");
        assert_eq!(self.server.psql(&self.name, &sql), "1");
    }

    fn traces(&self) -> usize {
        let sql = "SELECT (SELECT count(*) FROM fencepost.locks WHERE owner IS NOT NULL) + \
                   (SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
                    WHERE l.locktype = 'advisory' AND d.datname = current_database())";
        self.server.psql(&self.name, sql).parse().expect("a count")
    }

    fn with_login(&self, password: &str) -> Option<Logged> {
        let role = format!("alice_{}", self.name);
        self.server.psql(&self.name, &format!("CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{password}'"));
        let url = self.url();
        let logged = url.replace("//postgres@", &format!("//{role}:{password}@"));
        assert_ne!(logged, url);
        Some((logged, Box::new(())))
    }
}
