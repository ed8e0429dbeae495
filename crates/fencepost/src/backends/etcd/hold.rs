//! One held lock: renewed with its lease, moved to another one when it shall last longer, given back, and
//! watched over.
//!
//! The lease is shared, so it may live on while one of its locks is not renewed any more. The key of such a
//! lock is deleted when its ttl has passed; the lease is what ends it when this process cannot.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{oneshot, watch};

use super::client::Client;
use super::contender::{Contender, OwnedKey};
use super::driver::cluster::{RequestError, Stamp};
use super::driver::proto::{KeyValue, Operation};
use super::driver::{Watch, WatchEvent};
use crate::backend::{Hold, Renewal, Request};
use crate::runtime::clock::Moment;
use crate::runtime::loss_signal::LossSignal;
use crate::runtime::sync::lock;
use crate::{EtcdCompare, Loss, Result};

/// A lock that is held for less is not worth a watch of its own.
const BRIEF: Duration = Duration::from_millis(20);
/// Before a watch that ended is opened again.
const PAUSE: Duration = Duration::from_millis(100);

/// What the guard has. Dropped by a caller that has not taken the grant, it lets go of the lock.
#[derive(Debug)]
pub(crate) struct Held(Arc<HeldKey>);

/// What the guard and the monitor share.
#[derive(Debug)]
struct HeldKey {
    client: Arc<Client>,
    key: OwnedKey,
    signal: Arc<LossSignal>,
    state: Mutex<HoldState>,
    /// Nothing is left to watch over.
    done: watch::Sender<bool>,
}

#[derive(Debug)]
struct HoldState {
    /// When the key goes if it is not renewed.
    until: Moment,
    /// A move to another lease went unanswered, and may come yet.
    moving: bool,
    /// `None` when the lock is not ours any more.
    contender: Option<Contender>,
}

impl Held {
    /// Takes over the key of a lock that was just granted.
    pub(super) fn new(
        client: &Arc<Client>,
        request: &Request,
        contender: Contender,
        until: Moment,
    ) -> Arc<Self> {
        let (client, signal) = (client.clone(), request.signal.clone());
        let (key, written) = (contender.key.clone(), contender.written);
        let state = Mutex::new(HoldState { until, moving: false, contender: Some(contender) });
        let held = Arc::new(HeldKey { client, key, signal, state, done: watch::Sender::new(false) });
        held.client.cluster.keeper.spawn(monitor(held.clone(), written));
        Arc::new(Self(held))
    }

    /// What a transaction can compare to be carried out only while this lock is held.
    pub(crate) fn compare(&self) -> EtcdCompare {
        EtcdCompare { key: self.0.key.key.clone(), create_revision: self.0.key.created }
    }
}

#[async_trait]
impl Hold for Held {
    async fn renew(&self, term: Duration) -> Result<Renewal> {
        let renewal = self.0.renew(term).await?;
        if let Renewal::Renewed { sent, .. } = &renewal {
            let mut state = lock(&self.0.state);
            state.until = state.until.max(sent.plus(term));
        }
        Ok(renewal)
    }

    async fn release(&self) -> Result<bool> {
        let held = self.0.clone();
        self.0.client.run(async move { held.release().await }).await
    }

    async fn detach(&self, term: Duration) -> Result<Renewal> {
        let held = self.0.clone();
        self.0.client.run(async move { held.detach(term).await }).await
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.0.end());
    }
}

impl HeldKey {
    fn until(&self) -> Moment {
        lock(&self.state).until
    }

    /// The lock is not ours any more, or no longer to watch over.
    fn end(&self) -> Option<Contender> {
        self.done.send_replace(true);
        lock(&self.state).contender.take()
    }

    async fn renew(&self, term: Duration) -> Result<Renewal> {
        let lease = lock(&self.state).contender.as_ref().map(|contender| contender.lease.clone());
        let Some(lease) = lease else { return Ok(Renewal::Lost(Loss::Taken)) };
        let (kept, read) = tokio::join!(lease.keep_alive(), self.read_in_batch(term));
        let (found, stamp) = match read {
            // Another cluster than the one that granted the lock, or an older state of it.
            Err(_) if self.client.cluster.history.is_broken() => return Ok(Renewal::Lost(Loss::Taken)),
            read => read?,
        };
        let kept = match kept {
            Ok(()) => lease.confirm(stamp).await,
            failed => failed,
        };
        if found.is_none() && matches!(kept, Err(RequestError::NoLease(_))) {
            return Ok(Renewal::Lost(Loss::SessionEnded));
        }
        if let Some(why) = self.key.loss(found.as_ref()) {
            return Ok(Renewal::Lost(why));
        }
        let on_this_lease = found.is_some_and(|kv| kv.lease == lease.id);
        match kept {
            Ok(()) if on_this_lease && lease.term >= term && !lock(&self.state).moving => {
                Ok(Renewal::Renewed { sent: lease.sent(), term: Some(term) })
            }
            // It shall last longer, or is on another lease: by a move that went unanswered, or by whoever
            // renewed the lock by its handle.
            Ok(()) | Err(RequestError::NoLease(_)) => self.move_to_own_lease(term).await,
            Err(error) => Err(error.into()),
        }
    }

    /// What the key holds, read together with the keys of other locks that are renewed now.
    async fn read_in_batch(&self, term: Duration) -> Result<(Option<KeyValue>, Stamp)> {
        let (result, answer) = oneshot::channel();
        // A late answer is worthless, and a stuck connection should be replaced while there is time to.
        let timeout = (term / 3).max(Duration::from_millis(20));
        let read = KeyRead { key: self.key.key.clone(), timeout, result };
        let client = Arc::downgrade(&self.client);
        self.client.reads.send(read, move |batch| drop(tokio::spawn(read_keys(client.clone(), batch))));
        let ended = || Err(self.client.cluster.unavailable("the runtime that carried the renewal ended"));
        answer.await.unwrap_or_else(|_| ended())
    }

    /// Moves the key to a lease of its own that lasts for `term`.
    async fn move_to_own_lease(&self, term: Duration) -> Result<Renewal> {
        // Until there is an answer the key may be on either lease. The next move compares a later revision
        // than an unanswered one, which can come no more then.
        lock(&self.state).moving = true;
        let moved = self.key.move_to_own_lease(&self.client, self.key.owner, term).await?;
        let (lease, written) = match moved {
            Ok(moved) => moved,
            Err(why) => return Ok(Renewal::Lost(why)),
        };
        let sent = lease.sent();
        let mut state = lock(&self.state);
        state.moving = false;
        if let Some(contender) = &mut state.contender {
            contender.moved(lease, written);
        }
        Ok(Renewal::Renewed { sent, term: Some(term) })
    }

    async fn release(&self) -> Result<bool> {
        let cluster = &self.client.cluster;
        // First of all: what follows is our own doing, and no loss.
        let Some(mut contender) = self.end() else {
            // An earlier release goes on in the background.
            return Ok(self.key.delete(cluster, 0).await?);
        };
        contender.attached_from = None;
        let deleted = self.key.delete(cluster, contender.written).await;
        // Where it failed it goes on: others may keep the lease alive.
        contender.is_gone = deleted.is_ok() && !contender.may_come_late;
        Ok(deleted?)
    }

    /// Moves the key to a lease that stays, and lets go of it.
    async fn detach(&self, term: Duration) -> Result<Renewal> {
        self.done.send_replace(true);
        let moved = self.key.move_to_own_lease(&self.client, self.key.owner, term).await?;
        let lease = match moved {
            Ok((lease, _)) => lease,
            Err(why) => return Ok(Renewal::Lost(why)),
        };
        lease.outlive_us(true);
        if let Some(contender) = self.end() {
            contender.moved_away();
        }
        Ok(Renewal::Renewed { sent: lease.sent(), term: Some(term) })
    }

    /// Lets go of a lock that is lost or over; what may be left of its key is deleted.
    fn give_up(&self) {
        if let Some(mut contender) = self.end() {
            contender.attached_from = None;
        }
    }

    /// Passes on what has become of the key; `true` if it is gone.
    fn report(&self, found: Option<&KeyValue>) -> bool {
        let Some(why) = self.key.loss(found) else { return false };
        let gone = why == Loss::Taken;
        self.signal.raise(why);
        if gone {
            self.give_up();
        }
        gone
    }

    /// Watches the key until it is gone, or its time is up.
    async fn watch_over(&self, mut from: i64) {
        let cluster = &self.client.cluster;
        loop {
            if let Some(watch) = cluster.watch(&self.key.key, from).await
                && self.follow(watch).await
            {
                return;
            }
            // Whatever ended the watch: see what there is, and watch from there.
            tokio::time::sleep(crate::wait::jittered(PAUSE)).await;
            if self.until() <= cluster.clock.now() {
                return self.give_up();
            }
            let answer = cluster.read(vec![Operation::read(&self.key.key)]).await;
            if cluster.history.is_broken() {
                self.report(None);
                return;
            }
            let Ok(answer) = answer else { continue };
            from = answer.value.revision() + 1;
            if self.report(answer.value.into_kvs().first()) {
                return;
            }
        }
    }

    /// Follows a watch until the lock has ended (`true`) or the watch has (`false`).
    async fn follow(&self, mut watch: Watch) -> bool {
        let clock = &self.client.cluster.clock;
        loop {
            let gone = match clock.within(Some(self.until()), watch.next()).await {
                Some(WatchEvent::Open) => false,
                Some(WatchEvent::Put(kv)) => self.report(Some(&kv)),
                Some(WatchEvent::Deleted) => self.report(None),
                Some(WatchEvent::Ended) => return false,
                // It may have been renewed meanwhile.
                None if self.until() > clock.now() => false,
                None => {
                    self.give_up();
                    true
                }
            };
            if gone {
                return true;
            }
        }
    }
}

/// Looks after a lock until it ends; revision `written` made it ours.
async fn monitor(held: Arc<HeldKey>, written: i64) {
    let mut done = held.done.subscribe();
    let watched = async {
        tokio::time::sleep(BRIEF).await;
        // The caller has the lock: others may use the handle that it was attached by, in vain.
        if let Some(contender) = &mut lock(&held.state).contender
            && contender.attached_from.is_some()
        {
            drop(contender.turn.take());
        }
        held.watch_over(written + 1).await;
    };
    tokio::select! {
        // What we do ourselves to a lock that has ended is no loss.
        biased;
        _ = done.wait_for(|done| *done) => {}
        () = watched => {}
    }
}

/// One key to read.
#[derive(Debug)]
pub(super) struct KeyRead {
    key: Vec<u8>,
    timeout: Duration,
    result: oneshot::Sender<Result<(Option<KeyValue>, Stamp)>>,
}

/// Reads many keys in one transaction.
async fn read_keys(client: Weak<Client>, batch: Vec<KeyRead>) {
    let Some(client) = client.upgrade() else { return };
    let timeout = batch.iter().map(|read| read.timeout).min().unwrap_or_default();
    let reads = batch.iter().map(|read| Operation::read(&read.key)).collect();
    let answer = client.cluster.txn_within(timeout, vec![], reads, vec![]).await;
    let answer = answer.map(|answer| (answer.stamp, answer.value.into_kvs())).map_err(crate::Error::from);
    for read in batch {
        let found = |kvs: &[KeyValue]| kvs.iter().find(|kv| kv.key == read.key).cloned();
        let result = answer.as_ref().map(|(stamp, kvs)| (found(kvs), *stamp)).map_err(crate::Error::copy);
        let _ = read.result.send(result);
    }
}
