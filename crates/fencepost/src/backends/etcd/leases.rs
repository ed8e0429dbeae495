//! The leases that keep our keys alive: one for each ttl in use, shared by all locks of that ttl.
//!
//! Who needs a lease keeps it alive: holders by their renewals, waiters by their looks at the queue. Each keep-alive is an
//! exchange of its own, so that there is no stream that could die unnoticed.
//!
//! A lease that may carry a key we know nothing of, because the request that makes it went unanswered, is *retired*:
//! nobody new gets it, what is on it but not ours is deleted for as long as it lives, and it is revoked when its last
//! user is gone.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::watch;

use super::beat::{Stamp, proven};
use super::client::{Client, Fault};
use super::proto::{Compare, DeleteRequest, RangeRequest, Request};
use super::record::Record;
use crate::runtime::clock::Moment;
use crate::runtime::keeper::Keeper;
use crate::runtime::sync::lock;
use crate::{Owner, Result};

/// A lease is new enough for another lock if this part of it has passed at most; else it is kept alive first.
const FRESH: u32 = 20;
/// How often a retired lease is looked at in the beginning.
const SWEEP: Duration = Duration::from_millis(250);
/// Between two tries to revoke one.
const REVOKE: Duration = Duration::from_millis(500);
/// The last bit of a lease's id. Whoever moves a key away ends only a lease that was the key's own: another
/// key may be put on a shared one in that moment.
const SHARED: i64 = 0;
const OWN: i64 = 1;
/// How often a key may be written between two tries to delete it.
const TRIES: usize = 8;

#[derive(Debug)]
pub(super) struct Leases {
    client: Arc<Client>,
    keeper: Arc<Keeper>,
    table: Mutex<Table>,
    /// One lease is made at a time, or several tasks would each make their own.
    making: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Table {
    /// By their length in seconds.
    open: HashMap<u64, Arc<Lease>>,
    /// Keys that somebody of this client is responsible for.
    ours: HashSet<Vec<u8>>,
    /// The store was closed: what is no longer used goes.
    closed: bool,
}

#[derive(Debug)]
pub(super) struct Lease {
    pub(super) id: i64,
    /// How long the server lets it live; at least what was asked for.
    pub(super) term: Duration,
    state: Mutex<State>,
    over: watch::Sender<bool>,
    /// One keep-alive at a time.
    beat: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct State {
    /// When the last request was sent that the cluster is known to let it live by.
    sent: Moment,
    /// The last keep-alive that was answered, whether it counts or not.
    kept: Option<Stamp>,
    users: usize,
    retired: bool,
}

impl Lease {
    fn new(id: i64, term: Duration, sent: Moment) -> Self {
        let state = State { sent, kept: None, users: 0, retired: false };
        Self {
            id,
            term,
            state: Mutex::new(state),
            over: watch::Sender::new(false),
            beat: tokio::sync::Mutex::default(),
        }
    }

    /// Since when it has all of its time.
    pub(super) fn sent(&self) -> Moment {
        lock(&self.state).sent
    }

    /// The server may have ended it, or has said so.
    pub(super) fn is_over(&self, now: Moment) -> bool {
        *self.over.borrow() || now >= self.sent().plus(self.term)
    }

    fn end(&self) {
        self.over.send_replace(true);
    }

    /// Waits until the server has ended it, as far as we know.
    pub(super) async fn ended(&self) {
        // The sender lives in `self`.
        let _ = self.over.subscribe().wait_for(|over| *over).await;
    }

    /// Counts the last keep-alive, if this transaction lets it; says whether.
    fn count(&self, txn: Stamp) -> bool {
        let mut state = lock(&self.state);
        let Some(sent) = state.kept.and_then(|kept| proven(kept, txn)) else { return false };
        state.sent = state.sent.max(sent);
        true
    }

    fn is_fresh(&self, now: Moment) -> bool {
        now.since(self.sent()) <= self.term / FRESH
    }
}

/// Somebody uses a lease. It goes with its last user if it is retired, or its store closed.
#[derive(Debug)]
pub(super) struct Use {
    pub(super) lease: Arc<Lease>,
    leases: Weak<Leases>,
}

impl Clone for Use {
    fn clone(&self) -> Self {
        lock(&self.lease.state).users += 1;
        Self { lease: self.lease.clone(), leases: self.leases.clone() }
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let last = {
            let mut state = lock(&self.lease.state);
            state.users -= 1;
            state.users == 0
        };
        if let Some(leases) = self.leases.upgrade().filter(|_| last) {
            leases.unused(&self.lease);
        }
    }
}

impl Use {
    /// A lease that is there, and that nobody else uses; kept alive by a request of this moment.
    pub(super) fn of_its_own(id: i64, term: Duration, sent: Moment) -> Self {
        let lease = Arc::new(Lease::new(id, term, sent));
        lock(&lease.state).users += 1;
        Self { lease, leases: Weak::new() }
    }
}

/// A key that somebody is responsible for; of a shared lease, nobody but them deletes it meanwhile.
#[derive(Debug)]
pub(super) struct Mine {
    pub(super) key: Vec<u8>,
    leases: Option<Arc<Leases>>,
}

impl Mine {
    /// A key on a lease of its own, which nobody sweeps.
    pub(super) fn alone(key: Vec<u8>) -> Self {
        Self { key, leases: None }
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        if let Some(leases) = &self.leases {
            lock(&leases.table).ours.remove(&self.key);
        }
    }
}

/// How to know a key that somebody is responsible for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ours {
    pub(super) created: i64,
    pub(super) owner: Owner,
    /// The revision that wrote it last, as far as we know.
    pub(super) written: i64,
}

impl Leases {
    pub(super) fn new(client: Arc<Client>, keeper: Arc<Keeper>) -> Self {
        Self { client, keeper, table: Mutex::default(), making: tokio::sync::Mutex::default() }
    }

    /// A lease that lasts for `ttl`: the one there is, or a new one. It may need a keep-alive first; see
    /// [`refresh`](Self::refresh).
    pub(super) async fn get(self: &Arc<Self>, ttl: Duration) -> Result<Use, Fault> {
        let seconds = whole_seconds(ttl);
        if let Some(found) = self.find(seconds) {
            return Ok(found);
        }
        let _one = self.making.lock().await;
        if let Some(found) = self.find(seconds) {
            return Ok(found);
        }
        let lease = self.make(seconds, SHARED).await?;
        let now = self.client.clock.now();
        let mut table = lock(&self.table);
        table.open.retain(|_, other| !other.is_over(now));
        table.open.insert(seconds, lease.clone());
        drop(table);
        Ok(self.used(lease))
    }

    fn find(self: &Arc<Self>, seconds: u64) -> Option<Use> {
        let now = self.client.clock.now();
        let lease = lock(&self.table).open.get(&seconds).cloned().filter(|lease| !lease.is_over(now))?;
        Some(self.used(lease))
    }

    fn used(self: &Arc<Self>, lease: Arc<Lease>) -> Use {
        lock(&lease.state).users += 1;
        Use { lease, leases: Arc::downgrade(self) }
    }

    /// A lease that only its user knows of, and that outlives this client.
    pub(super) async fn own(self: &Arc<Self>, ttl: Duration) -> Result<Use, Fault> {
        let lease = self.make(whole_seconds(ttl), OWN).await?;
        Ok(Use::of_its_own(lease.id, lease.term, lease.sent()))
    }

    /// Ends a lease that a key was moved away from, or deleted of, unless it has others.
    pub(super) async fn end_empty(&self, id: i64) {
        if self.client.time_to_live(id, true).await.is_ok_and(|lease| lease.keys.is_empty())
            && let Err(Fault::Error(error)) = self.client.revoke(id).await
        {
            tracing::debug!(%error, "a lease without keys could not be revoked; it ends by itself");
        }
    }

    /// Ends a lease of one's own.
    pub(super) fn drop_own(&self, uses: &Use) {
        self.revoke(uses.lease.id, uses.lease.sent().plus(uses.lease.term));
    }

    async fn make(&self, seconds: u64, kind: i64) -> Result<Arc<Lease>, Fault> {
        // Chosen here, so that a repeated request does not make a second one.
        let id = i64::try_from(uuid::Uuid::now_v7().as_u64_pair().1 >> 1).unwrap_or(i64::MAX);
        let id = id & !OWN | kind;
        let granted = match self.client.grant(id, seconds).await {
            Ok(granted) => granted,
            Err(fault) => {
                // It may have been made all the same.
                self.revoke(id, self.client.clock.now().plus(self.client.config.timeout));
                return Err(fault);
            }
        };
        let seconds = u64::try_from(granted.value.ttl).unwrap_or(seconds).max(seconds);
        Ok(Arc::new(Lease::new(id, Duration::from_secs(seconds), granted.sent)))
    }

    /// Sees to it that a lease has nearly all of its time left; known to only after [`confirm`](Self::confirm).
    pub(super) async fn refresh(&self, lease: &Lease) -> Result<(), Fault> {
        if lease.is_fresh(self.client.clock.now()) {
            return Ok(());
        }
        self.keep_alive(lease).await
    }

    /// Asks for a lease to live for all of its time again, by a request that is sent from now on.
    pub(super) async fn keep_alive(&self, lease: &Lease) -> Result<(), Fault> {
        let asked = self.client.clock.now();
        let _one = lease.beat.lock().await;
        if lock(&lease.state).kept.is_some_and(|kept| kept.sent > asked) {
            return Ok(());
        }
        // A late answer is worth nothing, and there should be time for another try.
        let timeout = (lease.term / 3).max(Duration::from_millis(20));
        match self.client.keep_alive(lease.id, timeout).await {
            Ok(answer) => {
                lock(&lease.state).kept = Some(answer.stamp());
                Ok(())
            }
            Err(fault) => {
                if matches!(fault, Fault::NoLease) {
                    lease.end();
                }
                Err(fault)
            }
        }
    }

    /// Counts a keep-alive that was sent beside a transaction. Where a leader was elected between the two it is sent once
    /// more.
    pub(super) async fn confirm(&self, lease: &Lease, txn: Stamp) -> Result<(), Fault> {
        if lease.count(txn) || lease.is_fresh(self.client.clock.now()) {
            return Ok(());
        }
        self.keep_alive(lease).await?;
        if lease.count(txn) {
            return Ok(());
        }
        let why = "its lease was kept alive by a leader that may have been replaced";
        Err(Fault::Error(self.client.unavailable(why)))
    }

    // --- what must not be left behind ----------------------------------------------------------------------------

    /// Takes on the responsibility for a key.
    pub(super) fn claim(self: &Arc<Self>, key: Vec<u8>) -> Mine {
        lock(&self.table).ours.insert(key.clone());
        Mine { key, leases: Some(self.clone()) }
    }

    /// A key may be made, or stay, that nobody knows of: nobody new uses this lease, and what is on it is watched.
    pub(super) fn retire(self: &Arc<Self>, lease: &Arc<Lease>) {
        lock(&self.table).open.retain(|_, other| other.id != lease.id);
        if std::mem::replace(&mut lock(&lease.state).retired, true) {
            return;
        }
        let (leases, lease, clock) = (Arc::downgrade(self), Arc::downgrade(lease), self.client.clock.clone());
        self.keeper.spawn(async move {
            let mut pause = SWEEP;
            loop {
                clock.sleep_until(clock.now().plus(pause)).await;
                let (Some(leases), Some(lease)) = (leases.upgrade(), lease.upgrade()) else { return };
                if lease.is_over(clock.now()) || lock(&lease.state).users == 0 {
                    return;
                }
                if let Err(Fault::Error(error)) = leases.sweep(&lease).await {
                    tracing::debug!(%error, "a lease could not be looked at, trying again");
                } else {
                    pause = (pause * 2).min((lease.term / 3).max(SWEEP));
                }
            }
        });
    }

    /// Deletes the keys of a lease that nobody of us is responsible for.
    async fn sweep(&self, lease: &Lease) -> Result<(), Fault> {
        for key in self.client.time_to_live(lease.id, true).await?.keys {
            if lock(&self.table).ours.contains(&key) {
                continue;
            }
            tracing::debug!(key = %String::from_utf8_lossy(&key), "deleting what an unanswered request has made");
            // On this lease still: a detached lock keeps its key and moves to a lease of its own.
            let compare = vec![Compare::on_lease(&key, lease.id)];
            let delete = DeleteRequest { key, range_end: Vec::new() };
            self.client.txn(compare, vec![Request::Delete(delete)], vec![]).await?;
        }
        Ok(())
    }

    /// Deletes the key of one acquisition, if it still is that, whoever holds the lock. Says whether it was.
    pub(super) async fn delete(&self, key: &[u8], created: i64) -> Result<bool, Fault> {
        let delete = Request::Delete(DeleteRequest { key: key.to_vec(), range_end: Vec::new() });
        let answer = self.client.txn(vec![Compare::created(key, created)], vec![delete], vec![]).await?;
        // A repeated request finds nothing if the first one did its work.
        Ok(answer.value.succeeded || answer.unknown)
    }

    /// Deletes a key of ours, whatever was written into it since. Not that of a lock which somebody has
    /// attached: it keeps its key. Says whether it was still ours.
    pub(super) async fn delete_ours(&self, key: &[u8], ours: Ours) -> Result<bool, Fault> {
        let (mut written, mut unknown) = (ours.written, false);
        for _ in 0..TRIES {
            let unchanged = vec![Compare::written(key, written)];
            let delete = Request::Delete(DeleteRequest { key: key.to_vec(), range_end: Vec::new() });
            let read = Request::Range(RangeRequest { key: key.to_vec(), ..RangeRequest::default() });
            let answer = self.client.txn(unchanged, vec![delete], vec![read]).await?;
            unknown |= answer.unknown;
            if answer.value.succeeded {
                return Ok(true);
            }
            match answer.value.into_kvs().pop().filter(|kv| kv.create_revision == ours.created) {
                // A repeated request finds nothing if the first one did its work.
                None => return Ok(unknown),
                Some(kv) if Record::of(&kv).is_some_and(|record| record.owner != ours.owner) => {
                    return Ok(false);
                }
                // By an operator, or by whoever renewed it by its handle.
                Some(kv) => written = kv.mod_revision,
            }
        }
        Err(Fault::Error(self.client.unavailable("the key of a lock changed all the time; try again")))
    }

    fn unused(&self, lease: &Arc<Lease>) {
        let mut table = lock(&self.table);
        let goes = {
            let state = lock(&lease.state);
            state.users == 0 && (table.closed || state.retired)
        };
        if goes {
            table.open.retain(|_, other| other.id != lease.id);
            drop(table);
            lease.end();
            self.revoke(lease.id, lease.sent().plus(lease.term));
        }
    }

    /// Ends all leases that nobody uses; the others follow their last user.
    pub(super) fn close(&self) -> Vec<i64> {
        let mut table = lock(&self.table);
        table.closed = true;
        let mut unused = Vec::new();
        table.open.retain(|_, lease| {
            let used = lock(&lease.state).users > 0;
            if !used {
                lease.end();
                unused.push(lease.id);
            }
            used
        });
        unused
    }

    /// Revokes a lease in the background, as often as it takes until it ends by itself.
    pub(super) fn revoke(&self, id: i64, until: Moment) {
        let client = self.client.clone();
        self.keeper.spawn(async move {
            while let Err(Fault::Error(error)) = client.revoke(id).await {
                tracing::debug!(%error, "a lease could not be revoked");
                let again = client.clock.now().plus(crate::wait::jittered(REVOKE));
                if again >= until {
                    return;
                }
                client.clock.sleep_until(again).await;
            }
        });
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        let leases: Vec<_> = lock(&self.table).open.drain().map(|(_, lease)| lease).collect();
        for lease in leases {
            self.revoke(lease.id, lease.sent().plus(lease.term));
        }
    }
}

/// Whether a lease is that of a single lock, which was detached.
pub(super) fn is_own(id: i64) -> bool {
    id & OWN == OWN
}

/// Leases are of whole seconds.
fn whole_seconds(ttl: Duration) -> u64 {
    ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)
}
