//! A database of its own for each test, and how to look into it.

#[path = "../common/waiting.rs"]
mod waiting;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost::{Guard, Lock, Locks};
use fencepost_testkit::{LIMIT, postgres::Server};
use tokio_postgres::{Client, NoTls};

pub(crate) use self::waiting::{bounded, until};

/// A ttl that does not end while a test runs.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// A ttl to wait the end of.
pub(crate) const SHORT: Duration = Duration::from_millis(1500);

pub(crate) fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A URL with a timeout that a busy machine does not exceed, for all tests but those about timeouts.
pub(crate) fn calm(url: &str) -> String {
    format!("{url}?timeout=20s")
}

/// A new database on the server that all tests share.
pub(crate) struct Database {
    pub(crate) server: &'static Server,
    pub(crate) name: String,
}

impl Database {
    pub(crate) fn new() -> Self {
        let server = Server::shared();
        Self { server, name: server.create_database() }
    }

    pub(crate) fn url(&self) -> String {
        calm(&self.server.url(&self.name))
    }

    /// By way of a proxy or a pooler.
    pub(crate) fn url_over(&self, addr: SocketAddr) -> String {
        calm(&self.driver_url_over(addr))
    }

    /// The same for the driver itself.
    pub(crate) fn driver_url_over(&self, addr: SocketAddr) -> String {
        self.server.url_at(addr, &self.name)
    }

    pub(crate) async fn locks(&self) -> Locks {
        Locks::connect(&self.url()).await.unwrap()
    }

    /// With more parameters in the URL.
    pub(crate) async fn locks_with(&self, parameters: &str) -> Locks {
        Locks::connect(&format!("{}&{parameters}", self.url())).await.unwrap()
    }

    /// A client of the driver itself.
    pub(crate) async fn client(&self) -> Client {
        let (client, connection) =
            tokio_postgres::connect(&self.server.url(&self.name), NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    pub(crate) fn psql(&self, sql: &str) -> String {
        self.server.psql(&self.name, sql)
    }

    /// Ends the session that holds a lock.
    pub(crate) fn terminate_holder(&self, name: &str) {
        let sql = format!(
            "SELECT pg_terminate_backend(split_part(session, ' ', 1)::int) FROM fencepost.locks WHERE name \
             = '{name}'"
        );
        assert_eq!(self.psql(&sql), "t");
    }

    /// How many advisory locks there are.
    pub(crate) fn advisory_locks(&self) -> String {
        self.psql(
            "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
             WHERE l.locktype = 'advisory' AND l.granted AND d.datname = current_database()",
        )
    }

    /// Whether a session is blocked in `pg_advisory_lock`, or what calls it.
    pub(crate) fn waits_for_an_advisory_lock(&self) -> bool {
        let sql = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
                   WHERE l.locktype = 'advisory' AND NOT l.granted AND d.datname = current_database()";
        self.psql(sql) != "0"
    }

    /// How many locks are held, by the table.
    pub(crate) fn rows(&self) -> String {
        self.psql("SELECT count(*) FROM fencepost.locks WHERE owner IS NOT NULL AND ends > clock_timestamp()")
    }

    pub(crate) async fn is_clear(&self) {
        until("nothing is held", async || self.rows() == "0" && self.advisory_locks() == "0").await;
    }
}

pub(crate) fn patient(locks: &Locks, name: &str) -> Lock {
    locks.lock(name).ttl(LONG).wait(LIMIT)
}

pub(crate) async fn take(locks: &Locks, name: &str) -> Guard {
    patient(locks, name).acquire().await.unwrap()
}

/// A session of psql. It ends with this value.
pub(crate) struct Psql {
    process: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Psql {
    pub(crate) fn start(database: &Database) -> Self {
        let mut process = database
            .server
            .psql_command(&database.name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let commands = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Self { process, commands, answers }
    }

    pub(crate) fn tell(&mut self, sql: &str) {
        writeln!(self.commands.as_mut().unwrap(), "{sql};").unwrap();
    }

    pub(crate) fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    pub(crate) fn ask(&mut self, sql: &str) -> String {
        self.tell(sql);
        self.answer()
    }
}

impl Drop for Psql {
    fn drop(&mut self) {
        drop(self.commands.take());
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Somebody is inside, or nobody: what a lock protects.
#[derive(Clone, Default)]
pub(crate) struct Room(Arc<AtomicBool>);

impl Room {
    pub(crate) fn enter(&self) {
        assert!(!self.0.swap(true, Ordering::SeqCst), "two inside");
    }

    pub(crate) fn leave(&self) {
        self.0.store(false, Ordering::SeqCst);
    }
}
