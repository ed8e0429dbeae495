//! A lock that is held by a flock. It ends with its process, and has no other end.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use super::attach::sync;
use super::client::Client;
use super::failure::Failure;
use super::fork;
use super::listener::Watched;
use super::lockfile::LockFile;
use super::record::{HeldBy, Record};
use super::timestamp::Timestamp;
use crate::backend::{Hold, Renewal, Request};
use crate::runtime::loss_signal::LossSignal;
use crate::runtime::sync::lock;
use crate::text::printable;
use crate::{FencingToken, Loss, Name, Owner, Result};

#[derive(Debug)]
pub(super) struct Held {
    client: Arc<Client>,
    pub(super) file: LockFile,
    pub(super) token: FencingToken,
    name: Name,
    owner: Owner,
    note: Arc<str>,
    /// In microseconds of the wall clock.
    since: u64,
    signal: Arc<LossSignal>,
    generation: u32,
    held: Mutex<bool>,
}

impl Held {
    pub(super) fn new(
        client: &Arc<Client>,
        file: LockFile,
        request: &Request,
        token: FencingToken,
        since: u64,
    ) -> Self {
        Self {
            client: client.clone(),
            file,
            token,
            name: request.name.clone(),
            owner: request.owner(),
            note: request.note.clone(),
            since,
            signal: request.signal.clone(),
            generation: fork::generation(),
            held: Mutex::new(true),
        }
    }

    pub(super) fn record(&self, held_by: HeldBy) -> Record<'_> {
        Record {
            held_by,
            owner: self.owner,
            token: self.token.get(),
            pid: std::process::id(),
            since: self.since,
            durable: self.client.durable,
            name: self.name.as_str(),
            host: crate::identity::host(),
            note: &self.note,
        }
    }

    /// Gives the flock up without touching the record.
    pub(super) fn abandon(&self) {
        *lock(&self.held) = false;
        self.file.unlock();
    }

    /// Why the lock is not ours any more, if so.
    fn loss(&self) -> Result<Option<Loss>, Failure> {
        if self.generation != fork::generation() {
            return Ok(Some(Loss::SessionEnded));
        }
        let page = self.file.read()?;
        if let Some(reason) = page.revoked(self.owner) {
            return Ok(Some(Loss::ForceReleased { reason: reason.to_owned() }));
        }
        let is_ours = |record: Record<'_>| record.owner == self.owner && record.held_by != HeldBy::Nobody;
        let ours = page.record().is_ok_and(|record| record.is_some_and(is_ours));
        Ok((!ours || !self.file.is_current()?).then_some(Loss::Taken))
    }

    /// The loss of a lock whose `held` is known.
    fn loss_if(&self, held: bool) -> Result<Option<Loss>> {
        let loss = if held { self.loss() } else { Ok(Some(Loss::Taken)) };
        loss.map_err(|failure| self.client.error(&self.name, failure))
    }

    /// Gives the lock back, whatever its record looks like by now; `true` if it was still ours.
    fn give_back(&self) -> bool {
        let mut held = lock(&self.held);
        if !std::mem::take(&mut *held) || self.generation != fork::generation() {
            return false;
        }
        let ours = self.file.is_current().unwrap_or(false);
        if let Err(error) = self.file.write(&self.record(HeldBy::Nobody)) {
            // Without the flock, a record that says held is one of a holder that died: free all the same.
            let name = printable(self.name.as_str());
            tracing::debug!(%name, %error, "the record of a released lock was not written");
        }
        self.file.unlock();
        ours
    }
}

impl Watched for Held {
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
impl Hold for Held {
    /// Checks that the lock is still ours. There is nothing to prolong.
    async fn renew(&self, _term: Duration) -> Result<Renewal> {
        let held = lock(&self.held);
        let sent = self.client.clock.now();
        Ok(self.loss_if(*held)?.map_or(Renewal::Renewed { sent, term: None }, Renewal::Lost))
    }

    async fn release(&self) -> Result<bool> {
        Ok(self.give_back())
    }

    async fn detach(&self, term: Duration) -> Result<Renewal> {
        let sent = self.client.clock.now();
        let mut undo = UndoDetach(None);
        {
            let held = lock(&self.held);
            if let Some(why) = self.loss_if(*held)? {
                return Ok(Renewal::Lost(why));
            }
            undo.0 = Some(self);
            let lease = HeldBy::Lease(Timestamp::now().plus(term));
            let written = self.file.write(&self.record(lease));
            written.map_err(|error| self.client.error(&self.name, error))?;
        }
        // With the flock: it is given back if this fails, or is not waited for.
        sync(&self.client, &self.name).await?;
        let mut held = lock(&self.held);
        undo.0 = None;
        if !std::mem::take(&mut *held) {
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

/// Takes a lease back that nobody was given a handle of, so that the lock does not outlive this process.
struct UndoDetach<'a>(Option<&'a Held>);

impl Drop for UndoDetach<'_> {
    fn drop(&mut self) {
        let Some(hold) = self.0.filter(|hold| hold.generation == fork::generation()) else { return };
        // As long as the lock is held, its record is ours to write.
        let held = lock(&hold.held);
        if *held {
            let _ = hold.file.write(&hold.record(HeldBy::Flock));
        }
    }
}

impl Drop for Held {
    /// For a grant that never became a guard, or whose guard is gone.
    fn drop(&mut self) {
        // In a forked child it is the parent's. A thread that is not here may have locked any mutex.
        if self.generation == fork::generation() {
            lock(&self.client.holds).remove(&self.owner);
            self.give_back();
        }
    }
}
