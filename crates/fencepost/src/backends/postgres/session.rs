//! The session that has the advisory locks of a client: its connection, the functions that it calls, and its
//! share of the server's lock table.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};

use super::config::Config;
use super::driver::{Connection, ServerProcess, quoted};
use crate::Result;
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::sync::lock;

/// The functions of the schema that a session calls. They are prepared when it connects.
#[derive(Clone, Copy, Debug)]
pub(super) enum Function {
    Acquire,
    Release,
    Renew,
    Leave,
    Detach,
    Attach,
    RenewDetached,
    ReleaseDetached,
}

#[derive(Debug)]
pub(super) struct Session {
    connection: Connection,
    pub(super) backend: ServerProcess,
    pub(super) quota: Arc<AdvisoryQuota>,
    /// By [`Function`].
    statements: [Statement; 8],
    clock: Clock,
    /// When the server answered last.
    heard: Mutex<Moment>,
}

impl Session {
    pub(super) async fn prepare(
        config: &Config,
        connection: Connection,
        backend: ServerProcess,
        clock: Clock,
    ) -> Result<Self> {
        let prepare = async |function: &str, arguments: usize| {
            let places: Vec<_> = (1..=arguments).map(|place| format!("${place}")).collect();
            let sql = config.sql(&format!("SELECT * FROM @schema@.{function}({})", places.join(", ")));
            connection.client.prepare(&sql).await.map_err(|error| config.error(error))
        };
        let all = tokio::try_join!(
            prepare("acquire", 17),
            prepare("release", 7),
            prepare("renew", 6),
            prepare("leave", 5),
            prepare("detach", 7),
            prepare("attach", 12),
            prepare("renew_detached", 7),
            prepare("release_detached", 6),
        )?;
        let statements = [all.0, all.1, all.2, all.3, all.4, all.5, all.6, all.7];
        let quota = Arc::new(AdvisoryQuota::new(backend.lock_table));
        let heard = Mutex::new(clock.now());
        Ok(Self { connection, backend, quota, statements, clock, heard })
    }

    #[cfg(test)]
    pub(super) fn client(&self) -> &tokio_postgres::Client {
        &self.connection.client
    }

    pub(super) fn is_usable(&self) -> bool {
        self.connection.is_usable()
    }

    pub(super) fn close(&self) {
        self.connection.close();
    }

    /// Calls a function. The call is sent at the first poll, after all that was sent before.
    pub(super) async fn call(
        &self,
        function: Function,
        arguments: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let rows = self.connection.client.query(&self.statements[function as usize], arguments).await;
        *lock(&self.heard) = self.clock.now();
        if rows.as_ref().is_err_and(is_over) {
            self.close();
        }
        rows
    }

    pub(super) async fn listen(&self, channel: &str) -> Result<(), tokio_postgres::Error> {
        self.connection.client.batch_execute(&format!("LISTEN {}", quoted(channel))).await
    }

    pub(super) async fn ping(&self) -> Result<(), tokio_postgres::Error> {
        self.connection.client.simple_query("SELECT 1").await.map(drop)
    }

    pub(super) fn heard_since(&self, moment: Moment) -> bool {
        *lock(&self.heard) >= moment
    }
}

/// The server ends the session, another backend serves it, or somebody has reset it. Its locks are gone.
fn is_over(error: &tokio_postgres::Error) -> bool {
    let Some(refusal) = error.as_db_error() else { return false };
    let code = refusal.code();
    matches!(refusal.parsed_severity(), Some(Severity::Fatal | Severity::Panic))
        || code.code() == "FP001"
        || *code == SqlState::INVALID_SQL_STATEMENT_NAME
}

/// How many advisory locks a session may have. All sessions of a server share its lock table, and nobody
/// can connect when it is full. So a session takes a quarter of it at most, and nothing while it is half
/// full. Beyond that its locks are leases alone.
#[derive(Debug)]
pub(super) struct AdvisoryQuota {
    table: usize,
    taken: AtomicUsize,
    /// The table was half full when we looked last.
    crowded: AtomicBool,
}

/// An advisory lock that a session has, or asks for.
#[derive(Debug)]
pub(super) struct AdvisorySlot(Arc<AdvisoryQuota>);

impl AdvisoryQuota {
    pub(super) fn new(table: usize) -> Self {
        Self { table, taken: AtomicUsize::new(0), crowded: AtomicBool::new(false) }
    }

    /// Takes one; one that is `needed` also where others fill the table.
    pub(super) fn take(self: &Arc<Self>, needed: bool) -> Option<AdvisorySlot> {
        if self.crowded.load(Ordering::Relaxed) && !needed {
            return None;
        }
        let more = |taken| Some(taken + 1).filter(|taken| *taken <= self.most());
        let taken = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.ok().map(|_| AdvisorySlot(self.clone()))
    }

    pub(super) fn most(&self) -> usize {
        self.table / 4
    }

    /// Notes how many locks of everybody are in the table.
    pub(super) fn saw(&self, locks: usize) {
        self.crowded.store(locks > self.table / 2, Ordering::Relaxed);
    }
}

impl Drop for AdvisorySlot {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}
