//! The store's side: what the core calls.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::held::MemoryLock;
use super::{Call, Store};
use crate::backend::{
    Backend, Capabilities, ForceRelease, Grant, Hold, Renewal, Request, Revoked, TryOutcome,
};
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::sync::lock;
use crate::{Error, FencingToken, Handle, Holder, Listing, Loss, Name, Owner, Result};

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
        match self.take(request)? {
            Taken::Granted(token, sent) => self.deliver(request, token, sent).await.map(TryOutcome::Granted),
            Taken::Busy(holder, _) => {
                self.after(Call::Acquire).await?;
                Ok(TryOutcome::Busy(Some(*holder)))
            }
        }
    }

    async fn acquire(&self, request: &Request) -> Result<Grant> {
        self.before(Call::Acquire).await?;
        let (holder, turn, freed) = self.with_entry(&request.name, |entry, now| {
            let holder = entry.current(now).map(|held| held.holder(&request.name, now));
            entry.enter(request);
            (holder, entry.turn.clone(), entry.freed.clone())
        });
        let waits = WaitingRequest { store: self, request };
        if let Some(holder) = holder {
            request.seen.note(holder);
        }
        let turn = turn.lock_owned().await;
        loop {
            match self.take(request)? {
                Taken::Granted(token, sent) => {
                    drop((turn, waits));
                    return self.deliver(request, token, sent).await;
                }
                Taken::Busy(holder, until) => {
                    request.seen.note(*holder);
                    self.0.clock.within(Some(until), freed.notified()).await;
                }
            }
        }
    }

    async fn attach(&self, handle: &Handle, request: &Request) -> Result<Grant> {
        self.before(Call::Acquire).await?;
        let (name, owner, token) = (handle.name(), handle.owner(), handle.token());
        let sent = self.with_entry(name, |entry, now| {
            let held = entry.renew(owner, token, request.ttl, now).map_err(|why| Error::lost(name, why))?;
            held.owner = request.owner();
            std::mem::replace(&mut held.signal, request.signal.clone()).raise(Loss::Taken);
            Ok::<_, Error>(now)
        })?;
        self.after(Call::Acquire).await?;
        Ok(self.grant(request, token, sent))
    }

    async fn renew(&self, handle: &Handle, term: Duration) -> Result<Renewal> {
        MemoryHold::of(self, handle).renew(term).await
    }

    async fn release(&self, handle: &Handle) -> Result<bool> {
        MemoryHold::of(self, handle).release().await
    }

    async fn list(&self, prefix: &str) -> Result<Listing> {
        let now = self.0.clock.now();
        let mut names = lock(&self.0.names);
        let matching = names.iter_mut().filter(|(name, _)| name.as_str().starts_with(prefix));
        let holders = matching.filter_map(|(name, entry)| Some(entry.current(now)?.holder(name, now)));
        Ok(holders.collect::<Vec<_>>().into())
    }

    async fn show(&self, name: &Name) -> Result<Option<Holder>> {
        Ok(self.with_entry(name, |entry, now| {
            let holder = entry.current(now)?.holder(name, now);
            Some(Holder { queue: entry.queue(name), ..holder })
        }))
    }

    async fn force_release(&self, name: &Name, how: &ForceRelease) -> Result<Option<Revoked>> {
        self.with_entry(name, |entry, now| {
            let Some(held) = entry.current(now) else { return Ok(None) };
            if !how.means(&held.holder(name, now)) {
                return Err(Error::changed(name, held.holder(name, now)));
            }
            held.revoked = Some(how.reason.clone());
            held.signal.raise(Loss::ForceReleased { reason: how.reason.clone() });
            let holder = held.holder(name, now);
            let token = entry.next_token()?;
            if how.now {
                entry.free();
            }
            Ok(Some(Revoked::new(holder, token, how.now)))
        })
    }

    async fn check(&self) -> Result<()> {
        Ok(())
    }

    async fn settle(&self) {}

    async fn close(&self) {}
}

enum Taken {
    /// By a request of this moment.
    Granted(FencingToken, Moment),
    /// By another holder, until this moment.
    Busy(Box<Holder>, Moment),
}

impl Store {
    fn with_entry<T>(&self, name: &Name, act: impl FnOnce(&mut MemoryLock, Moment) -> T) -> T {
        let now = self.0.clock.now();
        act(lock(&self.0.names).entry(name.clone()).or_default(), now)
    }

    /// Takes the lock if it is free.
    fn take(&self, request: &Request) -> Result<Taken> {
        self.with_entry(&request.name, |entry, now| match entry.current(now) {
            Some(held) => Ok(Taken::Busy(held.holder(&request.name, now).into(), held.until)),
            None => Ok(Taken::Granted(entry.grant(request, now)?, now)),
        })
    }

    /// Passes a grant on, or gives it back if its answer is lost or nobody waits for it any more.
    async fn deliver(&self, request: &Request, token: FencingToken, sent: Moment) -> Result<Grant> {
        let mut undo = UndeliveredGrant { store: self, request, token: Some(token) };
        self.after(Call::Acquire).await?;
        undo.token = None;
        Ok(self.grant(request, token, sent))
    }

    fn grant(&self, request: &Request, token: FencingToken, sent: Moment) -> Grant {
        let (store, name, owner) = (self.clone(), request.name.clone(), request.owner());
        let hold = Arc::new(MemoryHold { store, name, owner, token });
        Grant { identity: request.identity, token, sent, term: Some(request.ttl), pushed: false, hold }
    }
}

/// A request that is listed among the waiters for as long as this value lives.
struct WaitingRequest<'a> {
    store: &'a Store,
    request: &'a Request,
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        self.store.with_entry(&self.request.name, |entry, _| entry.leave(self.request.owner()));
    }
}

/// Gives back a grant that never reached its caller.
struct UndeliveredGrant<'a> {
    store: &'a Store,
    request: &'a Request,
    token: Option<FencingToken>,
}

impl Drop for UndeliveredGrant<'_> {
    fn drop(&mut self) {
        if let Some(token) = self.token {
            let owner = self.request.owner();
            self.store.with_entry(&self.request.name, |entry, now| entry.release(owner, token, now));
        }
    }
}

#[derive(Debug)]
struct MemoryHold {
    store: Store,
    name: Name,
    owner: Owner,
    token: FencingToken,
}

impl MemoryHold {
    /// The lock that a handle is about, if it still is.
    fn of(store: &Store, handle: &Handle) -> Self {
        let (name, owner, token) = (handle.name().clone(), handle.owner(), handle.token());
        Self { store: store.clone(), name, owner, token }
    }
}

#[async_trait]
impl Hold for MemoryHold {
    async fn renew(&self, term: Duration) -> Result<Renewal> {
        self.store.before(Call::Renew).await?;
        let renewal = self.store.with_entry(&self.name, |entry, sent| {
            let lost = entry.renew(self.owner, self.token, term, sent).err();
            lost.map_or(Renewal::Renewed { sent, term: Some(term) }, Renewal::Lost)
        });
        self.store.after(Call::Renew).await?;
        Ok(renewal)
    }

    async fn release(&self) -> Result<bool> {
        self.store.before(Call::Release).await?;
        let ours = self.store.with_entry(&self.name, |entry, now| entry.release(self.owner, self.token, now));
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
