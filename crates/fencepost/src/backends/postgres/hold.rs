//! A held lock: how it is renewed, given back, detached, and found to be lost.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;
use tokio_postgres::types::ToSql;

use super::attach;
use super::client::{Client, milliseconds};
use super::driver::get;
use super::keys::Key;
use super::record;
use super::session::{AdvisorySlot, Function, Session};
use crate::backend::{Hold, Renewal, Request};
use crate::backends::common::backoff::Backoff;
use crate::runtime::clock::Moment;
use crate::runtime::fork;
use crate::runtime::loss_signal::LossSignal;
use crate::runtime::sync::lock;
use crate::{Handle, Loss, Name, Owner, Result};

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

#[derive(Debug)]
pub(super) struct Held {
    client: Arc<Client>,
    row: Arc<HeldRow>,
}

impl Held {
    /// From here on the lock is looked after.
    pub(super) fn new(client: &Arc<Client>, row: HeldRow) -> Arc<Self> {
        let row = Arc::new(row);
        client.held.insert(&row);
        Arc::new(Self { client: client.clone(), row })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // What was not given back stays with its session, which does that when the lease ends.
        if self.row.session().is_none_or(|session| !session.is_usable()) {
            self.client.held.remove(&self.row);
        }
    }
}

#[async_trait]
impl Hold for Held {
    async fn renew(&self, term: Duration) -> Result<Renewal> {
        renew(&self.client, &self.row, term).await
    }

    async fn release(&self) -> Result<bool> {
        release(&self.client, &self.row).await
    }

    async fn detach(&self, term: Duration) -> Result<Renewal> {
        detach(&self.client, &self.row, term).await
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Renews a lock, together with others that are due. Most rows that somebody has locked are locked for a
/// moment only.
async fn renew(client: &Arc<Client>, row: &Arc<HeldRow>, term: Duration) -> Result<Renewal> {
    let limit = client.patience(term);
    if let HeldKind::Attached(handle) = &row.kind {
        return client.within(limit, attach::renew(client, handle, term)).await?;
    }
    let (start, mut backoff) = (client.clock.now(), Backoff::new(Duration::from_millis(5), limit / 4));
    loop {
        if row.is_orphaned() {
            return Ok(Renewal::Lost(Loss::SessionEnded));
        }
        if client.held.get(row.owner).is_none() {
            // The lease had ended, and the monitor has given it back.
            return Ok(Renewal::Lost(Loss::Expired));
        }
        let (result, renewed) = oneshot::channel();
        let request = RenewalRequest { row: row.clone(), term, result };
        let sender = client.clone();
        client.renewals.send(request, move |batch| {
            sender.keeper().spawn(send(sender.clone(), batch));
        });
        let ended = |_| client.config.unavailable("the thread that renews has ended");
        if let Some(renewal) = renewed.await.map_err(ended)?? {
            return Ok(renewal);
        }
        if client.clock.now().since(start) > limit {
            let why = format!("somebody has locked the row of lock `{}`", row.name);
            return Err(client.config.unavailable(why));
        }
        backoff.sleep().await;
    }
}

/// Gives a lock back: `true` if it was still ours. Once too often does no harm: the server looks whose it is.
pub(super) async fn release(client: &Arc<Client>, row: &Arc<HeldRow>) -> Result<bool> {
    let own = match &row.kind {
        HeldKind::OfSession(session, _) | HeldKind::Asked(session) => session,
        HeldKind::Attached(handle) => return attach::release(client, handle).await,
    };
    // Without its session, the lock is a lease alone.
    let session = if own.is_usable() { own.clone() } else { client.session().await? };
    let unlock = row.is_advisory() && row.is_on(&session);
    let ended = row.until() <= client.clock.now();
    let owner = row.owner.to_string();
    let arguments: [&(dyn ToSql + Sync); 7] =
        [&session.backend.pid, &row.key.two_part, &row.key.number, &owner, &unlock, &ended, &None::<&str>];
    let found = client.call(&session, Function::Release, &arguments).await?;
    client.held.remove(row);
    Ok(found.and_then(|found| get(&found, 0)).unwrap_or(false))
}

/// Gives back a lock whose lease has ended by `now`, or that somebody has taken. Its guard knows that by
/// itself. Not one that is being given back or detached: what that makes is its owner's, too.
pub(super) fn give_back(client: &Arc<Client>, row: Arc<HeldRow>, now: Moment) {
    if !client.held.remove_to_give_back(&row, now) {
        return;
    }
    let (keeper, client) = (client.keeper(), client.clone());
    keeper.spawn(async move {
        if let Err(error) = release(&client, &row).await {
            tracing::debug!(name = %row.name, %error, "giving an ended lock back failed");
            client.held.insert(&row);
        }
    });
}

/// Puts a lock that was not detached back among those that are looked after.
struct PutBack<'a> {
    client: &'a Client,
    row: Option<&'a Arc<HeldRow>>,
    generation: u32,
}

impl Drop for PutBack<'_> {
    fn drop(&mut self) {
        if let Some(row) = self.row
            && self.generation == fork::generation()
        {
            self.client.held.insert(row);
        }
    }
}

/// Turns a lock into a lease alone.
async fn detach(client: &Arc<Client>, row: &Arc<HeldRow>, term: Duration) -> Result<Renewal> {
    let session = match &row.kind {
        HeldKind::OfSession(session, _) | HeldKind::Asked(session) => session,
        HeldKind::Attached(handle) => return attach::renew(client, handle, term).await,
    };
    if !session.is_usable() {
        return Ok(Renewal::Lost(Loss::SessionEnded));
    }
    // Before it is sent: the monitor would give back what this makes.
    if !client.held.remove(row) {
        return Ok(Renewal::Lost(Loss::Expired));
    }
    let mut put_back = PutBack { client, row: Some(row), generation: fork::generation() };
    let (sent, unlock) = (client.clock.now(), row.is_advisory());
    let (owner, term_ms) = (row.owner.to_string(), milliseconds(term));
    let arguments: [&(dyn ToSql + Sync); 7] = [
        &session.backend.pid,
        &row.key.two_part,
        &row.key.number,
        &owner,
        &term_ms,
        &unlock,
        &session.backend.commit,
    ];
    let found = client.call(session, Function::Detach, &arguments).await?;
    Ok(match attach::loss(client, found)? {
        Some(why) => Renewal::Lost(why),
        None => {
            put_back.row = None;
            Renewal::Renewed { sent, term: Some(term) }
        }
    })
}

/// A renewal that waits to be sent with others.
#[derive(Debug)]
pub(super) struct RenewalRequest {
    row: Arc<HeldRow>,
    term: Duration,
    /// `None`: somebody has locked the row.
    result: oneshot::Sender<Result<Option<Renewal>>>,
}

/// Sends a batch: all locks of one session in one request.
async fn send(client: Arc<Client>, mut batch: Vec<RenewalRequest>) {
    while let Some(session) = batch.first().and_then(|one| one.row.session().cloned()) {
        let (now, later) = batch.into_iter().partition(|one| one.row.is_on(&session));
        batch = later;
        send_over(&client, &session, now).await;
    }
}

async fn send_over(client: &Arc<Client>, session: &Arc<Session>, batch: Vec<RenewalRequest>) {
    let limit = client.patience(batch.iter().map(|one| one.term).min().unwrap_or_default());
    let sent = client.clock.now();
    let rows: Vec<_> = batch.iter().map(|one| one.row.clone()).collect();
    let terms: Vec<_> = batch.iter().map(|one| Some(milliseconds(one.term))).collect();
    let mut states = check_rows(client, session, limit, &rows, &terms).await.map(Vec::into_iter);
    for one in batch {
        let renewal = match &mut states {
            Err(error) => Err(error.copy()),
            Ok(states) => Ok(match states.next() {
                Some(RowState::Lost(why)) => Some(Renewal::Lost(why)),
                Some(RowState::Ours) if client.held.lengthen(&one.row, sent.plus(one.term)) => {
                    Some(Renewal::Renewed { sent, term: Some(one.term) })
                }
                // The answer came after the end of the lease, and the lock is given back.
                Some(RowState::Ours) => Some(Renewal::Lost(Loss::Expired)),
                Some(RowState::Locked) | None => None,
            }),
        };
        let _ = one.result.send(renewal);
    }
}

/// What a row was found to be.
#[derive(Clone)]
pub(super) enum RowState {
    Ours,
    Lost(Loss),
    /// Somebody has locked it, so it was not renewed.
    Locked,
}

/// Renews the locks of a session, or looks whether they are still there where there is no term.
pub(super) async fn check_rows(
    client: &Arc<Client>,
    session: &Arc<Session>,
    limit: Duration,
    rows: &[Arc<HeldRow>],
    terms: &[Option<i64>],
) -> Result<Vec<RowState>> {
    let two_parts: Vec<bool> = rows.iter().map(|row| row.key.two_part).collect();
    let keys: Vec<i64> = rows.iter().map(|row| row.key.number).collect();
    let owners: Vec<String> = rows.iter().map(|row| row.owner.to_string()).collect();
    let advisory: Vec<bool> = rows.iter().map(|row| row.is_advisory()).collect();
    let arguments: [&(dyn ToSql + Sync); 6] =
        [&session.backend.pid, &two_parts, &keys, &owners, &terms, &advisory];
    let found = client.ask(session, limit, Function::Renew, &arguments).await?;
    let found = found.map_err(|error| client.config.error(error))?;
    let mut states = vec![RowState::Ours; rows.len()];
    for line in found {
        let place = get::<i32>(&line, 0).and_then(|place| usize::try_from(place).ok()).unwrap_or(0);
        let (what, reason) = (get::<&str>(&line, 1), get::<&str>(&line, 2));
        let Some(place) = place.checked_sub(1) else {
            if let Some(locks) = reason.and_then(|locks| locks.parse().ok()) {
                session.quota.saw(locks);
            }
            continue;
        };
        let (Some(state), Some(row)) = (states.get_mut(place), rows.get(place)) else { continue };
        if what == Some("locked") {
            *state = RowState::Locked;
            continue;
        }
        let why = record::loss(what, reason);
        if matches!(why, Loss::SessionEnded | Loss::Taken) {
            // Nothing of it is left to be given back.
            client.held.remove(row);
        }
        *state = RowState::Lost(why);
    }
    Ok(states)
}
