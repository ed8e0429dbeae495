//! The store's side of the memory store: what the core calls.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

use super::{Call, Store, unavailable};
use crate::backend::{
    Backend, Capabilities, ForceRelease, Grant, Hold, Renewal, Request, Revoked, TryOutcome,
};
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::sync::lock;
use crate::{Error, FencingToken, Handle, Holder, Listing, Loss, Name, Owner, Result};

/// Gives back a grant that never reached its caller.
pub(super) struct Undo<'a> {
    pub(super) store: &'a Store,
    pub(super) name: &'a Name,
    pub(super) owner: Owner,
    pub(super) token: FencingToken,
    pub(super) armed: bool,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.store.release(self.name, self.owner, self.token);
        }
    }
}

/// A place in the queue of a name.
struct Place<'a> {
    store: &'a Store,
    name: &'a Name,
    turn: Arc<Notify>,
}

impl<'a> Place<'a> {
    fn new(store: &'a Store, name: &'a Name) -> Self {
        let turn = Arc::new(Notify::new());
        lock(&store.0.names).entry(name.clone()).or_default().queue.push_back(turn.clone());
        Self { store, name, turn }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(entry) = lock(&self.store.0.names).get_mut(self.name) {
            entry.queue.retain(|turn| !Arc::ptr_eq(turn, &self.turn));
            // The wake-up may have been meant for us; a spare one does no harm.
            entry.wake();
        }
    }
}

#[async_trait]
impl Backend for Store {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("memory:".to_owned(), true, true, true)
    }

    fn clock(&self) -> &Clock {
        &self.0.clock
    }

    async fn try_acquire(&self, request: &Request) -> Result<TryOutcome> {
        self.before(Call::Acquire).await?;
        match self.take(request, None) {
            Ok(grant) => self.deliver(grant, request).await.map(TryOutcome::Granted),
            Err(busy) => {
                self.after(Call::Acquire).await?;
                Ok(TryOutcome::Busy(busy.0))
            }
        }
    }

    async fn acquire(&self, request: &Request) -> Result<Grant> {
        self.before(Call::Acquire).await?;
        let place = Place::new(self, &request.name);
        loop {
            let (holder, until) = match self.take(request, Some(&place.turn)) {
                Ok(grant) => {
                    drop(place);
                    return self.deliver(grant, request).await;
                }
                Err(busy) => *busy,
            };
            if let Some(holder) = holder {
                request.seen.note(holder);
            }
            let deadline = (until < Moment::NEVER).then_some(until);
            self.0.clock.within(deadline, place.turn.notified()).await;
        }
    }

    async fn attach(&self, handle: &Handle, request: &Request) -> Result<Grant> {
        self.before(Call::Acquire).await?;
        let (name, token, sent) = (handle.name(), handle.token(), self.0.clock.now());
        self.renew(name, handle.owner(), token, request.ttl, Some(request))
            .map_err(|why| Error::lost(name, why))?;
        self.after(Call::Acquire).await?;
        let (store, owner) = (self.clone(), request.owner());
        let hold = Arc::new(MemoryHold { store, name: name.clone(), owner, token });
        Ok(Grant { identity: request.identity, token, sent, term: Some(request.ttl), pushed: false, hold })
    }

    async fn renew(&self, handle: &Handle, term: Duration) -> Result<Renewal> {
        self.hold_of(handle).renew(term).await
    }

    async fn release(&self, handle: &Handle) -> Result<bool> {
        self.hold_of(handle).release().await
    }

    async fn list(&self, prefix: &str) -> Result<Listing> {
        let now = self.0.clock.now();
        let mut names = lock(&self.0.names);
        let matching = names.iter_mut().filter(|(name, _)| name.as_str().starts_with(prefix));
        let holders = matching.filter_map(|(name, entry)| Some(entry.current(now)?.holder(name, now)));
        Ok(holders.collect::<Vec<_>>().into())
    }

    async fn show(&self, name: &Name) -> Result<Option<Holder>> {
        let now = self.0.clock.now();
        let mut names = lock(&self.0.names);
        Ok(names.get_mut(name).and_then(|entry| entry.current(now)).map(|held| held.holder(name, now)))
    }

    async fn force_release(&self, name: &Name, how: &ForceRelease) -> Result<Option<Revoked>> {
        let now = self.0.clock.now();
        let mut names = lock(&self.0.names);
        let Some(entry) = names.get_mut(name) else { return Ok(None) };
        let Some(held) = entry.current(now) else { return Ok(None) };
        let found = held.holder(name, now);
        if !how.means(&found) {
            return Err(Error::changed(name, found));
        }
        held.revoked = Some(how.reason.clone());
        held.signal.raise(Loss::ForceReleased { reason: how.reason.clone() });
        let holder = held.holder(name, now);
        entry.last_token += 1;
        let token = FencingToken::new(entry.last_token).ok_or_else(|| unavailable("tokens ran out"))?;
        if how.now {
            entry.holder = None;
            entry.wake();
        }
        Ok(Some(Revoked::new(holder, token, how.now)))
    }

    async fn check(&self) -> Result<()> {
        Ok(())
    }

    async fn settle(&self) {}

    async fn close(&self) {}
}

#[derive(Debug)]
pub(super) struct MemoryHold {
    pub(super) store: Store,
    pub(super) name: Name,
    pub(super) owner: Owner,
    pub(super) token: FencingToken,
}

impl Store {
    /// The lock that a handle is about, if it still is.
    fn hold_of(&self, handle: &Handle) -> MemoryHold {
        let (name, owner, token) = (handle.name().clone(), handle.owner(), handle.token());
        MemoryHold { store: self.clone(), name, owner, token }
    }
}

#[async_trait]
impl Hold for MemoryHold {
    async fn renew(&self, term: Duration) -> Result<Renewal> {
        self.store.before(Call::Renew).await?;
        let sent = self.store.0.clock.now();
        let renewed = self.store.renew(&self.name, self.owner, self.token, term, None);
        self.store.after(Call::Renew).await?;
        Ok(match renewed {
            Ok(()) => Renewal::Renewed { sent, term: Some(term) },
            Err(why) => Renewal::Lost(why),
        })
    }

    async fn release(&self) -> Result<bool> {
        self.store.before(Call::Release).await?;
        let ours = self.store.release(&self.name, self.owner, self.token);
        self.store.after(Call::Release).await?;
        Ok(ours)
    }

    async fn detach(&self, term: Duration) -> Result<Renewal> {
        self.renew(term).await
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
