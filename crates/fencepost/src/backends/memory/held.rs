//! One name: who holds it, and the queue of those that wait.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{Mutex, Notify};

use crate::backend::Request;
use crate::runtime::clock::Moment;
use crate::runtime::loss_signal::LossSignal;
use crate::{FencingToken, Holder, Loss, Name, Owner, Result};

#[derive(Debug, Default)]
pub(super) struct MemoryLock {
    last_token: u64,
    held: Option<Held>,
    /// Waiters stand in the queue of this mutex. The first one looks at the lock.
    pub(super) turn: Arc<Mutex<()>>,
    /// Wakes that one.
    pub(super) freed: Arc<Notify>,
    /// All of them, for others to see.
    waiters: Vec<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    owner: Owner,
    since: SystemTime,
    note: Arc<str>,
}

#[derive(Debug)]
pub(super) struct Held {
    pub(super) owner: Owner,
    token: FencingToken,
    pub(super) until: Moment,
    since: SystemTime,
    note: Arc<str>,
    pub(super) signal: Arc<LossSignal>,
    pub(super) revoked: Option<String>,
}

impl MemoryLock {
    /// The holder, unless its lease has ended.
    pub(super) fn current(&mut self, now: Moment) -> Option<&mut Held> {
        self.held.take_if(|held| held.until <= now);
        self.held.as_mut()
    }

    /// Notes that a request waits.
    pub(super) fn enter(&mut self, request: &Request) {
        let (owner, since, note) = (request.owner(), SystemTime::now(), request.note.clone());
        self.waiters.push(Waiter { owner, since, note });
    }

    /// Notes that it waits no more.
    pub(super) fn leave(&mut self, owner: Owner) {
        self.waiters.retain(|waiter| waiter.owner != owner);
    }

    /// Who waits, first come first.
    pub(super) fn queue(&self, name: &Name) -> Vec<Holder> {
        let waiting = |waiter: &Waiter| Holder {
            since: Some(waiter.since),
            ..of_this_process(name, waiter.owner, &waiter.note)
        };
        self.waiters.iter().map(waiting).collect()
    }

    /// Gives a free lock to a request.
    pub(super) fn grant(&mut self, request: &Request, now: Moment) -> Result<FencingToken> {
        let token = self.next_token()?;
        self.held = Some(Held {
            owner: request.owner(),
            token,
            until: now.plus(request.ttl),
            since: SystemTime::now(),
            note: request.note.clone(),
            signal: request.signal.clone(),
            revoked: None,
        });
        Ok(token)
    }

    pub(super) fn next_token(&mut self) -> Result<FencingToken> {
        self.last_token += 1;
        FencingToken::new(self.last_token).ok_or_else(|| super::unavailable("tokens ran out"))
    }

    /// Makes the lease end `term` from now, unless it ends later already.
    pub(super) fn renew(
        &mut self,
        owner: Owner,
        token: FencingToken,
        term: Duration,
        now: Moment,
    ) -> Result<&mut Held, Loss> {
        let held = self.current_if(owner, token, now).ok_or(Loss::Taken)?;
        if let Some(reason) = &held.revoked {
            return Err(Loss::ForceReleased { reason: reason.clone() });
        }
        held.until = held.until.max(now.plus(term));
        Ok(held)
    }

    pub(super) fn release(&mut self, owner: Owner, token: FencingToken, now: Moment) -> bool {
        let ours = self.current_if(owner, token, now).is_some();
        if ours {
            self.free();
        }
        ours
    }

    pub(super) fn free(&mut self) {
        self.held = None;
        self.freed.notify_one();
    }

    fn current_if(&mut self, owner: Owner, token: FencingToken, now: Moment) -> Option<&mut Held> {
        self.current(now).filter(|held| (held.owner, held.token) == (owner, token))
    }
}

impl Held {
    pub(super) fn holder(&self, name: &Name, now: Moment) -> Holder {
        Holder {
            token: Some(self.token),
            since: Some(self.since),
            expires_in: Some(self.until.since(now)),
            revoked: self.revoked.clone(),
            ..of_this_process(name, self.owner, &self.note)
        }
    }
}

fn of_this_process(name: &Name, owner: Owner, note: &str) -> Holder {
    Holder {
        owner: Some(owner),
        host: Some(crate::identity::host().to_owned()),
        pid: Some(std::process::id()),
        note: Some(note.to_owned()).filter(|note| !note.is_empty()),
        ..Holder::unknown(name.clone())
    }
}
