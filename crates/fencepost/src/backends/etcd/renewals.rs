//! Renewals that go to the cluster together: one keep-alive a lease, and one look at all keys.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use super::client::Fault;
use super::leases::{Lease, Use};
use super::proto::{KeyValue, RangeRequest, Request};
use super::session::Session;
use crate::Result;
use crate::backends::common::batch::Batches;
use crate::runtime::clock::Moment;

pub(super) type Renewals = Batches<One>;

/// One of them.
#[derive(Debug)]
pub(super) struct One {
    pub(super) key: Vec<u8>,
    pub(super) uses: Use,
    pub(super) term: Duration,
    pub(super) result: oneshot::Sender<Result<Found>>,
}

/// What a renewal found.
#[derive(Debug)]
pub(super) enum Found {
    /// Neither the lease nor the key is there.
    NoLease,
    /// Another cluster than the one that granted the lock, or an older state of it.
    Stranger,
    /// The key, if there is one; and since when its lease has all of its time, if it is the one we know and lasts for the
    /// term.
    Key(Option<KeyValue>, Option<Moment>),
}

pub(super) async fn send(session: Weak<Session>, batch: Vec<One>) {
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
            tokio::spawn(async move {
                let kept = session.leases.keep_alive(&lease).await;
                (lease, kept)
            })
        })
        .collect();
    let read = |one: &One| Request::Range(RangeRequest { key: one.key.clone(), ..RangeRequest::default() });
    // Late answers are worthless, and a stuck connection should be replaced while there is time to.
    let shortest = batch.iter().map(|one| one.term).min().unwrap_or_default();
    let timeout = (shortest / 3).max(Duration::from_millis(20));
    let found = session.client.txn_within(timeout, vec![], batch.iter().map(read).collect(), vec![]).await;
    let mut beaten = Vec::new();
    for beat in beats {
        beaten.extend(beat.await.ok());
    }
    let found = match found {
        Ok(answer) => {
            for (lease, kept) in &mut beaten {
                if kept.is_ok() {
                    *kept = session.leases.confirm(lease, answer.stamp()).await;
                }
            }
            answer.value.into_kvs()
        }
        Err(fault) => {
            let error = fault.into_error(&session.client);
            let stranger = session.client.is_stranger();
            for one in batch {
                let _ = one.result.send(if stranger { Ok(Found::Stranger) } else { Err(error.copy()) });
            }
            return;
        }
    };
    for one in batch {
        let kv = found.iter().find(|kv| kv.key == one.key).cloned();
        let lease = &one.uses.lease;
        let result = match beaten.iter().find(|(beaten, _)| beaten.id == lease.id) {
            // Of a key that is on another lease, by a move that went unanswered, this one says nothing.
            Some((_, Ok(()))) if kv.as_ref().is_some_and(|kv| kv.lease == lease.id) => {
                Ok(Found::Key(kv, Some(lease.sent())))
            }
            // A key that is there is on another one, by whoever renewed or attached the lock by its handle.
            Some((_, Err(Fault::NoLease))) if kv.is_none() => Ok(Found::NoLease),
            Some((_, Err(Fault::Error(error)))) => Err(error.copy()),
            _ => Ok(Found::Key(kv, None)),
        };
        let _ = one.result.send(result);
    }
}
