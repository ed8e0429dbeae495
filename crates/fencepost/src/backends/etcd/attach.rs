//! Handles: whoever has one renews a detached lock, gives it back, or takes it over under a new identity.
//!
//! A handle names a key by the revision that created it, and its holder by the owner in the key's record.
//! Each request that changes the key is conditional on both.

use std::sync::Arc;
use std::time::Duration;

use super::client::Client;
use super::contender::{Contender, OwnedKey, TRIES};
use super::driver::cluster::{Cluster, RequestError, Stamp};
use super::driver::proto::{Compare, KeyValue, Operation};
use super::hold::Held;
use super::keys::Keys;
use super::leases::proven;
use super::local_queue::QueueTurn;
use super::record::Record;
use crate::backend::{Grant, Renewal, Request};
use crate::backends::common::backoff::Backoff;
use crate::runtime::clock::Moment;
use crate::{Error, Handle, Loss, Name, Owner, Result};

/// Before a look that follows a keep-alive which does not count.
const ELECTION_PAUSE: Duration = Duration::from_millis(25);
/// Between two tries to give a key back.
const PAUSE: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_millis(500));

/// Takes a detached lock over: writes our identity into its key, in the place of the handle's. The token
/// stays. Undone if nobody waits for it any more.
pub(super) async fn attach(client: Arc<Client>, handle: Handle, request: Request) -> Result<Grant> {
    let (cluster, name) = (&client.cluster, handle.name());
    let turn = turn(&client, name).await?;
    let lost = |why| Error::lost(name, why);
    let (key, lease, lasts, _) = keep_alive(&client, &handle).await?.map_err(lost)?;
    // Always to a lease of its own: others may use the one that it is on, and end that.
    let (theirs, term) = (key.owner, lasts.max(request.ttl));
    let attached = OwnedKey { owner: request.owner(), ..key.clone() };
    let (own, written) = match key.move_to_own_lease(&client, request.owner(), term).await {
        Ok(moved) => moved.map_err(lost)?,
        Err(error) => {
            give_back(&client, attached, theirs, cluster.clock.now().plus(term), Some(turn));
            return Err(error.into());
        }
    };
    client.leases.end_own(lease);
    let (identity, token, sent) = (request.identity, handle.token(), own.sent());
    let until = sent.plus(own.term);
    let mut contender = Contender::new(&client, attached, own, turn);
    (contender.attached_from, contender.written) = (Some(theirs), written);
    let hold = Held::new(&client, &request, contender, until);
    Ok(Grant { identity, token, sent, term: Some(request.ttl), pushed: false, hold })
}

/// Renews a detached lock as guards are renewed: by a read and a keep-alive. Only what shall last longer than
/// its lease moves to another one.
pub(super) async fn renew(client: Arc<Client>, handle: Handle, term: Duration) -> Result<Renewal> {
    let _turn = turn(&client, handle.name()).await?;
    let (key, lease, lasts, sent) = match keep_alive(&client, &handle).await? {
        Ok(kept) => kept,
        Err(why) => return Ok(Renewal::Lost(why)),
    };
    if lasts >= term {
        return Ok(Renewal::Renewed { sent, term: Some(term) });
    }
    let own = match key.move_to_own_lease(&client, key.owner, term).await? {
        Ok((own, _)) => own,
        Err(why) => return Ok(Renewal::Lost(why)),
    };
    own.outlive_us(true);
    client.leases.end_own(lease);
    Ok(Renewal::Renewed { sent: own.sent(), term: Some(term) })
}

/// Gives a detached lock back, revoked or not.
pub(super) async fn release(client: Arc<Client>, handle: Handle) -> Result<bool> {
    let _turn = turn(&client, handle.name()).await?;
    let Ok((key, kv, _)) = find(&client, &handle).await? else { return Ok(false) };
    if key.loss(Some(&kv)) == Some(Loss::Taken) {
        return Ok(false);
    }
    let released = key.delete(&client.cluster, kv.mod_revision).await?;
    if released {
        client.leases.end_own(kv.lease);
    }
    Ok(released)
}

/// Waits for the turn to use a handle of a name.
async fn turn(client: &Client, name: &Name) -> Result<QueueTurn> {
    let cluster = &client.cluster;
    let deadline = cluster.clock.now().plus(cluster.config.timeout);
    let turn = cluster.clock.within(Some(deadline), client.handles.turn(name)).await;
    turn.ok_or_else(|| cluster.unavailable("what this process did before with the handle has not ended"))
}

/// The key that a handle names, which may have another owner by now; or why the lock is lost.
async fn find(client: &Client, handle: &Handle) -> Result<Result<(OwnedKey, KeyValue, Stamp), Loss>> {
    let keys = Keys::new(&client.cluster.config.prefix, handle.name());
    let answer = client.cluster.read(vec![keys.read()]).await?;
    let contenders = keys.contenders(answer.value.into_kvs());
    let gone = if contenders.is_empty() { Loss::Expired } else { Loss::Taken };
    let named = |kv: &KeyValue| u64::try_from(kv.create_revision) == Ok(handle.token().get());
    Ok(contenders.into_iter().find(named).ok_or(gone).map(|kv| {
        let key = OwnedKey { key: kv.key.clone(), owner: handle.owner(), created: kv.create_revision };
        (key, kv, answer.stamp)
    }))
}

/// Gives the lease of a handle's key all of its time again. The key, its lease, and how much time that is
/// from when on; or why the lock is lost.
async fn keep_alive(
    client: &Client,
    handle: &Handle,
) -> Result<Result<(OwnedKey, i64, Duration, Moment), Loss>> {
    let cluster = &client.cluster;
    for _ in 0..TRIES {
        let (key, kv, read) = match find(client, handle).await? {
            Ok(found) => found,
            Err(why) => return Ok(Err(why)),
        };
        if let Some(why) = key.loss(Some(&kv)) {
            return Ok(Err(why));
        }
        if kv.lease == 0 {
            // Somebody has put the key there again without one.
            return Ok(Ok((key, 0, Duration::ZERO, read.sent)));
        }
        match cluster.keep_alive(kv.lease, cluster.config.timeout).await {
            Ok((seconds, stamp)) => {
                if let Some(sent) = proven(stamp, read) {
                    return Ok(Ok((key, kv.lease, Duration::from_secs(seconds), sent)));
                }
            }
            Err(RequestError::NoLease(_)) => {}
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(ELECTION_PAUSE).await;
    }
    Err(cluster.unavailable(format!("lock `{}` changed all the time; try again", handle.name())))
}

/// Gives a key back to the owner that it was attached from, in the background. Our own identity may be in it,
/// or come into it yet by a request without an answer: that compares a revision which is no more once this
/// has written.
pub(super) fn give_back(
    client: &Client,
    key: OwnedKey,
    owner: Owner,
    until: Moment,
    turn: Option<QueueTurn>,
) {
    let cluster = client.cluster.clone();
    client.cluster.background.spawn(&client.cluster.keeper, async move {
        let mut backoff = PAUSE;
        while cluster.clock.now() < until {
            match try_give_back(&cluster, &key, owner).await {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) => {
                    let error = Error::from(error);
                    tracing::debug!(%error, "a lock that nobody attached to could not be given back yet");
                    backoff.sleep().await;
                }
            }
        }
        drop(turn);
    });
}

/// `false` if the key changed meanwhile.
async fn try_give_back(cluster: &Cluster, key: &OwnedKey, owner: Owner) -> Result<bool, RequestError> {
    let found = cluster.read(vec![Operation::read(&key.key)]).await?.value.into_kvs().pop();
    let found = found.filter(|kv| kv.create_revision == key.created);
    let Some((kv, record)) = found.and_then(|kv| Record::of(&kv).map(|record| (kv, record))) else {
        return Ok(true);
    };
    if record.owner != key.owner && record.owner != owner {
        return Ok(true);
    }
    let unchanged = vec![Compare::written(&key.key, kv.mod_revision)];
    let put = Operation::put(&key.key, record.of_owner(owner).to_bytes(), None);
    Ok(cluster.txn(unchanged, vec![put], vec![]).await?.value.succeeded)
}
