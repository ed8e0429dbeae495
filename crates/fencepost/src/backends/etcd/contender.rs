//! A key of ours in the cluster: conditional on its owner in everything we do to it, and gone when we are
//! done.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::attach;
use super::client::Client;
use super::driver::cluster::{Cluster, RequestError};
use super::driver::proto::{Compare, KeyValue, Operation};
use super::leases::Lease;
use super::local_queue::QueueTurn;
use super::record::Record;
use crate::backends::common::backoff::Backoff;
use crate::{Loss, Owner};

/// How often a key may change between a look and the request that relies on it.
pub(super) const TRIES: usize = 8;
/// The first pause between two looks for a key that a late request may make.
const LATE_PAUSE: Duration = Duration::from_millis(250);

/// The key of one acquisition. No two acquisitions have the same owner.
#[derive(Clone, Debug)]
pub(super) struct OwnedKey {
    pub(super) key: Vec<u8>,
    pub(super) owner: Owner,
    /// The revision that created it, which is the token; zero while it is not known.
    pub(super) created: i64,
}

impl OwnedKey {
    /// Why a key that was found, or not, is not our lock any more; `None` if it is.
    pub(super) fn loss(&self, found: Option<&KeyValue>) -> Option<Loss> {
        match found.filter(|kv| kv.create_revision == self.created).and_then(Record::of) {
            Some(record) if record.owner == self.owner => {
                record.revoked.map(|reason| Loss::ForceReleased { reason })
            }
            _ => Some(Loss::Taken),
        }
    }

    /// Whether it is ours to delete. Not the lock that somebody else has attached: it keeps its key.
    fn is_ours(&self, kv: &KeyValue) -> bool {
        // What somebody has written over our record by hand is still the key that we made.
        Record::of(kv).map_or(kv.create_revision == self.created, |record| record.owner == self.owner)
    }

    /// Deletes the key, which was last written by revision `written` as far as we know. Says whether it was
    /// there, and still ours.
    pub(super) async fn delete(&self, cluster: &Cluster, written: i64) -> Result<bool, RequestError> {
        self.delete_if(cluster, written, |_| true).await
    }

    /// The same, if a key that was not written by `written` meets a condition.
    async fn delete_if(
        &self,
        cluster: &Cluster,
        mut written: i64,
        goes: impl Fn(&KeyValue) -> bool,
    ) -> Result<bool, RequestError> {
        let mut repeated = false;
        for _ in 0..TRIES {
            let (delete, read) = (Operation::delete(&self.key), Operation::read(&self.key));
            let unchanged = vec![Compare::written(&self.key, written)];
            let answer = cluster.txn(unchanged, vec![delete], vec![read]).await?;
            repeated |= answer.repeated;
            match answer.value.succeeded {
                // A key that is not there was last written by revision zero.
                true => return Ok(written > 0 || repeated),
                false => match answer.value.into_kvs().pop() {
                    Some(kv) if self.is_ours(&kv) && goes(&kv) => written = kv.mod_revision,
                    Some(_) => return Ok(false),
                    // A repeated request finds nothing if the first one did its work.
                    None => return Ok(repeated),
                },
            }
        }
        Err(cluster.unavailable("the key of a lock changed all the time; try again").into())
    }

    /// Writes the key to a lease of its own that lasts for `term`, and to another owner if that is not ours.
    /// Its creation, and so the token, stays what it was. Not over the head of an operator: only what was not
    /// revoked moves. Returns the lease, and the revision that did it.
    pub(super) async fn move_to_own_lease(
        &self,
        client: &Client,
        owner: Owner,
        term: Duration,
    ) -> Result<Result<(Arc<Lease>, i64), Loss>, RequestError> {
        let cluster = &client.cluster;
        let lease = client.leases.own(term).await?;
        // Until there is an answer the key may be on it, or come to it yet.
        lease.outlive_us(true);
        let (moved, mut repeated) = (Self { owner, ..self.clone() }, false);
        for _ in 0..TRIES {
            let kv = cluster.read(vec![Operation::read(&self.key)]).await?.value.into_kvs().pop();
            let is_there = |kv: &KeyValue| kv.lease == lease.id && moved.loss(Some(kv)).is_none();
            let (why, written) = (self.loss(kv.as_ref()), kv.as_ref().map_or(0, |kv| kv.mod_revision));
            if repeated && kv.as_ref().is_some_and(is_there) {
                lease.outlive_us(false);
                return Ok(Ok((lease, written)));
            }
            if let Some(why) = why {
                lease.outlive_us(false);
                return Ok(Err(why));
            }
            let value = kv.as_ref().and_then(Record::of).map(|record| record.of_owner(owner).to_bytes());
            let put = Operation::put(&self.key, value.unwrap_or_default(), Some(lease.id));
            let answer = cluster.txn(vec![Compare::written(&self.key, written)], vec![put], vec![]).await?;
            if answer.value.succeeded {
                lease.outlive_us(false);
                return Ok(Ok((lease, answer.value.revision())));
            }
            repeated |= answer.repeated;
        }
        Err(cluster.unavailable("the key of a lock changed all the time; try again").into())
    }
}

/// A key of ours, and what it stands on. When this is dropped the key goes, in the background; a key that was
/// attached goes back to whom it was attached from.
#[derive(Debug)]
pub(super) struct Contender {
    client: Arc<Client>,
    pub(super) key: OwnedKey,
    pub(super) lease: Arc<Lease>,
    /// The revision that wrote the key last, as far as we know; zero while it is not known.
    pub(super) written: i64,
    /// A request to create the key went unanswered, and may be carried out yet, also after a deletion.
    pub(super) may_come_late: bool,
    pub(super) attached_from: Option<Owner>,
    /// Goes when the key has gone.
    pub(super) turn: Option<QueueTurn>,
    /// Nothing is left to delete.
    pub(super) is_gone: bool,
}

impl Contender {
    pub(super) fn new(client: &Arc<Client>, key: OwnedKey, lease: Arc<Lease>, turn: QueueTurn) -> Self {
        let (client, turn) = (client.clone(), Some(turn));
        Self {
            client,
            key,
            lease,
            written: 0,
            may_come_late: false,
            attached_from: None,
            turn,
            is_gone: false,
        }
    }

    /// Deletes the key in the background, as often as it takes while its lease lives, and what a late request
    /// makes.
    fn delete(&self, key: OwnedKey, turn: Option<QueueTurn>) {
        let (client, lease, written) = (self.client.clone(), self.lease.clone(), self.written);
        let (cluster, may_come_late) = (client.cluster.clone(), self.may_come_late);
        let task = cluster.background.begin();
        self.client.cluster.keeper.spawn(async move {
            let deleted = key.delete(&cluster, written).await;
            let look = (may_come_late || deleted.is_err()).then(|| {
                client.leases.retire(&lease);
                Look { cluster, key, written, until_deleted: !may_come_late, only_on: None }.run(&lease)
            });
            // Nobody waits for what follows, and the lease goes with its last user: its end is begun before
            // this one is done.
            drop((turn, client, lease, task));
            if let Some(look) = look {
                look.await;
            }
        });
    }

    /// The key is on another lease now, where it was written by revision `written`.
    pub(super) fn moved(&mut self, lease: Arc<Lease>, written: i64) {
        self.look_on_left_lease();
        (self.lease, self.written) = (lease, written);
    }

    /// The key is on another lease now, and not ours any more.
    pub(super) fn moved_away(mut self) {
        self.look_on_left_lease();
        self.is_gone = true;
    }

    /// Deletes in the background what a late request makes on the lease that the key has left.
    fn look_on_left_lease(&mut self) {
        if !std::mem::take(&mut self.may_come_late) {
            return;
        }
        self.client.leases.retire(&self.lease);
        let (cluster, key, only_on) = (self.client.cluster.clone(), self.key.clone(), Some(self.lease.id));
        let look = Look { cluster, key, written: 0, until_deleted: false, only_on };
        self.client.cluster.keeper.spawn(look.run(&self.lease));
    }
}

/// Deletes a key again and again: it may still be there, or come late.
struct Look {
    cluster: Arc<Cluster>,
    key: OwnedKey,
    written: i64,
    /// One deletion that is answered is enough.
    until_deleted: bool,
    /// The lease whose key it is for. On another one the key has a right to be, under the same owner.
    only_on: Option<i64>,
}

impl Look {
    /// Goes on while the lease lives and has other users.
    fn run(self, lease: &Arc<Lease>) -> impl Future<Output = ()> + Send + use<> {
        let backoff = Backoff::new(LATE_PAUSE, (lease.term / 3).max(LATE_PAUSE));
        self.repeat(Arc::downgrade(lease), backoff)
    }

    async fn repeat(self, users: Weak<Lease>, mut backoff: Backoff) {
        loop {
            backoff.sleep().await;
            match users.upgrade() {
                Some(lease) if !lease.is_over(self.cluster.clock.now()) => {}
                _ => return,
            }
            let goes = |kv: &KeyValue| self.only_on.is_none_or(|lease| kv.lease == lease);
            let deleted = self.key.delete_if(&self.cluster, self.written, goes).await;
            if self.until_deleted && deleted.is_ok() {
                return;
            }
        }
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        if self.is_gone {
            return;
        }
        let (key, turn) = (self.key.clone(), self.turn.take());
        if let Some(owner) = self.attached_from {
            self.lease.outlive_us(true);
            let until = self.lease.sent().plus(self.lease.term);
            return attach::give_back(&self.client, key, owner, until, turn);
        }
        self.delete(key, turn);
    }
}
