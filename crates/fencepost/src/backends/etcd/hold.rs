//! A lock held on a cluster: renewed with its lease, moved to another one when it shall last longer, and given back.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{oneshot, watch};

use super::attach;
use super::client::Fault;
use super::leases::{Mine, Ours, Use};
use super::proto::{Compare, KeyValue, PutRequest, RangeRequest, Request};
use super::record::Record;
use super::renewals::{self, Found, One};
use super::seats::Seat;
use super::session::Session;
use crate::backend::{Hold, Renewal};
use crate::runtime::clock::Moment;
use crate::runtime::loss_signal::LossSignal;
use crate::runtime::sync::lock;
use crate::{EtcdCompare, Loss, Name, Owner, Result};

#[derive(Debug)]
pub(crate) struct Held {
    itself: Weak<Held>,
    pub(super) session: Arc<Session>,
    name: Name,
    pub(super) key: Vec<u8>,
    pub(super) created: i64,
    owner: Owner,
    /// The revision that wrote our owner into it: what was before does not concern us.
    pub(super) since: i64,
    /// Who had it before it was attached.
    before: Option<Owner>,
    pub(super) signal: Arc<LossSignal>,
    state: Mutex<State>,
    /// Nothing is left to watch over.
    pub(super) done: watch::Sender<bool>,
}

#[derive(Debug)]
struct State {
    /// When the key goes if it is not renewed.
    until: Moment,
    /// The revision that wrote the key last, as far as we know.
    written: i64,
    /// A move to another lease went unanswered, and may come yet.
    unsure: bool,
    /// What makes it ours; gone when the lock is.
    stake: Option<Stake>,
}

#[derive(Debug)]
pub(super) struct Stake {
    pub(super) uses: Use,
    pub(super) mine: Mine,
    /// `None` for a lock that was attached: its key is on a lease of its own, and ends with that.
    pub(super) seat: Option<Seat>,
    /// The turn of whoever uses handles of this name, until a lock that was attached has come to its caller.
    pub(super) turn: Option<Seat>,
}

/// The key of a lock that was just granted.
pub(super) struct Entry {
    pub(super) owner: Owner,
    /// Whom it was attached from.
    pub(super) before: Option<Owner>,
    pub(super) mine: Mine,
    pub(super) created: i64,
    pub(super) since: i64,
    pub(super) uses: Use,
    pub(super) until: Moment,
    pub(super) seat: Option<Seat>,
    pub(super) turn: Option<Seat>,
}

impl Held {
    pub(super) fn new(
        session: &Arc<Session>,
        name: &Name,
        signal: Arc<LossSignal>,
        entry: Entry,
    ) -> Arc<Self> {
        let Entry { owner, before, mine, created, since, uses, until, seat, turn } = entry;
        let key = mine.key.clone();
        let stake = Some(Stake { uses, mine, seat, turn });
        Arc::new_cyclic(|itself| Self {
            itself: itself.clone(),
            session: session.clone(),
            name: name.clone(),
            key,
            created,
            owner,
            since,
            before,
            signal,
            state: Mutex::new(State { until, written: since, unsure: false, stake }),
            done: watch::Sender::new(false),
        })
    }

    /// What a transaction can compare to be carried out only while this lock is held.
    pub(crate) fn compare(&self) -> EtcdCompare {
        EtcdCompare { key: self.key.clone(), create_revision: self.created }
    }

    pub(super) fn until(&self) -> Moment {
        lock(&self.state).until
    }

    fn lease(&self) -> Option<Use> {
        lock(&self.state).stake.as_ref().map(|stake| stake.uses.clone())
    }

    /// The lease of a lock that was attached, which nobody else uses.
    fn own_lease(&self) -> Option<Use> {
        let state = lock(&self.state);
        state.stake.as_ref().filter(|stake| stake.seat.is_none()).map(|stake| stake.uses.clone())
    }

    /// The caller has the lock: others may use the handle that it was attached by, in vain.
    pub(super) fn end_turn(&self) {
        let turn = lock(&self.state).stake.as_mut().and_then(|stake| stake.turn.take());
        drop(turn);
    }

    /// The lock is not ours any more, or no longer to look after.
    pub(super) fn end(&self) -> Option<Stake> {
        self.done.send_replace(true);
        lock(&self.state).stake.take()
    }

    /// Why a key that was found, or not, is not that of a held lock; `None` if it is.
    pub(super) fn loss(&self, found: Option<&KeyValue>) -> Option<Loss> {
        match found.filter(|kv| kv.create_revision == self.created) {
            None => Some(Loss::Taken),
            Some(kv) => match Record::of(kv)? {
                record if record.owner != self.owner => Some(Loss::Taken),
                record => record.revoked.map(|reason| Loss::ForceReleased { reason }),
            },
        }
    }

    pub(super) fn ours(&self) -> Ours {
        Ours { created: self.created, owner: self.owner, written: lock(&self.state).written }
    }

    /// A revision that has written into the key, which is ours.
    pub(super) fn note_written(&self, revision: i64) {
        let mut state = lock(&self.state);
        state.written = state.written.max(revision);
    }

    pub(super) fn read(&self) -> Request {
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
            let put = PutRequest { key: kv.key, value: kv.value, lease: uses.lease.id, ignore_lease: false };
            lock(&self.state).unsure = true;
            let created = Compare::created(&self.key, self.created);
            let answer = client.txn(vec![created, written], vec![Request::Put(put)], vec![]).await?;
            if answer.value.succeeded {
                self.note_written(answer.value.revision());
                let lease = uses.lease.clone();
                {
                    let mut state = lock(&self.state);
                    // An older one compares a revision that is no more.
                    state.unsure = false;
                    if let Some(stake) = &mut state.stake {
                        stake.uses = uses;
                    }
                }
                // Where no keep-alive counts the lease is as old as it was, and so is the validity that we return.
                let _ = self.session.leases.confirm(&lease, answer.stamp()).await;
                return Ok(Renewal::Renewed { sent: lease.sent(), term: None });
            }
        }
        Err(Fault::Error(client.unavailable(format!("lock `{}` changed all the time", self.name))))
    }

    async fn prolong(&self, term: Duration) -> Result<Renewal> {
        let leases = &self.session.leases;
        // A lock that was attached stays on leases of its own: it has to outlive this client.
        let attached = self.own_lease();
        let moved = async {
            if let Some(before) = attached {
                let uses = leases.own(term).await?;
                let moved = self.move_to(uses.clone()).await?;
                let renewed = matches!(moved, Renewal::Renewed { .. });
                self.session.drop_lease(if renewed { before } else { uses }.lease.id);
                return Ok(moved);
            }
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
        // What follows is our own doing, and no loss.
        self.done.send_replace(true);
        let deleted = self.session.leases.delete_ours(&self.key, self.ours()).await;
        match self.end() {
            Some(Stake { uses, seat: None, .. }) if deleted.is_ok() => self.session.drop_lease(uses.lease.id),
            // The key has to go whether or not somebody tries again. Of a lock that was attached it has left.
            Some(Stake { uses, seat: None, .. }) => self.session.leases.drop_own(&uses),
            // Others may keep the lease alive.
            Some(Stake { uses, mine, seat: Some(seat), .. }) if deleted.is_err() => {
                self.session.leave(uses, mine, self.ours(), seat);
            }
            _ => {}
        }
        deleted.map_err(|fault| fault.into_error(&self.session.client))
    }

    async fn hand_on(self: Arc<Self>, term: Duration) -> Result<Renewal> {
        self.done.send_replace(true);
        let client = &self.session.client;
        let uses = self.session.leases.own(term).await.map_err(|fault| fault.into_error(client))?;
        let before = self.own_lease();
        let moved = self.move_to(uses.clone()).await;
        if !matches!(moved, Ok(Renewal::Renewed { .. })) {
            self.session.leases.drop_own(&uses);
        } else if let Some(before) = before {
            self.session.drop_lease(before.lease.id);
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
}

#[async_trait]
impl Hold for Held {
    async fn renew(&self, term: Duration) -> Result<Renewal> {
        let (result, answer) = oneshot::channel();
        let Some(uses) = self.lease() else { return Ok(Renewal::Lost(Loss::Taken)) };
        let one = One { key: self.key.clone(), uses, term, result };
        let session = Arc::downgrade(&self.session);
        self.session
            .renewals
            .send(one, move |batch| drop(tokio::spawn(renewals::send(session.clone(), batch))));
        let ended = || Err(self.session.client.unavailable("the runtime that carried the renewal ended"));
        let renewal = match answer.await.unwrap_or_else(|_| ended())? {
            Found::NoLease => Renewal::Lost(Loss::SessionEnded),
            Found::Stranger => Renewal::Lost(Loss::Taken),
            Found::Key(kv, sent) => match (self.loss(kv.as_ref()), sent) {
                (Some(why), _) => Renewal::Lost(why),
                (None, sent) => {
                    self.note_written(kv.map_or(0, |kv| kv.mod_revision));
                    match sent.filter(|_| !lock(&self.state).unsure) {
                        Some(sent) => Renewal::Renewed { sent, term: Some(term) },
                        None => self.prolong(term).await?,
                    }
                }
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
        match self.end() {
            Some(_) if !self.session.is_ours() => {}
            Some(Stake { uses, mine, seat: Some(seat), .. }) => {
                self.session.leave(uses, mine, self.ours(), seat);
            }
            // Attached for a caller that is gone: its handle is good again.
            Some(Stake { seat: None, turn, .. }) => {
                if let Some(before) = self.before {
                    let key = self.key.clone();
                    attach::undo(&self.session, key, self.created, (self.owner, before), self.until(), turn);
                }
            }
            None => {}
        }
    }
}
