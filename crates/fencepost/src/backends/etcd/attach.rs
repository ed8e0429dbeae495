//! Handles: whoever has one renews a detached lock, gives it back, or takes it over under a new identity.
//!
//! A handle names a key by the revision that created it, and its holder by the owner in the key's value. A request that
//! changes the key is conditional on that revision, and on the one that last wrote the value that was read.

use std::sync::Arc;
use std::time::Duration;

use super::beat::{Stamp, proven};
use super::client::{Client, Fault};
use super::hold::{Entry, Held};
use super::keys::Keys;
use super::leases::{Mine, Use};
use super::proto::{Compare, DeleteRequest, KeyValue, PutRequest, RangeRequest, Request as Op};
use super::record::Record;
use super::seats::Seat;
use super::session::Session;
use crate::backend::{Grant, Renewal, Request};
use crate::runtime::clock::Moment;
use crate::{Error, Handle, Loss, Name, Owner, Result};

/// How often the key may change between a look and the request that relies on it.
const TRIES: usize = 8;
/// Between two tries to undo something.
const PAUSE: Duration = Duration::from_millis(500);

/// The key that a handle is about, and what it holds.
struct Found {
    kv: KeyValue,
    record: Record,
    /// Of the request that read it.
    read: Stamp,
}

impl Found {
    /// It is as it was read.
    fn unchanged(&self) -> Vec<Compare> {
        let kv = &self.kv;
        vec![Compare::created(&kv.key, kv.create_revision), Compare::written(&kv.key, kv.mod_revision)]
    }

    fn put(&self, record: &Record, lease: i64) -> Op {
        Op::Put(PutRequest { key: self.kv.key.clone(), value: record.to_bytes(), lease, ignore_lease: false })
    }

    fn revoked(&self) -> Option<Loss> {
        self.record.revoked.clone().map(|reason| Loss::ForceReleased { reason })
    }
}

/// Looks for the key that a handle names, whoever holds it; says why the lock is lost if there is none.
async fn find(session: &Session, handle: &Handle) -> Result<Result<Found, Loss>> {
    let keys = Keys::new(&session.client.config.prefix, handle.name());
    let (key, range_end) = keys.range();
    let read = Op::Range(RangeRequest { key, range_end, ..RangeRequest::default() });
    let answer = session.client.txn(vec![], vec![read], vec![]).await;
    let answer = answer.map_err(|fault| fault.into_error(&session.client))?;
    let read = answer.stamp();
    let contenders = keys.contenders(answer.value.into_kvs());
    let nobody = contenders.is_empty();
    let named = |kv: &KeyValue| u64::try_from(kv.create_revision) == Ok(handle.token().get());
    let found = contenders.into_iter().find(named).and_then(|kv| Some((Record::of(&kv)?, kv)));
    Ok(match found {
        Some((record, kv)) => Ok(Found { kv, record, read }),
        None if nobody => Err(Loss::Expired),
        None => Err(Loss::Taken),
    })
}

/// What became of keeping a lease alive.
enum Kept {
    /// It has so much time again, from this moment on.
    For(Duration, Moment),
    /// There is none, or no keep-alive that counts: look again.
    No,
}

/// Gives the lease of a key all of its time again. How much that is only the answer tells.
async fn keep_alive(client: &Client, found: &Found) -> Result<Kept> {
    if found.kv.lease == 0 {
        // Somebody has put the key there again without one.
        return Ok(Kept::For(Duration::ZERO, found.read.sent));
    }
    match client.keep_alive(found.kv.lease, client.config.timeout).await {
        Ok(kept) => Ok(match proven(kept.stamp(), found.read) {
            Some(sent) => Kept::For(Duration::from_secs(u64::try_from(kept.value.ttl).unwrap_or(0)), sent),
            None => Kept::No,
        }),
        Err(Fault::NoLease) => Ok(Kept::No),
        Err(Fault::Error(error)) => Err(error),
    }
}

fn restless(client: &Client, name: &Name) -> Error {
    client.unavailable(format!("lock `{name}` changed all the time; try again"))
}

/// Renews a detached lock as guards are renewed: by a read and a keep-alive. Only what is to last longer than its lease
/// moves to another one.
pub(super) async fn renew(session: Arc<Session>, handle: Handle, term: Duration) -> Result<Renewal> {
    let client = &session.client;
    let _turn = session.handle_turn(handle.name()).await?;
    for _ in 0..TRIES {
        let found = match find(&session, &handle).await? {
            Ok(found) if found.record.owner == handle.owner() => found,
            Ok(_) => return Ok(Renewal::Lost(Loss::Taken)),
            Err(why) => return Ok(Renewal::Lost(why)),
        };
        if let Some(why) = found.revoked() {
            return Ok(Renewal::Lost(why));
        }
        match keep_alive(client, &found).await? {
            Kept::For(lasts, sent) if lasts >= term => {
                return Ok(Renewal::Renewed { sent, term: Some(term) });
            }
            Kept::For(..) => {}
            Kept::No => {
                session.clock.sleep_until(session.clock.now().plus(PAUSE / 20)).await;
                continue;
            }
        }
        let uses = session.leases.own(term).await.map_err(|fault| fault.into_error(client))?;
        let put = found.put(&found.record, uses.lease.id);
        let answer = client.txn(found.unchanged(), vec![put], vec![]).await;
        let answer = answer.map_err(|fault| fault.into_error(client))?;
        if answer.value.succeeded {
            let before = found.kv.lease;
            session.drop_lease(before);
            return Ok(Renewal::Renewed { sent: uses.lease.sent(), term: Some(term) });
        }
        // After a request without an answer the key may be on this lease, or come to it yet.
        if !answer.unknown {
            session.leases.drop_own(&uses);
        }
    }
    Err(restless(client, handle.name()))
}

/// Gives a detached lock back, revoked or not.
pub(super) async fn release(session: Arc<Session>, handle: Handle) -> Result<bool> {
    let client = &session.client;
    let _turn = session.handle_turn(handle.name()).await?;
    let mut unknown = false;
    for _ in 0..TRIES {
        let found = match find(&session, &handle).await? {
            Ok(found) if found.record.owner == handle.owner() => found,
            Ok(_) => return Ok(false),
            // Gone, maybe by a request of ours that had no answer.
            Err(_) => return Ok(unknown),
        };
        let delete = DeleteRequest { key: found.kv.key.clone(), range_end: Vec::new() };
        let answer = client.txn(found.unchanged(), vec![Op::Delete(delete)], vec![]).await;
        let answer = answer.map_err(|fault| fault.into_error(client))?;
        if answer.value.succeeded {
            session.drop_lease(found.kv.lease);
            return Ok(true);
        }
        unknown |= answer.unknown;
    }
    Err(restless(client, handle.name()))
}

/// Takes a detached lock over: writes our identity into its key, in the place of the handle's. Its creation, and so the
/// token, stays what it was. Undone if nobody waits for it any more.
pub(super) async fn attach(session: Arc<Session>, handle: Handle, request: Request) -> Result<Grant> {
    let (client, name) = (&session.client, handle.name());
    let turn = session.handle_turn(name).await?;
    // The leases that unanswered requests may have put the key on.
    let mut tried: Vec<Use> = Vec::new();
    for _ in 0..TRIES {
        let found = find(&session, &handle).await?.map_err(|why| Error::lost(name, why))?;
        if found.record.owner == request.owner()
            && let Some(at) = tried.iter().position(|uses| uses.lease.id == found.kv.lease)
        {
            let (uses, since) = (tried.swap_remove(at), found.kv.mod_revision);
            return Ok(grant(&session, &handle, &request, (found.kv, since), uses, turn));
        }
        if found.record.owner != handle.owner() {
            return Err(Error::lost(name, Loss::Taken));
        }
        if let Some(why) = found.revoked() {
            return Err(Error::lost(name, why));
        }
        // Always to a lease of its own: others may use the one that it is on, and end that.
        let term = match keep_alive(client, &found).await? {
            Kept::For(lasts, _) => lasts.max(request.ttl),
            Kept::No => {
                session.clock.sleep_until(session.clock.now().plus(PAUSE / 20)).await;
                continue;
            }
        };
        let uses = session.leases.own(term).await.map_err(|fault| fault.into_error(client))?;
        let (id, before) = (uses.lease.id, found.kv.lease);
        let put = found.put(&found.record.clone().of_owner(request.owner()), id);
        match client.txn(found.unchanged(), vec![put], vec![]).await {
            Ok(answer) if answer.value.succeeded => {
                session.drop_lease(before);
                let since = answer.value.revision();
                return Ok(grant(&session, &handle, &request, (found.kv, since), uses, turn));
            }
            Ok(answer) if answer.unknown => tried.push(uses),
            Ok(_) | Err(Fault::NoLease) => session.leases.drop_own(&uses),
            Err(Fault::Error(error)) => {
                let (key, created) = (found.kv.key, found.kv.create_revision);
                let until = session.clock.now().plus(uses.lease.term);
                undo(&session, key, created, (request.owner(), handle.owner()), until, Some(turn));
                return Err(error);
            }
        }
    }
    Err(restless(client, name))
}

/// The lock is ours since that revision of its key.
fn grant(
    session: &Arc<Session>,
    handle: &Handle,
    request: &Request,
    (kv, since): (KeyValue, i64),
    uses: Use,
    turn: Seat,
) -> Grant {
    let (identity, token, sent, term) = (request.identity, handle.token(), uses.lease.sent(), request.ttl);
    let until = sent.plus(uses.lease.term);
    let entry = Entry {
        owner: request.owner(),
        before: Some(handle.owner()),
        mine: Mine::alone(kv.key),
        created: kv.create_revision,
        since,
        uses,
        until,
        seat: None,
        turn: Some(turn),
    };
    let hold = Held::new(session, handle.name(), request.signal.clone(), entry);
    hold.mind(None);
    Grant { identity, token, sent, term: Some(term), pushed: false, hold }
}

/// Gives a key back to the owner that a handle names, in the background. Our own identity may be in it, or come into it
/// yet by a request without an answer: that compares a revision which is no more once this has written.
pub(super) fn undo(
    session: &Arc<Session>,
    key: Vec<u8>,
    created: i64,
    (ours, theirs): (Owner, Owner),
    until: Moment,
    turn: Option<Seat>,
) {
    let job = session.clone();
    session.background.spawn(&session.keeper, async move {
        let (clock, _turn) = (&job.clock, turn);
        while clock.now() < until {
            match try_undo(&job, &key, created, ours, theirs).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(fault) => {
                    let error = fault.into_error(&job.client);
                    tracing::debug!(%error, "a lock that nobody attached to could not be given back yet");
                    clock.sleep_until(clock.now().plus(crate::wait::jittered(PAUSE))).await;
                }
            }
        }
    });
}

/// `false` if the key changed meanwhile.
async fn try_undo(
    session: &Session,
    key: &[u8],
    created: i64,
    ours: Owner,
    theirs: Owner,
) -> Result<bool, Fault> {
    let client = &session.client;
    let read = Op::Range(RangeRequest { key: key.to_vec(), ..RangeRequest::default() });
    let kv = client.txn(vec![], vec![read], vec![]).await?.value.into_kvs().pop();
    let found = kv.filter(|kv| kv.create_revision == created).and_then(|kv| Some((Record::of(&kv)?, kv)));
    let Some((record, kv)) = found.filter(|(record, _)| [ours, theirs].contains(&record.owner)) else {
        return Ok(true);
    };
    let unchanged = vec![Compare::written(key, kv.mod_revision)];
    let value = record.of_owner(theirs).to_bytes();
    let put = PutRequest { key: kv.key, value, lease: 0, ignore_lease: true };
    Ok(client.txn(unchanged, vec![Op::Put(put)], vec![]).await?.value.succeeded)
}
