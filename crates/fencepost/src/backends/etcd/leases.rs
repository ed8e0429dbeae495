//! The leases that keep our keys alive: one for each ttl in use, shared by all locks of that ttl, and one for
//! each lock that has to outlive this client or its ttl.
//!
//! Who needs a lease keeps it alive: holders when they renew, waiters when they look at the queue. Each
//! keep-alive is an exchange of its own, so there is no stream that could die unnoticed. A lease is revoked
//! when its last user has dropped it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::driver::cluster::{Cluster, RequestError, Stamp};
use crate::backends::common::backoff::Backoff;
use crate::runtime::clock::Moment;
use crate::runtime::sync::lock;

/// A lease is new enough for another lock if this part of it has passed at most; else it is kept alive first.
const FRESH: u32 = 20;
/// Between two tries to revoke a lease.
const REVOKE_PAUSE: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_millis(500));
/// The last bit of a lease's id says whether it is the own lease of one key. Whoever moves a key away may end
/// only such a lease: on a shared one there may be other keys.
const SHARED: i64 = 0;
const OWN: i64 = 1;

/// The leases that new locks can use.
#[derive(Debug)]
pub(super) struct Leases {
    cluster: Arc<Cluster>,
    /// By their length in seconds.
    open: Mutex<HashMap<u64, Arc<Lease>>>,
    /// One lease is made at a time, or several tasks would each make their own.
    making: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
pub(super) struct Lease {
    pub(super) id: i64,
    /// How long the server lets it live; at least what was asked for.
    pub(super) term: Duration,
    cluster: Arc<Cluster>,
    validity: Mutex<LeaseValidity>,
    /// One keep-alive at a time.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct LeaseValidity {
    /// When the last request was sent that the cluster is known to let it live by.
    sent: Moment,
    /// The last keep-alive that was answered, whether it counts or not.
    kept_alive: Option<Stamp>,
    /// The server has said that there is no such lease.
    ended: bool,
    /// It stays when we drop it.
    outlives: bool,
}

impl Leases {
    pub(super) fn new(cluster: Arc<Cluster>) -> Self {
        Self { cluster, open: Mutex::default(), making: tokio::sync::Mutex::default() }
    }

    /// The shared lease for a ttl: the one there is, or a new one. It may need a keep-alive first; see
    /// [`Lease::refresh`].
    pub(super) async fn shared(&self, ttl: Duration) -> Result<Arc<Lease>, RequestError> {
        let seconds = whole_seconds(ttl);
        let find = || {
            let now = self.cluster.clock.now();
            lock(&self.open).get(&seconds).filter(|lease| !lease.is_over(now)).cloned()
        };
        if let Some(found) = find() {
            return Ok(found);
        }
        let _one = self.making.lock().await;
        if let Some(found) = find() {
            return Ok(found);
        }
        let lease = Arc::new(Lease::make(&self.cluster, seconds, SHARED).await?);
        let now = self.cluster.clock.now();
        let mut open = lock(&self.open);
        open.retain(|_, other| !other.is_over(now));
        open.insert(seconds, lease.clone());
        Ok(lease)
    }

    /// A lease for one key.
    pub(super) async fn own(&self, ttl: Duration) -> Result<Arc<Lease>, RequestError> {
        Ok(Arc::new(Lease::make(&self.cluster, whole_seconds(ttl), OWN).await?))
    }

    /// No new lock gets this lease. So it ends with those that have it, and with it what we do not know of.
    pub(super) fn retire(&self, lease: &Lease) {
        lock(&self.open).retain(|_, other| other.id != lease.id);
    }

    pub(super) fn retire_all(&self) {
        let unused = std::mem::take(&mut *lock(&self.open));
        drop(unused);
    }

    /// Revokes the lease that a key was on, if that was its own one, in the background.
    pub(super) fn end_own(&self, id: i64) {
        if id & OWN == OWN {
            revoke(&self.cluster, id, self.cluster.clock.now().plus(self.cluster.config.timeout));
        }
    }
}

impl Lease {
    async fn make(cluster: &Arc<Cluster>, seconds: u64, kind: i64) -> Result<Self, RequestError> {
        let id = i64::try_from(uuid::Uuid::now_v7().as_u64_pair().1 >> 1).unwrap_or(i64::MAX);
        let id = id & !OWN | kind;
        let (granted, sent) = match cluster.grant_lease(id, seconds).await {
            Ok(granted) => granted,
            Err(error) => {
                // It may have been made all the same.
                revoke(cluster, id, cluster.clock.now().plus(cluster.config.timeout));
                return Err(error);
            }
        };
        let validity = LeaseValidity { sent, kept_alive: None, ended: false, outlives: false };
        Ok(Self {
            id,
            term: Duration::from_secs(granted.max(seconds)),
            cluster: cluster.clone(),
            validity: Mutex::new(validity),
            asking: tokio::sync::Mutex::default(),
        })
    }

    /// Since when it has all of its time.
    pub(super) fn sent(&self) -> Moment {
        lock(&self.validity).sent
    }

    /// The server may have ended it, or has said so.
    pub(super) fn is_over(&self, now: Moment) -> bool {
        let validity = lock(&self.validity);
        validity.ended || now >= validity.sent.plus(self.term)
    }

    fn is_fresh(&self) -> bool {
        self.cluster.clock.now().since(self.sent()) <= self.term / FRESH
    }

    /// Whether it stays, with a key that is not ours any more, when we drop it.
    pub(super) fn outlive_us(&self, outlives: bool) {
        lock(&self.validity).outlives = outlives;
    }

    /// Sees to it that it has nearly all of its time left; known to only after [`confirm`](Self::confirm).
    pub(super) async fn refresh(&self) -> Result<(), RequestError> {
        if self.is_fresh() { Ok(()) } else { self.keep_alive().await }
    }

    /// Asks for it to live for all of its time again, by a request that is sent from now on.
    pub(super) async fn keep_alive(&self) -> Result<(), RequestError> {
        let asked = self.cluster.clock.now();
        let _one = self.asking.lock().await;
        if lock(&self.validity).kept_alive.is_some_and(|kept| kept.sent > asked) {
            return Ok(());
        }
        // A late answer is worth nothing, and there should be time for another try.
        let timeout = (self.term / 3).max(Duration::from_millis(20));
        let answer = self.cluster.keep_alive(self.id, timeout).await;
        let mut validity = lock(&self.validity);
        match answer {
            Ok((_, stamp)) => validity.kept_alive = Some(stamp),
            Err(error) => {
                validity.ended |= matches!(error, RequestError::NoLease(_));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Counts a keep-alive that was sent beside a transaction. Where a leader was elected between the two it
    /// is sent once more.
    pub(super) async fn confirm(&self, txn: Stamp) -> Result<(), RequestError> {
        if self.count(txn) || self.is_fresh() {
            return Ok(());
        }
        self.keep_alive().await?;
        if self.count(txn) {
            return Ok(());
        }
        let why = "its lease was kept alive by a leader that may have been replaced";
        Err(self.cluster.unavailable(why).into())
    }

    /// Counts the last keep-alive, if this transaction lets it; says whether.
    fn count(&self, txn: Stamp) -> bool {
        let mut validity = lock(&self.validity);
        let Some(sent) = validity.kept_alive.and_then(|kept| proven(kept, txn)) else { return false };
        validity.sent = validity.sent.max(sent);
        true
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let outlives = lock(&self.validity).outlives;
        if !outlives && !self.is_over(self.cluster.clock.now()) {
            revoke(&self.cluster, self.id, self.sent().plus(self.term));
        }
    }
}

/// Revokes a lease in the background, as often as it takes until it ends by itself.
fn revoke(cluster: &Arc<Cluster>, id: i64, until: Moment) {
    let job = cluster.clone();
    cluster.background.spawn(&cluster.keeper, async move {
        let mut backoff = REVOKE_PAUSE;
        while let Err(error) = job.revoke_lease(id).await {
            let error = crate::Error::from(error);
            tracing::debug!(%error, "a lease could not be revoked");
            if job.clock.now() >= until {
                return;
            }
            backoff.sleep().await;
        }
    });
}

/// Since when a lease has all of its time, by a keep-alive and a transaction that were both answered; `None`
/// if they do not prove it. `docs/proofs/etcd.md` says why they do.
///
/// A keep-alive alone proves nothing: a leader that stood still and was replaced may answer one before it
/// learns of that, while its successor counts the lease from its own election. The transaction was confirmed
/// by a majority. No leader of a later term than the transaction's was elected before that was sent, and such
/// a one gives every lease all of its time anew. An earlier leader did not answer the keep-alive: its member
/// knew the term before it passed the request on.
pub(super) fn proven(keep_alive: Stamp, txn: Stamp) -> Option<Moment> {
    (keep_alive.raft_term >= txn.raft_term).then(|| keep_alive.sent.min(txn.sent))
}

/// Leases are of whole seconds.
fn whole_seconds(ttl: Duration) -> u64 {
    ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::clock::Clock;

    fn stamp(sent: Moment, raft_term: u64) -> Stamp {
        Stamp { sent, raft_term }
    }

    #[test]
    fn a_keep_alive_answered_by_a_leader_that_was_replaced_does_not_count() {
        let sent = Clock::system().now();
        assert_eq!(proven(stamp(sent, 2), stamp(sent, 3)), None);
        let again = sent.plus(Duration::from_secs(1));
        assert_eq!(proven(stamp(again, 3), stamp(sent, 3)), Some(sent));
    }

    #[test]
    fn a_keep_alive_counts_from_the_earlier_of_both_requests() {
        let sent = Clock::system().now();
        let later = sent.plus(Duration::from_secs(1));
        assert_eq!(proven(stamp(sent, 2), stamp(later, 2)), Some(sent));
        assert_eq!(proven(stamp(later, 2), stamp(sent, 2)), Some(sent));
        // A leader elected after the transaction was sent has given the lease all of its time, too.
        assert_eq!(proven(stamp(later, 3), stamp(sent, 2)), Some(sent));
    }
}
