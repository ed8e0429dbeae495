//! The session that has the advisory locks of this client, and the locks it holds.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Row, Statement};

use super::config::Config;
use super::key::Key;
use super::wire::{Backend, Wire};
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::loss_signal::LossSignal;
use crate::runtime::sync::lock;
use crate::{Loss, Name, Owner, Result};

/// How often a session looks after its locks, however long their ttl is: what ends a lock early is noticed by then.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(5);

/// How soon a session tries again to give an ended lock back. Two seconds after the end, waiters end the session.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Session {
    pub(super) wire: Wire,
    pub(super) pid: i32,
    /// The backend, as the table of locks names it.
    pub(super) id: String,
    /// The synchronous_commit of what has to outlive the session.
    pub(super) commit: String,
    pub(super) room: Arc<Room>,
    pub(super) statements: Statements,
    /// When the server answered last.
    heard: Mutex<Moment>,
    pub(super) alarm: Arc<Alarm>,
    /// Ends when its last lock does.
    pub(super) retiring: AtomicBool,
}

#[derive(Debug)]
pub(super) struct Statements {
    pub(super) acquire: Statement,
    pub(super) release: Statement,
    pub(super) renew: Statement,
    pub(super) leave: Statement,
}

impl Statements {
    pub(super) async fn prepare(config: &Config, wire: &Wire) -> Result<Self> {
        let prepare = async |text: &str| {
            wire.client.prepare(&config.sql(text)).await.map_err(|error| config.trouble(error))
        };
        let (acquire, release, renew, leave) = tokio::try_join!(
            prepare(
                "SELECT * FROM @schema@.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)"
            ),
            prepare("SELECT * FROM @schema@.release($1, $2, $3, $4, $5, $6, $7)"),
            prepare("SELECT * FROM @schema@.renew($1, $2, $3, $4, $5, $6)"),
            prepare("SELECT @schema@.leave($1, $2, $3, $4, $5)"),
        )?;
        Ok(Self { acquire, release, renew, leave })
    }
}

impl Session {
    pub(super) fn new(wire: Wire, backend: Backend, statements: Statements, now: Moment) -> Self {
        Self {
            wire,
            pid: backend.pid,
            id: backend.id,
            commit: backend.commit,
            room: Arc::new(Room::new(backend.room)),
            statements,
            heard: Mutex::new(now),
            alarm: Arc::default(),
            retiring: AtomicBool::new(false),
        }
    }

    pub(super) fn is_usable(&self) -> bool {
        self.wire.is_usable()
    }

    /// Runs one statement. It is sent at the first poll, behind all that was sent before.
    pub(super) async fn ask(
        &self,
        clock: &Clock,
        statement: &Statement,
        arguments: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        self.answer(clock, self.wire.client.query(statement, arguments)).await
    }

    /// The same for a statement that is not worth preparing.
    pub(super) async fn ask_once(
        &self,
        clock: &Clock,
        sql: &str,
        arguments: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        self.answer(clock, self.wire.client.query_typed(sql, arguments)).await
    }

    async fn answer(
        &self,
        clock: &Clock,
        query: impl Future<Output = Result<Vec<Row>, tokio_postgres::Error>>,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let mut query = pin!(query);
        let first = self.wire.at_once(|| query.as_mut().poll(&mut Context::from_waker(Waker::noop())));
        let rows = match first {
            Poll::Ready(rows) => rows,
            Poll::Pending => query.await,
        };
        *lock(&self.heard) = clock.now();
        if rows.as_ref().is_err_and(is_over) {
            self.wire.close();
        }
        rows
    }

    pub(super) fn heard_since(&self, moment: Moment) -> bool {
        *lock(&self.heard) >= moment
    }
}

/// The session is not what it was: the server ends it, another backend serves it, or somebody has reset it. Its locks are gone.
fn is_over(error: &tokio_postgres::Error) -> bool {
    let Some(refusal) = error.as_db_error() else { return false };
    let code = refusal.code();
    matches!(refusal.parsed_severity(), Some(Severity::Fatal | Severity::Panic))
        || code.code() == "FP001"
        || *code == SqlState::INVALID_SQL_STATEMENT_NAME
}

impl Drop for Session {
    fn drop(&mut self) {
        self.alarm.set(Moment::at(Duration::ZERO));
    }
}

/// The server's table of locks, which all its sessions share. If it is full, nobody can connect any more, so a
/// client takes a quarter of it at most, and nothing of it while it is half full. Beyond that its locks are leases alone.
#[derive(Debug)]
pub(super) struct Room {
    all: usize,
    taken: AtomicUsize,
    /// The table was half full when we looked last.
    crowded: AtomicBool,
}

/// An advisory lock that the session has, or asks for.
#[derive(Debug)]
pub(super) struct Slot(Arc<Room>);

impl Room {
    pub(super) fn new(all: usize) -> Self {
        Self { all, taken: AtomicUsize::new(0), crowded: AtomicBool::new(false) }
    }

    /// Takes a place; one that is `needed` also where others fill the table.
    pub(super) fn take(self: &Arc<Self>, needed: bool) -> Option<Slot> {
        if self.crowded.load(Ordering::Relaxed) && !needed {
            return None;
        }
        let more = |taken| Some(taken + 1).filter(|taken| *taken <= self.quota());
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Slot(self.clone()))
    }

    pub(super) fn quota(&self) -> usize {
        self.all / 4
    }

    /// So many locks there were, of everybody.
    pub(super) fn saw(&self, locks: usize) {
        self.crowded.store(locks > self.all / 2, Ordering::Relaxed);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// When the warden of a session looks next. Apart from the session, which the warden must not keep alive.
#[derive(Debug)]
pub(super) struct Alarm {
    at: Mutex<Moment>,
    sooner: Notify,
}

impl Default for Alarm {
    fn default() -> Self {
        Self { at: Mutex::new(Moment::NEVER), sooner: Notify::new() }
    }
}

impl Alarm {
    /// Rings at `moment` at the latest.
    pub(super) fn set(&self, moment: Moment) {
        let mut at = lock(&self.at);
        if moment < *at {
            *at = moment;
            self.sooner.notify_one();
        }
    }

    /// Waits for `moment`, or for what it was set to meanwhile if that is sooner.
    pub(super) async fn rings(&self, clock: &Clock, moment: Moment) {
        self.set(moment);
        loop {
            let at = *lock(&self.at);
            tokio::select! {
                () = self.sooner.notified() => {}
                () = clock.sleep_until(at), if at != Moment::NEVER => break,
            }
        }
        // What is set from here on is for the time after the round that follows, which sees all that was set before.
        *lock(&self.at) = Moment::NEVER;
    }

    /// Whether it is set to anything.
    #[cfg(test)]
    pub(super) fn is_set(&self) -> bool {
        *lock(&self.at) != Moment::NEVER
    }
}

/// One held lock, as far as others than its guard have to know.
#[derive(Debug)]
pub(super) struct Bond {
    pub(super) key: Key,
    pub(super) name: Name,
    pub(super) owner: Owner,
    pub(super) signal: Arc<LossSignal>,
    /// With which it ends; `None` for one that was attached.
    pub(super) session: Option<Arc<Session>>,
    /// The session has its advisory lock; without, it is a lease alone.
    slot: Option<Slot>,
    /// It has not been given back yet. An advisory lock counts on the server, so it is given back once.
    kept: AtomicBool,
    /// When the lease ends, by our clock.
    pub(super) until: Mutex<Moment>,
}

impl Bond {
    pub(super) fn new(
        key: Key,
        name: Name,
        owner: Owner,
        signal: Arc<LossSignal>,
        session: Option<Arc<Session>>,
        slot: Option<Slot>,
        until: Moment,
    ) -> Arc<Self> {
        let kept = AtomicBool::new(session.is_some());
        Arc::new(Self { key, name, owner, signal, session, slot, kept, until: Mutex::new(until) })
    }

    pub(super) fn is_advisory(&self) -> bool {
        self.slot.is_some()
    }

    /// The session, until the lock is given back.
    pub(super) fn bound(&self) -> Option<&Arc<Session>> {
        self.session.as_ref().filter(|_| self.kept.load(Ordering::Acquire))
    }

    /// Makes the caller the one who gives the lock back; `false` if somebody has.
    pub(super) fn give_up(&self) -> bool {
        self.kept.swap(false, Ordering::AcqRel)
    }

    pub(super) fn until(&self) -> Moment {
        *lock(&self.until)
    }

    pub(super) fn is_on(&self, session: &Arc<Session>) -> bool {
        self.session.as_ref().is_some_and(|own| Arc::ptr_eq(own, session))
    }
}

/// All held locks of a store.
#[derive(Debug, Default)]
pub(super) struct Bonds(Mutex<HashMap<Owner, Arc<Bond>>>);

impl Bonds {
    pub(super) fn insert(&self, bond: &Arc<Bond>, now: Moment) {
        lock(&self.0).insert(bond.owner, bond.clone());
        if let Some(session) = &bond.session {
            session.alarm.set(bond.until().min(now.plus(HEARTBEAT)));
            if !session.is_usable() {
                bond.signal.raise(Loss::SessionEnded);
            }
        }
    }

    /// Forgets a lock, unless it was attached anew, or was not given back, which the warden does when the lease has ended.
    pub(super) fn remove(&self, bond: &Arc<Bond>) {
        if bond.bound().is_some_and(|session| session.is_usable()) {
            return;
        }
        {
            let mut bonds = lock(&self.0);
            if bonds.get(&bond.owner).is_some_and(|found| Arc::ptr_eq(found, bond)) {
                bonds.remove(&bond.owner);
            }
        }
        if let Some(session) = &bond.session
            && session.retiring.load(Ordering::Acquire)
            && self.on(session).is_empty()
        {
            session.wire.close();
        }
    }

    /// A lock may not have been given back after all: the warden tries again. Once too often does no harm, the server looks
    /// whose it is.
    pub(super) fn keep(&self, bond: &Arc<Bond>, now: Moment) {
        bond.kept.store(true, Ordering::Release);
        if let Some(session) = bond.bound().filter(|session| session.is_usable()) {
            lock(&self.0).entry(bond.owner).or_insert_with(|| bond.clone());
            session.alarm.set(bond.until().max(now.plus(RETRY)));
        }
    }

    pub(super) fn get(&self, owner: Owner) -> Option<Arc<Bond>> {
        lock(&self.0).get(&owner).cloned()
    }

    /// The locks that end with a session.
    pub(super) fn on(&self, session: &Arc<Session>) -> Vec<Arc<Bond>> {
        let bonds = lock(&self.0);
        bonds.values().filter(|bond| bond.is_on(session) && bond.bound().is_some()).cloned().collect()
    }

    /// The session has ended, and all its advisory locks with it.
    pub(super) fn end(&self, session: &Arc<Session>) {
        lock(&self.0).retain(|_, bond| {
            let ended = bond.is_on(session);
            if ended {
                bond.signal.raise(Loss::SessionEnded);
            }
            !ended
        });
    }
}
