//! The held locks of a client, and the task that looks after those of one session. It gives back those
//! whose lease has ended, so that others can have them, and asks the server now and then whether the
//! rest are still there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::client::Client;
use super::hold::{self, RowState};
use super::keys::Key;
use super::session::{AdvisorySlot, Session};
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
    pub(super) until: Mutex<Moment>,
}

impl HeldRow {
    pub(super) fn until(&self) -> Moment {
        *lock(&self.until)
    }

    pub(super) fn session(&self) -> Option<&Arc<Session>> {
        match &self.kind {
            HeldKind::OfSession(session, _) => Some(session),
            HeldKind::Attached(_) => None,
        }
    }

    pub(super) fn is_on(&self, session: &Arc<Session>) -> bool {
        self.session().is_some_and(|own| Arc::ptr_eq(own, session))
    }

    pub(super) fn is_advisory(&self) -> bool {
        matches!(self.kind, HeldKind::OfSession(_, Some(_)))
    }

    /// Whether it is of a session that has ended.
    pub(super) fn is_orphaned(&self) -> bool {
        self.session().is_some_and(|session| !session.is_usable())
    }
}

/// The locks that were granted and not given back yet.
#[derive(Debug, Default)]
pub(super) struct HeldRows(Mutex<HashMap<Owner, Arc<HeldRow>>>);

impl HeldRows {
    pub(super) fn insert(&self, row: &Arc<HeldRow>) {
        lock(&self.0).insert(row.owner, row.clone());
        if row.is_orphaned() {
            row.signal.raise(Loss::SessionEnded);
        }
    }

    /// Forgets a lock, unless it was attached anew.
    pub(super) fn remove(&self, row: &Arc<HeldRow>) {
        let mut rows = lock(&self.0);
        if rows.get(&row.owner).is_some_and(|found| Arc::ptr_eq(found, row)) {
            rows.remove(&row.owner);
        }
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

/// Looks after a session until it or the client is gone.
pub(super) async fn watch(client: Weak<Client>, session: Weak<Session>) {
    for tick in 0u32.. {
        {
            let (Some(client), Some(session)) = (client.upgrade(), session.upgrade()) else { return };
            if !session.is_usable() {
                return;
            }
            if tick % COLLECTION == 0 {
                client.keeper().spawn(collect(client.clone()));
            }
            look_after(&client, &session, tick % HEARTBEAT == 0).await;
        }
        tokio::time::sleep(TICK).await;
    }
}

async fn look_after(client: &Arc<Client>, session: &Arc<Session>, heartbeat: bool) {
    let now = client.clock.now();
    let (ended, live): (Vec<_>, Vec<_>) =
        client.held.on(session).into_iter().partition(|row| row.until() <= now);
    let given_back: Vec<_> = ended.into_iter().map(|row| hold::give_back(client, row)).collect();
    if heartbeat && !live.is_empty() {
        let terms = vec![None; live.len()];
        match hold::check_rows(client, session, client.config.timeout, &live, &terms).await {
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
    for task in given_back {
        let _ = task.await;
    }
}

async fn collect(client: Arc<Client>) {
    let Ok(admin) = client.admin().await else { return };
    if let Err(error) = admin.client.batch_execute(&client.config.sql("SELECT @schema@.collect()")).await {
        tracing::debug!(%error, "deleting idle rows failed");
    }
}
