//! A lock that is held by a flock: it ends with its process, and has no other end.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use super::claim::process;
use super::lockfile::LockFile;
use super::record::{Lease, Record, State};
use super::watch::Watched;
use super::{Shared, fork, place};
use crate::backend::{Hold, Renewal, Request};
use crate::runtime::loss_signal::LossSignal;
use crate::runtime::sync::lock;
use crate::text::printable;
use crate::{FencingToken, Loss, Name, Owner, Result};

#[derive(Debug)]
pub(super) struct FlockHold {
    shared: Arc<Shared>,
    file: LockFile,
    name: Name,
    owner: Owner,
    note: Arc<str>,
    signal: Arc<LossSignal>,
    token: FencingToken,
    since: u64,
    process: (u32, u64),
    generation: u32,
    held: Mutex<bool>,
}

impl FlockHold {
    pub(super) fn new(
        shared: Arc<Shared>,
        file: LockFile,
        request: &Request,
        token: FencingToken,
        since: u64,
    ) -> Self {
        Self {
            shared,
            file,
            name: request.name.clone(),
            owner: request.owner(),
            note: request.note.clone(),
            signal: request.signal.clone(),
            token,
            since,
            process: process(),
            generation: fork::generation(),
            held: Mutex::new(true),
        }
    }

    pub(super) fn file(&self) -> &LockFile {
        &self.file
    }

    pub(super) fn token(&self) -> FencingToken {
        self.token
    }

    /// Takes a larger token, before anybody was given the first.
    pub(super) fn raise(&mut self, token: FencingToken) {
        self.token = token;
    }

    pub(super) fn record(&self, state: State) -> Record<'_> {
        Record {
            state,
            owner: self.owner,
            token: self.token.get(),
            pid: self.process.0,
            started: self.process.1,
            since: self.since,
            durable: self.shared.durable,
            name: self.name.as_str(),
            host: crate::identity::host(),
            note: &self.note,
        }
    }

    /// Whether the directory still has our file.
    pub(super) fn is_current(&self) -> std::io::Result<bool> {
        self.file.is_current(&self.shared.place, &place::file_name(&self.name))
    }

    /// Gives the flock up without touching the record.
    pub(super) fn abandon(&self) {
        *lock(&self.held) = false;
        self.file.unlock();
    }

    /// Why the lock is not ours any more, if so.
    fn loss(&self) -> Result<Option<Loss>> {
        let failed = |error| self.shared.failed(&place::file_name(&self.name), "examine", error);
        if self.generation != fork::generation() {
            return Ok(Some(Loss::SessionEnded));
        }
        // The record is ours alone to write, but an operator may be in the middle of a revocation.
        let page = self.file.peek().map_err(failed)?;
        if let Ok(Some(reason)) = page.revoked(self.owner) {
            return Ok(Some(Loss::ForceReleased { reason: reason.to_owned() }));
        }
        let ours = page.record().is_ok_and(|record| {
            record.is_some_and(|record| record.owner == self.owner && record.state != State::Free)
        });
        Ok((!ours || !self.is_current().map_err(failed)?).then_some(Loss::Taken))
    }

    /// Gives the lock back, whatever its record looks like by now; `true` if it was still ours.
    fn give_back(&self) -> bool {
        let mut held = lock(&self.held);
        if !std::mem::replace(&mut *held, false) || self.generation != fork::generation() {
            return false;
        }
        let ours = self.is_current().unwrap_or(false);
        if let Err(error) = self.file.write(&self.record(State::Free)) {
            // Without the flock, a record that says held reads as one of a holder that died: free all the same.
            tracing::debug!(name = %printable(self.name.as_str()), %error, "the record of a released lock was not written");
        }
        self.file.unlock();
        ours
    }
}

impl Watched for FlockHold {
    fn name(&self) -> &Name {
        &self.name
    }

    fn look(&self) {
        let held = lock(&self.held);
        if *held && let Ok(Some(why)) = self.loss() {
            self.signal.raise(why);
        }
    }
}

#[async_trait]
impl Hold for FlockHold {
    /// Checks that the lock is still ours. There is nothing to prolong.
    async fn renew(&self, _term: Duration) -> Result<Renewal> {
        let held = lock(&self.held);
        let sent = self.shared.clock.now();
        if !*held {
            return Ok(Renewal::Lost(Loss::Taken));
        }
        Ok(self.loss()?.map_or(Renewal::Renewed { sent, term: None }, Renewal::Lost))
    }

    async fn release(&self) -> Result<bool> {
        Ok(self.give_back())
    }

    async fn detach(&self, term: Duration) -> Result<Renewal> {
        let sent = self.shared.clock.now();
        let mut undo = Undo(None);
        {
            let held = lock(&self.held);
            let loss = if *held { self.loss()? } else { Some(Loss::Taken) };
            if let Some(why) = loss {
                return Ok(Renewal::Lost(why));
            }
            undo.0 = Some(self);
            let lease = Lease::ending(&self.shared.now(), term);
            let written = self.file.write(&self.record(State::Leased(lease)));
            written.map_err(|error| self.shared.failed(&place::file_name(&self.name), "write", error))?;
        }
        // With the flock: it is given back if this fails, or is not waited for.
        self.shared.sync(&self.name).await?;
        let mut held = lock(&self.held);
        undo.0 = None;
        if !std::mem::replace(&mut *held, false) {
            // Given back meanwhile, at its `max_hold`.
            return Ok(Renewal::Lost(Loss::Taken));
        }
        self.file.unlock();
        Ok(Renewal::Renewed { sent, term: Some(term) })
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        lock(&self.held).then(|| self.file.as_fd())
    }
}

/// Takes a lease back that nobody was given a handle to, so that the lock does not outlive this process.
struct Undo<'a>(Option<&'a FlockHold>);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        let Some(hold) = self.0.filter(|hold| hold.generation == fork::generation()) else { return };
        // As long as the lock is held, its record is ours to write.
        let held = lock(&hold.held);
        if *held {
            let _ = hold.file.write(&hold.record(State::Held));
        }
    }
}

impl Drop for FlockHold {
    /// A grant that never became a guard, or whose guard is gone.
    fn drop(&mut self) {
        // In a forked child it is the parent's, and any mutex may have been locked by a thread that is not here.
        if self.generation == fork::generation() {
            lock(&self.shared.held).remove(&self.owner);
            self.give_back();
        }
    }
}
