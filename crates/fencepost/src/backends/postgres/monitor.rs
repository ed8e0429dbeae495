//! The held locks of a client, and the task that looks after those of one session. It gives back those
//! whose lease has ended, so that others can have them, and asks the server now and then whether the
//! rest are still there.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::client::Client;
use super::hold::{self, RowState};
use super::keys::Key;
use super::session::{AdvisorySlot, Session};
use crate::backend::Request;
use crate::runtime::clock::Moment;
use crate::runtime::loss_signal::LossSignal;
use crate::runtime::sync::lock;
use crate::{Handle, Loss, Name, Owner};

/// How often a session is looked after. Two seconds after the end of a lease, waiters end the session
/// that keeps its advisory lock.
const TICK: Duration = Duration::from_secs(1);

/// Every so many ticks the server is asked for all locks, however long their ttl is.
const HEARTBEAT: u32 = 5;

/// Every so many ticks rows that nobody has used for a day are deleted.
const COLLECTION: u32 = 3600;

/// What a held lock ends with, beside its lease.
#[derive(Debug)]
pub(super) enum HeldKind {
    /// The session, which has its advisory lock; without one, it is a lease alone.
    OfSession(Arc<Session>, Option<AdvisorySlot>),
    /// The same, but the answer has not come, or nobody has looked at it.
    Asked(Arc<Session>),
    /// Nothing: it was attached, and is renewed and given back by this handle.
    Attached(Handle),
}

/// One held lock, as the client knows it.
#[derive(Debug)]
pub(super) struct HeldRow {
    pub(super) key: Key,
    pub(super) name: Name,
    pub(super) owner: Owner,
    pub(super) signal: Arc<LossSignal>,
    pub(super) kind: HeldKind,
    /// When the lease ends, by our clock.
    until: Mutex<Moment>,
    /// The monitor gives it back, or has.
    given_back: AtomicBool,
}

impl HeldRow {
    pub(super) fn new(key: Key, request: &Request, kind: HeldKind, until: Moment) -> Self {
        let (name, owner, signal) = (request.name.clone(), request.owner(), request.signal.clone());
        Self { key, name, owner, signal, kind, until: Mutex::new(until), given_back: AtomicBool::new(false) }
    }

    /// A lock that is asked for. Its signal is nobody's: the request may be repeated.
    pub(super) fn asked(key: Key, request: &Request, session: &Arc<Session>, until: Moment) -> Self {
        let row = Self::new(key, request, HeldKind::Asked(session.clone()), until);
        Self { signal: Arc::default(), ..row }
    }

    pub(super) fn until(&self) -> Moment {
        *lock(&self.until)
    }

    pub(super) fn session(&self) -> Option<&Arc<Session>> {
        match &self.kind {
            HeldKind::OfSession(session, _) | HeldKind::Asked(session) => Some(session),
            HeldKind::Attached(_) => None,
        }
    }

    pub(super) fn is_on(&self, session: &Arc<Session>) -> bool {
        self.session().is_some_and(|own| Arc::ptr_eq(own, session))
    }

    pub(super) fn is_advisory(&self) -> bool {
        matches!(self.kind, HeldKind::OfSession(_, Some(_)) | HeldKind::Asked(_))
    }

    pub(super) fn is_asked(&self) -> bool {
        matches!(self.kind, HeldKind::Asked(_))
    }

    /// Whether the monitor gives it back, or has.
    pub(super) fn is_given_back(&self) -> bool {
        self.given_back.load(Ordering::Acquire)
    }

    /// Whether it is of a session that has ended.
    pub(super) fn is_orphaned(&self) -> bool {
        self.session().is_some_and(|session| !session.is_usable())
    }
}

/// The locks that may have been granted, and are not given back yet. Whoever is about to end one takes it
/// out first.
#[derive(Debug, Default)]
pub(super) struct HeldRows(Mutex<HashMap<Owner, Arc<HeldRow>>>);

impl HeldRows {
    pub(super) fn insert(&self, row: &Arc<HeldRow>) {
        lock(&self.0).insert(row.owner, row.clone());
        if row.is_orphaned() {
            row.signal.raise(Loss::SessionEnded);
            self.remove(row);
        }
    }

    /// Forgets a lock: `false` if it is not there.
    pub(super) fn remove(&self, row: &Arc<HeldRow>) -> bool {
        Self::remove_from(&mut lock(&self.0), row)
    }

    /// Forgets a lock that is given back, if its lease has not been renewed beyond `now`.
    pub(super) fn remove_to_give_back(&self, row: &Arc<HeldRow>, now: Moment) -> bool {
        let mut rows = lock(&self.0);
        let removed = row.until() <= now && Self::remove_from(&mut rows, row);
        row.given_back.fetch_or(removed, Ordering::AcqRel);
        removed
    }

    /// Notes that the server has renewed a lock: `false` if the monitor gives it back after that.
    pub(super) fn lengthen(&self, row: &HeldRow, until: Moment) -> bool {
        let _rows = lock(&self.0);
        let mut ends = lock(&row.until);
        *ends = (*ends).max(until);
        !row.is_given_back()
    }

    fn remove_from(rows: &mut HashMap<Owner, Arc<HeldRow>>, row: &Arc<HeldRow>) -> bool {
        let found = rows.get(&row.owner).is_some_and(|found| Arc::ptr_eq(found, row));
        if found {
            rows.remove(&row.owner);
        }
        found
    }

    pub(super) fn get(&self, owner: Owner) -> Option<Arc<HeldRow>> {
        lock(&self.0).get(&owner).cloned()
    }

    /// The locks that end with a session.
    pub(super) fn on(&self, session: &Arc<Session>) -> Vec<Arc<HeldRow>> {
        lock(&self.0).values().filter(|row| row.is_on(session)).cloned().collect()
    }

    /// A session has ended, and its advisory locks with it.
    pub(super) fn end_with_their_sessions(&self) {
        lock(&self.0).retain(|_, row| {
            if row.is_orphaned() {
                row.signal.raise(Loss::SessionEnded);
            }
            !row.is_orphaned()
        });
    }
}

/// Looks after a session until it or the client is gone. Waits for no answer: a late one must not keep ended
/// leases from being given back.
pub(super) async fn watch(client: Weak<Client>, session: Weak<Session>) {
    let mut heartbeat: Option<JoinHandle<()>> = None;
    for tick in 0u32.. {
        {
            let (Some(client), Some(session)) = (client.upgrade(), session.upgrade()) else { return };
            if !session.is_usable() {
                return;
            }
            let (keeper, now) = (client.keeper(), client.clock.now());
            if tick % COLLECTION == 0 {
                keeper.spawn(collect(client.clone()));
            }
            for row in client.held.on(&session).into_iter().filter(|row| row.until() <= now) {
                hold::give_back(&client, row, now);
            }
            if tick % HEARTBEAT == 0 && heartbeat.as_ref().is_none_or(JoinHandle::is_finished) {
                heartbeat = Some(keeper.runtime().spawn(ask_for_all(client.clone(), session)));
            }
        }
        tokio::time::sleep(TICK).await;
    }
}

/// Asks the server whether the locks of a session are still there.
async fn ask_for_all(client: Arc<Client>, session: Arc<Session>) {
    let (now, mut live) = (client.clock.now(), client.held.on(&session));
    live.retain(|row| row.until() > now && !row.is_asked());
    if live.is_empty() {
        return;
    }
    let terms = vec![None; live.len()];
    match hold::check_rows(&client, &session, client.config.timeout, &live, &terms).await {
        Ok(states) => {
            for (row, state) in live.iter().zip(states) {
                if let RowState::Lost(why) = state {
                    row.signal.raise(why);
                }
            }
        }
        Err(error) => tracing::debug!(%error, "looking after locks failed"),
    }
}

async fn collect(client: Arc<Client>) {
    let Ok(admin) = client.admin().await else { return };
    if let Err(error) = admin.client.batch_execute(&client.config.sql("SELECT @schema@.collect()")).await {
        tracing::debug!(%error, "deleting idle rows failed");
    }
}
