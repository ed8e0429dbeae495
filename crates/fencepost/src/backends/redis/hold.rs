//! One held lock: renewing it, giving it back, leaving it to others. Each is one conditional request, which
//! names the owner and the token.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;

use super::client::Client;
use super::driver::push::PushSlot;
use super::driver::session::RuntimeSlot;
use super::keys::KeySet;
use super::ops::{Kept, Op, given};
use super::record::Record;
use crate::backend::{Hold, Renewal};
use crate::{FencingToken, Loss, Owner, Result};

#[derive(Debug)]
pub(super) struct Held {
    pub(super) client: Arc<Client>,
    pub(super) keys: Arc<KeySet>,
    pub(super) owner: Owner,
    pub(super) token: FencingToken,
    pub(super) giving: Mutex<Giving>,
    /// Open for revocations while the lock is held, on the channel of this runtime, which the lock's value
    /// names.
    pub(super) _pushes: PushSlot,
    pub(super) _runtime: Arc<RuntimeSlot>,
}

/// What giving the lock back has come to. The mutex lets one at a time do it: a guard that is detached in the
/// moment in which its `max_hold` ends is either detached or released.
#[derive(Debug, Default)]
pub(super) struct Giving {
    /// It is given back, or left to whoever attaches it: what comes later must not touch it.
    done: bool,
    /// A release was sent. Not to find the lock is no news from then on.
    begun: bool,
}

#[async_trait]
impl Hold for Held {
    async fn renew(&self, term: Duration) -> Result<Renewal> {
        renew(&self.client, &self.keys, self.owner, self.token, term, Loss::Taken).await
    }

    async fn release(&self) -> Result<bool> {
        let mut giving = self.giving.lock().await;
        if giving.done {
            return Ok(true);
        }
        let again = std::mem::replace(&mut giving.begun, true);
        let freed = release(&self.client, &self.keys, self.owner, self.token).await?;
        giving.done = true;
        // It was ours as far as we know, so what a first request may have done, it has done.
        Ok(again || freed != Freed::Not)
    }

    async fn detach(&self, term: Duration) -> Result<Renewal> {
        let mut giving = self.giving.lock().await;
        if giving.done {
            return Ok(Renewal::Lost(Loss::Taken));
        }
        let renewal = self.renew(term).await?;
        giving.done = matches!(renewal, Renewal::Renewed { .. });
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
    // Late answers are worthless, and a stuck connection should be replaced while there is time to.
    let timeout = client.timeout().min((term / 3).max(Duration::from_millis(20)));
    let answer = client.run(keys, Op::Renew { owner, token, ttl: term }, timeout).await?;
    match Kept::read(answer.reply).ok_or_else(|| client.unreadable())? {
        Kept::Ours => Ok(Renewal::Renewed { sent: answer.sent, term: Some(term) }),
        Kept::Not(found) => Ok(Renewal::Lost(loss(&found, owner, gone))),
    }
}

/// What became of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freed {
    Yes,
    /// It was not ours any more.
    Not,
    /// A repeated request found nothing: the first one has done it, or it was not ours any more.
    Maybe,
}

/// Gives a lock back.
pub(super) async fn release(
    client: &Client,
    keys: &KeySet,
    owner: Owner,
    token: FencingToken,
) -> Result<Freed> {
    let answer = client.run(keys, Op::Free { owner, token }, client.timeout()).await?;
    let found = given(&answer.reply).ok_or_else(|| client.unreadable())?;
    Ok(match found {
        true => Freed::Yes,
        false if answer.repeated => Freed::Maybe,
        false => Freed::Not,
    })
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
