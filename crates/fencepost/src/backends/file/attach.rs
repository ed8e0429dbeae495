//! Handles of detached locks. A detached lock is a lease in the record, without a flock. A process that
//! changes the record has the flock for the moment of the change.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::client::Client;
use super::failure::Failure;
use super::fork;
use super::keys::file_name;
use super::listener::Watched;
use super::lockfile::LockFile;
use super::record::{HeldBy, Page, Record};
use super::timestamp::Timestamp;
use crate::backend::{Grant, Hold, Renewal, Request};
use crate::runtime::loss_signal::LossSignal;
use crate::runtime::sync::lock;
use crate::{FencingToken, Handle, Loss, Name, Owner, Result};

/// Whose lease it is. A record of another owner, or with another token, is somebody else's.
#[derive(Debug)]
pub(super) struct LeaseKey {
    pub(super) name: Name,
    pub(super) owner: Owner,
    pub(super) token: FencingToken,
}

impl LeaseKey {
    pub(super) fn of(handle: &Handle) -> Self {
        Self { name: handle.name().clone(), owner: handle.owner(), token: handle.token() }
    }
}

/// A lease that runs, its file under our flock.
pub(super) struct RunningLease<'a> {
    pub(super) file: &'a LockFile,
    pub(super) page: &'a Page,
    pub(super) record: Record<'a>,
    end: Timestamp,
}

impl RunningLease<'_> {
    /// Writes the record anew, with an end `term` from now or later, unless an operator asked for the lock.
    fn extend(&self, client: &Client, term: Duration, record: Record<'_>) -> Result<(), Failure> {
        if let Some(reason) = self.page.revoked(self.record.owner) {
            return Err(Failure::Lost(Loss::ForceReleased { reason: reason.to_owned() }));
        }
        let held_by = HeldBy::Lease(self.end.at_least(term, Timestamp::now()));
        self.file.write_or_restore(&Record { held_by, ..record }, self.page)?;
        if client.durable { Ok(self.file.sync()?) } else { Ok(()) }
    }
}

/// Takes a detached lock over, under the identity of the request. The handle is used up then.
pub(super) async fn attach(client: &Arc<Client>, handle: &Handle, request: &Request) -> Result<Grant> {
    client.listener.start_soon(client);
    let (name, token, owner) = (handle.name(), handle.token(), request.owner());
    let sent = client.clock.now();
    let key = LeaseKey::of(handle);
    let attached = with_lease(client, &key, |lease| {
        let (pid, host) = (std::process::id(), crate::identity::host());
        let note = if request.note.is_empty() { lease.record.note } else { &request.note };
        lease.extend(client, request.ttl, Record { owner, pid, host, note, ..lease.record })
    });
    attached.await.map_err(|failure| client.error(name, failure))?;
    let hold = Arc::new(AttachedLease {
        client: client.clone(),
        key: LeaseKey { name: name.clone(), owner, token },
        signal: request.signal.clone(),
        generation: fork::generation(),
    });
    let watched = Arc::downgrade(&hold);
    lock(&client.holds).insert(owner, watched);
    // What an operator did before we were among the holders to tell.
    hold.look();
    Ok(Grant { identity: request.identity, token, sent, term: Some(request.ttl), pushed: false, hold })
}

/// Makes a detached lock end `term` from now, unless it ends later already.
pub(super) async fn renew(client: &Arc<Client>, key: &LeaseKey, term: Duration) -> Result<Renewal> {
    let renewal = extend(client, key, term).await?;
    if matches!(renewal, Renewal::Renewed { .. }) {
        // No process keeps the lock, only the disk does.
        sync(client, &key.name).await?;
    }
    Ok(renewal)
}

async fn extend(client: &Client, key: &LeaseKey, term: Duration) -> Result<Renewal> {
    let sent = client.clock.now();
    match with_lease(client, key, |lease| lease.extend(client, term, lease.record)).await {
        Ok(()) => Ok(Renewal::Renewed { sent, term: Some(term) }),
        Err(Failure::Lost(why)) => Ok(Renewal::Lost(why)),
        Err(failure) => Err(client.error(&key.name, failure)),
    }
}

/// Ends a lease, revoked or not; `false` if it is not this key's any more.
pub(super) async fn release(client: &Client, key: &LeaseKey) -> Result<bool> {
    let released = with_lease(client, key, |lease| {
        Ok(lease.file.write_or_restore(&Record { held_by: HeldBy::Nobody, ..lease.record }, lease.page)?)
    });
    match released.await {
        Ok(()) => Ok(true),
        Err(Failure::Lost(_)) => Ok(false),
        Err(failure) => Err(client.error(&key.name, failure)),
    }
}

/// Puts the record of a lock on the disk, and its file's entry. Not on this thread: a disk may take its time.
pub(super) async fn sync(client: &Arc<Client>, name: &Name) -> Result<()> {
    let (directory, file_name) = (client.directory.clone(), file_name(name));
    let synced = tokio::task::spawn_blocking(move || {
        // A file that was replaced meanwhile has nothing of ours.
        LockFile::open(&directory, &file_name)?.map_or(Ok(()), |file| file.sync_with_entry())
    });
    let synced = synced.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    synced.map_err(|error| client.error(name, error))
}

/// Does something to a lease, under the flock, if it still runs and is this key's.
pub(super) async fn with_lease<T>(
    client: &Client,
    key: &LeaseKey,
    act: impl Fn(&RunningLease<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut patience = client.patience();
    loop {
        if let Some(done) = try_with_lease(client, key, &act)? {
            return Ok(done);
        }
        if !patience.pause().await {
            let path = client.directory.path.join(file_name(&key.name));
            let source =
                format!("another process keeps lock file `{}` busy; it may be stopped", path.display());
            return Err(client.unavailable(source).into());
        }
    }
}

/// `None` if the file is in use just now, or was replaced.
fn try_with_lease<T>(
    client: &Client,
    key: &LeaseKey,
    act: &impl Fn(&RunningLease<'_>) -> Result<T, Failure>,
) -> Result<Option<T>, Failure> {
    let Some(file) = client.file(&key.name)? else { return Err(Failure::Lost(Loss::Taken)) };
    let locked = file.try_lock()?;
    let page = file.read()?;
    let done = match running(client, &page, key) {
        Ok(_) if !locked => return Ok(None),
        Ok((record, end)) => act(&RunningLease { file: &file, page: &page, record, end }),
        Err(failure) => Err(failure),
    };
    // What was written into a file that had been replaced meanwhile does not count.
    if file.is_current()? { done.map(Some) } else { Ok(None) }
}

/// The record of a lease and its end, if it still runs and is this key's.
fn running<'a>(client: &Client, page: &'a Page, key: &LeaseKey) -> Result<(Record<'a>, Timestamp), Failure> {
    let is_keys = |record: &Record<'_>| (record.owner, record.token) == (key.owner, key.token.get());
    let Some(record) = client.record(page, &key.name)?.filter(is_keys) else {
        let forced = |reason: &str| Loss::ForceReleased { reason: reason.to_owned() };
        return Err(Failure::Lost(page.revoked(key.owner).map_or(Loss::Taken, forced)));
    };
    match record.held_by {
        HeldBy::Lease(end) if !end.is_over(Timestamp::now()) => Ok((record, end)),
        HeldBy::Lease(_) => Err(Failure::Lost(Loss::Expired)),
        _ => Err(Failure::Lost(Loss::Taken)),
    }
}

/// A lease that a guard renews. Without the guard it stays: no process keeps it.
#[derive(Debug)]
struct AttachedLease {
    client: Arc<Client>,
    key: LeaseKey,
    signal: Arc<LossSignal>,
    generation: u32,
}

impl Watched for AttachedLease {
    fn name(&self) -> &Name {
        &self.key.name
    }

    /// Only what an operator did is worth telling ahead of the next renewal.
    fn look(&self) {
        if let Ok(Some(file)) = self.client.file(&self.key.name)
            && let Ok(page) = file.read()
            && let Some(reason) = page.revoked(self.key.owner)
        {
            self.signal.raise(Loss::ForceReleased { reason: reason.to_owned() });
        }
    }
}

#[async_trait]
impl Hold for AttachedLease {
    async fn renew(&self, term: Duration) -> Result<Renewal> {
        extend(&self.client, &self.key, term).await
    }

    async fn release(&self) -> Result<bool> {
        release(&self.client, &self.key).await
    }

    async fn detach(&self, term: Duration) -> Result<Renewal> {
        renew(&self.client, &self.key, term).await
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for AttachedLease {
    fn drop(&mut self) {
        // In a forked child a thread that is not here may have locked the mutex.
        if self.generation == fork::generation() {
            lock(&self.client.holds).remove(&self.key.owner);
        }
    }
}
