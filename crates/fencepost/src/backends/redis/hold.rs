//! One held lock: renewing it, giving it back, leaving it to a handle. Each is one conditional request, which
//! names the owner and the token.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;

use super::client::{self, Client, Op};
use super::keys::KeySet;
use super::push::PushSlot;
use super::record::Record;
use crate::backend::{Hold, Renewal};
use crate::{FencingToken, Loss, Owner, Result};

#[derive(Debug)]
pub(super) struct Held {
    client: Arc<Client>,
    keys: Arc<KeySet>,
    owner: Owner,
    token: FencingToken,
    giving_back: Mutex<GivingBack>,
    /// Open for revocations, on the channel that the lock's value names.
    _pushes: (PushSlot, Arc<String>),
}

/// What giving the lock back has come to. The mutex lets one at a time do it: `max_hold` may end in the
/// moment in which the guard is detached, and the lock is then either detached or released.
#[derive(Debug, Default)]
struct GivingBack {
    /// It is given back, or left to a handle: nothing may touch it any more.
    done: bool,
    /// A release was sent. Not to find the lock is no news from then on.
    begun: bool,
}

impl Held {
    pub(super) fn new(
        client: &Arc<Client>,
        keys: Arc<KeySet>,
        owner: Owner,
        token: FencingToken,
        pushes: (PushSlot, Arc<String>),
    ) -> Arc<Self> {
        let giving_back = Mutex::default();
        Arc::new(Self { client: client.clone(), keys, owner, token, giving_back, _pushes: pushes })
    }
}

#[async_trait]
impl Hold for Held {
    async fn renew(&self, term: Duration) -> Result<Renewal> {
        let _room = self.client.renewals.acquire().await;
        renew(&self.client, &self.keys, self.owner, self.token, term, Loss::Taken).await
    }

    async fn release(&self) -> Result<bool> {
        let mut giving_back = self.giving_back.lock().await;
        if giving_back.done {
            return Ok(true);
        }
        let again = std::mem::replace(&mut giving_back.begun, true);
        let freed = release(&self.client, &self.keys, self.owner, self.token).await?;
        giving_back.done = true;
        // It was ours as far as we know, so what a first request may have done, it has done.
        Ok(again || freed != Some(false))
    }

    async fn detach(&self, term: Duration) -> Result<Renewal> {
        let mut giving_back = self.giving_back.lock().await;
        if giving_back.done {
            return Ok(Renewal::Lost(Loss::Taken));
        }
        let renewal = self.renew(term).await?;
        giving_back.done = matches!(renewal, Renewal::Renewed { .. });
        Ok(renewal)
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Makes a lock end `term` from now, unless it ends later. `gone` is why it is lost if there is nothing in
/// its place.
pub(super) async fn renew(
    client: &Client,
    keys: &KeySet,
    owner: Owner,
    token: FencingToken,
    term: Duration,
    gone: Loss,
) -> Result<Renewal> {
    client.config().check_ttl(term)?;
    // Late answers are worthless, and a stuck connection should be replaced while there is time to.
    let timeout = client.timeout().min((term / 3).max(Duration::from_millis(20)));
    let op = Op::Renew { owner, token, ttl: term };
    let reply = client.run(keys, op, timeout, client::renewed).await?;
    Ok(match reply.value {
        Ok(()) => Renewal::Renewed { sent: reply.sent, term: Some(term) },
        Err(found) => Renewal::Lost(loss(&found, owner, gone)),
    })
}

/// Gives a lock back: whether it was still the owner's. `None` if a repeated request found nothing: the first
/// one has freed it, or it was not the owner's any more.
pub(super) async fn release(
    client: &Client,
    keys: &KeySet,
    owner: Owner,
    token: FencingToken,
) -> Result<Option<bool>> {
    let reply = client.run(keys, Op::Free { owner, token }, client.timeout(), client::freed).await?;
    Ok(if reply.value || !reply.repeated { Some(reply.value) } else { None })
}

/// Why a lock is not its owner's any more, by what was found in its place; `gone` if that is nothing.
pub(super) fn loss(found: &[u8], owner: Owner, gone: Loss) -> Loss {
    let found = String::from_utf8_lossy(found);
    match Record::parse(&found) {
        Some(Record { owner: of, revoked: Some(reason), .. }) if of == owner => {
            Loss::ForceReleased { reason: reason.to_owned() }
        }
        _ if found.is_empty() => gone,
        _ => Loss::Taken,
    }
}
