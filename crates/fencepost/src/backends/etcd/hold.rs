//! A lock held on a cluster: renewed with its lease, watched, and deleted by ourselves when its time is up.
//!
//! The lease is shared, so it may live on while one of its locks is not renewed any more. A task for each held lock sees to
//! it that such a key goes when its ttl has passed; the lease is what ends it when this process cannot.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{oneshot, watch};

use super::client::Fault;
use super::leases::{Lease, Mine, Use};
use super::link::Sight;
use super::proto::{Compare, KeyValue, PutRequest, RangeRequest, Request};
use super::record::Record;
use super::seats::Seat;
use super::session::Session;
use crate::backend::{Hold, Renewal, Signal, lock};
use crate::backends::batch::Batches;
use crate::clock::Moment;
use crate::{EtcdCompare, Loss, Name, Result};

/// A lock that is held for less is not worth a watch of its own.
const BRIEF: Duration = Duration::from_millis(20);
/// Before a watch that ended is opened again.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Held {
    itself: Weak<Held>,
    session: Arc<Session>,
    name: Name,
    key: Vec<u8>,
    created: i64,
    signal: Arc<Signal>,
    state: Mutex<State>,
    /// Nothing is left to watch over.
    done: watch::Sender<bool>,
}

#[derive(Debug)]
struct State {
    value: Vec<u8>,
    /// When the key goes if it is not renewed.
    until: Moment,
    /// What makes it ours; gone when the lock is.
    stake: Option<Stake>,
}

#[derive(Debug)]
struct Stake {
    uses: Use,
    mine: Mine,
    /// `None` for a lock that was attached: its key is on a lease of its own, and ends with that.
    seat: Option<Seat>,
}

/// The key of a lock that was just granted.
pub(super) struct Entry {
    pub(super) mine: Mine,
    pub(super) created: i64,
    pub(super) value: Vec<u8>,
    pub(super) uses: Use,
    pub(super) until: Moment,
}

impl Held {
    pub(super) fn new(
        session: &Arc<Session>,
        name: &Name,
        signal: Arc<Signal>,
        entry: Entry,
        seat: Option<Seat>,
    ) -> Arc<Self> {
        let Entry { mine, created, value, uses, until } = entry;
        Arc::new_cyclic(|itself| Self {
            itself: itself.clone(),
            session: session.clone(),
            name: name.clone(),
            key: mine.key.clone(),
            created,
            signal,
            state: Mutex::new(State { value, until, stake: Some(Stake { uses, mine, seat }) }),
            done: watch::Sender::new(false),
        })
    }

    /// What a transaction can compare to be carried out only while this lock is held.
    pub(crate) fn compare(&self) -> EtcdCompare {
        EtcdCompare { key: self.key.clone(), create_revision: self.created }
    }

    fn until(&self) -> Moment {
        lock(&self.state).until
    }

    fn lease(&self) -> Option<Use> {
        lock(&self.state).stake.as_ref().map(|stake| stake.uses.clone())
    }

    /// The lock is not ours any more, or no longer to look after.
    fn end(&self) -> Option<Stake> {
        self.done.send_replace(true);
        lock(&self.state).stake.take()
    }

    /// Why a key that was found, or not, is not that of a held lock; `None` if it is.
    fn loss(&self, found: Option<&KeyValue>) -> Option<Loss> {
        match found.filter(|kv| kv.create_revision == self.created) {
            None => Some(Loss::Taken),
            Some(kv) => Record::of(kv)?.revoked.map(|reason| Loss::ForceReleased { reason }),
        }
    }

    fn ours(&self) -> Compare {
        Compare::created(&self.key, self.created)
    }

    fn read(&self) -> Request {
        Request::Range(RangeRequest { key: self.key.clone(), ..RangeRequest::default() })
    }

    /// Moves the key to another lease. Its creation, and so the token, stays what it was.
    async fn move_to(&self, uses: Use) -> Result<Renewal, Fault> {
        let client = &self.session.client;
        // Not over the head of an operator: only what was not revoked moves.
        for _ in 0..8 {
            let found = client.txn(vec![], vec![self.read()], vec![]).await?.value.into_kvs();
            if let Some(why) = self.loss(found.first()) {
                return Ok(Renewal::Lost(why));
            }
            let Some(kv) = found.into_iter().next() else { continue };
            let written = Compare::written(&self.key, kv.mod_revision);
            let put = PutRequest {
                key: kv.key,
                value: kv.value.clone(),
                lease: uses.lease.id,
                ignore_lease: false,
            };
            let answer = client.txn(vec![self.ours(), written], vec![Request::Put(put)], vec![]).await?;
            if answer.value.succeeded {
                let sent = uses.lease.sent();
                let mut state = lock(&self.state);
                state.value = kv.value;
                if let Some(stake) = &mut state.stake {
                    stake.uses = uses;
                }
                return Ok(Renewal::Renewed { sent, term: None });
            }
        }
        Err(Fault::Error(client.unavailable(format!("lock `{}` changed all the time", self.name))))
    }

    async fn prolong(&self, term: Duration) -> Result<Renewal> {
        let leases = &self.session.leases;
        let moved = async {
            let uses = leases.get(term).await?;
            leases.refresh(&uses.lease).await?;
            self.move_to(uses).await
        };
        match moved.await {
            Ok(Renewal::Renewed { sent, .. }) => Ok(Renewal::Renewed { sent, term: Some(term) }),
            Ok(lost) => Ok(lost),
            Err(fault) => Err(fault.into_error(&self.session.client)),
        }
    }

    async fn give_back(self: Arc<Self>) -> Result<bool> {
        let deleted = self.session.leases.delete(&self.key, self.created).await;
        let deleted = deleted.map_err(|fault| fault.into_error(&self.session.client))?;
        if let Some(stake) = self.end()
            && stake.seat.is_none()
        {
            self.session.leases.revoke(vec![stake.uses.lease.id]);
        }
        Ok(deleted)
    }

    async fn hand_on(self: Arc<Self>, term: Duration) -> Result<Renewal> {
        let client = &self.session.client;
        let uses = self.session.leases.own(term).await.map_err(|fault| fault.into_error(client))?;
        let id = uses.lease.id;
        let moved = self.move_to(uses).await;
        if !matches!(moved, Ok(Renewal::Renewed { .. })) {
            self.session.leases.revoke(vec![id]);
        }
        Ok(match moved.map_err(|fault| fault.into_error(client))? {
            Renewal::Renewed { sent, .. } => {
                // From here on it is a lease like any other that somebody may attach to.
                drop(self.end());
                Renewal::Renewed { sent, term: Some(term) }
            }
            lost => lost,
        })
    }

    // --- looking after it ------------------------------------------------------------------------------------------

    /// Looks after the lock until it ends. With the record of a lock that was waited for, writes down since when it is
    /// held.
    pub(super) fn mind(self: &Arc<Self>, waited: Option<Record>) {
        let (held, done, session) = (Arc::downgrade(self), self.done.subscribe(), self.session.clone());
        session.keeper.spawn(mind(held, done, waited, session.clone()));
    }

    async fn note_grant(&self, record: Record) {
        let (key, value) = (self.key.clone(), record.granted().to_bytes());
        let put = PutRequest { key, value: value.clone(), lease: 0, ignore_lease: true };
        let unchanged = Compare::written(&self.key, self.created);
        let answer = self.session.client.txn(vec![unchanged], vec![Request::Put(put)], vec![]).await;
        if answer.is_ok_and(|answer| answer.value.succeeded) {
            lock(&self.state).value = value;
        }
    }

    /// Its ttl has passed without a renewal: the key goes, also if its lease lives on.
    fn expire(self: &Arc<Self>) {
        if let Some(Stake { uses, mine, seat: Some(seat) }) = self.end() {
            self.session.leave(uses, mine, self.created, seat);
        }
    }
}

#[async_trait]
impl Hold for Held {
    async fn renew(&self, term: Duration) -> Result<Renewal> {
        let (result, answer) = oneshot::channel();
        let Some(uses) = self.lease() else { return Ok(Renewal::Lost(Loss::Taken)) };
        let one = Waiting { key: self.key.clone(), uses, term, result };
        let session = Arc::downgrade(&self.session);
        self.session.renewals.send(one, move |batch| drop(tokio::spawn(renew_all(session.clone(), batch))));
        let ended = || Err(self.session.client.unavailable("the runtime that carried the renewal ended"));
        let renewal = match answer.await.unwrap_or_else(|_| ended())? {
            Found::NoLease => Renewal::Lost(Loss::SessionEnded),
            Found::Key(kv, sent) => match (self.loss(kv.as_ref()), sent) {
                (Some(why), _) => Renewal::Lost(why),
                (None, Some(sent)) => Renewal::Renewed { sent, term: Some(term) },
                (None, None) => self.prolong(term).await?,
            },
        };
        if let Renewal::Renewed { sent, .. } = &renewal {
            let mut state = lock(&self.state);
            state.until = state.until.max(sent.plus(term));
        }
        Ok(renewal)
    }

    async fn release(&self) -> Result<bool> {
        let Some(held) = self.itself.upgrade() else { return Ok(false) };
        self.session.run(held.give_back()).await
    }

    async fn detach(&self, term: Duration) -> Result<Renewal> {
        let Some(held) = self.itself.upgrade() else { return Ok(Renewal::Lost(Loss::Taken)) };
        self.session.run(held.hand_on(term)).await
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Of a forked child's copy nothing is left behind: the lock is its parent's.
        if let Some(Stake { uses, mine, seat: Some(seat) }) = self.end()
            && self.session.is_ours()
        {
            self.session.leave(uses, mine, self.created, seat);
        }
    }
}

async fn mind(
    held: Weak<Held>,
    mut done: watch::Receiver<bool>,
    waited: Option<Record>,
    session: Arc<Session>,
) {
    let clock = session.clock.clone();
    let brief = clock.sleep_until(clock.now().plus(BRIEF));
    tokio::select! {
        _ = done.wait_for(|done| *done) => return,
        () = brief => {}
    }
    let Some(lock) = held.upgrade() else { return };
    if let Some(record) = waited {
        lock.note_grant(record).await;
    }
    let (key, created) = (lock.key.clone(), lock.created);
    drop(lock);
    let mut from = created + 1;
    loop {
        let mut watch = session.client.watch(&key, from).await;
        loop {
            let Some(until) = held.upgrade().map(|held| held.until()) else { return };
            let sight = async {
                match &mut watch {
                    Some(watch) => watch.next().await,
                    None => Sight::Ended,
                }
            };
            tokio::select! {
                _ = done.wait_for(|done| *done) => return,
                () = clock.sleep_until(until) => {
                    let Some(held) = held.upgrade() else { return };
                    if held.until() <= clock.now() {
                        return held.expire();
                    }
                }
                sight = sight => {
                    let Some(held) = held.upgrade() else { return };
                    let why = match sight {
                        Sight::Open => None,
                        Sight::Put(kv) => held.loss(Some(&kv)),
                        Sight::Deleted => held.loss(None),
                        Sight::Ended => break,
                    };
                    if let Some(why) = why {
                        let gone = why == Loss::Taken;
                        held.signal.raise(why);
                        if gone {
                            return drop(held.end());
                        }
                    }
                }
            }
        }
        // Whatever ended the watch: see what there is, and watch from there.
        clock.sleep_until(clock.now().plus(crate::wait::jittered(PAUSE))).await;
        let Some(held) = held.upgrade() else { return };
        if held.until() <= clock.now() {
            return held.expire();
        }
        let Ok(answer) = session.client.txn(vec![], vec![held.read()], vec![]).await else { continue };
        from = answer.value.revision() + 1;
        if let Some(why) = held.loss(answer.value.into_kvs().first()) {
            let gone = why == Loss::Taken;
            held.signal.raise(why);
            if gone {
                return drop(held.end());
            }
        }
    }
}

// --- renewals ------------------------------------------------------------------------------------------------------

/// Renewals that go to the cluster together: one keep-alive a lease, and one look at all keys.
pub(super) type Renewals = Batches<Waiting>;

#[derive(Debug)]
pub(super) struct Waiting {
    key: Vec<u8>,
    uses: Use,
    term: Duration,
    result: oneshot::Sender<Result<Found>>,
}

/// What a renewal found.
#[derive(Debug)]
enum Found {
    NoLease,
    /// The key, if there is one; and since when its lease has all of its time, if that lasts for the term.
    Key(Option<KeyValue>, Option<Moment>),
}

async fn renew_all(session: Weak<Session>, batch: Vec<Waiting>) {
    let Some(session) = session.upgrade() else { return };
    let mut leases: Vec<Arc<Lease>> = Vec::new();
    for one in batch.iter().filter(|one| one.uses.lease.term >= one.term) {
        if leases.iter().all(|lease| lease.id != one.uses.lease.id) {
            leases.push(one.uses.lease.clone());
        }
    }
    let beats: Vec<_> = leases
        .into_iter()
        .map(|lease| {
            let session = session.clone();
            tokio::spawn(async move { (lease.id, session.leases.keep_alive(&lease).await) })
        })
        .collect();
    let read =
        |one: &Waiting| Request::Range(RangeRequest { key: one.key.clone(), ..RangeRequest::default() });
    let found = session.client.txn(vec![], batch.iter().map(read).collect(), vec![]).await;
    let mut beaten = Vec::new();
    for beat in beats {
        beaten.extend(beat.await.ok());
    }
    let found = match found {
        Ok(answer) => answer.value.into_kvs(),
        Err(fault) => {
            let why = fault.into_error(&session.client).to_string();
            for one in batch {
                let _ = one.result.send(Err(session.client.unavailable(why.clone())));
            }
            return;
        }
    };
    for one in batch {
        let kv = found.iter().find(|kv| kv.key == one.key).cloned();
        let lease = &one.uses.lease;
        let result = match beaten.iter().find(|(id, _)| *id == lease.id) {
            Some((_, Ok(()))) => Ok(Found::Key(kv, Some(lease.sent()))),
            Some((_, Err(Fault::NoLease))) => Ok(Found::NoLease),
            Some((_, Err(Fault::Error(error)))) => Err(session.client.unavailable(error.to_string())),
            _ => Ok(Found::Key(kv, None)),
        };
        let _ = one.result.send(result);
    }
}
