//! A detached lock: a lease in the record. No flock stands behind it; whoever changes it has the flock for the moment
//! of the change.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::claim::process;
use super::lockfile::LockFile;
use super::record::{Lease, Page, Record, State};
use super::watch::Watched;
use super::{Shared, fork, place};
use crate::backend::{Grant, Hold, Renewal, Request};
use crate::runtime::loss_signal::LossSignal;
use crate::runtime::sync::lock;
use crate::{Error, FencingToken, Handle, Loss, Name, Owner, Result};

/// What a lease is taken by: a record of another owner, or with another token, is somebody else's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) owner: Owner,
    pub(super) token: FencingToken,
}

impl Key {
    pub(super) fn of(handle: &Handle) -> Self {
        Self { owner: handle.owner(), token: handle.token() }
    }

    fn opens(self, record: &Record<'_>) -> bool {
        (record.owner, record.token) == (self.owner, self.token.get())
    }
}

impl Shared {
    /// Takes a detached lock over, under the identity of the request: the handle's is good for nothing from then on.
    pub(super) async fn attach(self: &Arc<Self>, handle: &Handle, request: &Request) -> Result<Grant> {
        let (name, token, sent) = (handle.name(), handle.token(), self.clock.now());
        let (owner, (pid, started)) = (request.owner(), process());
        let taken_over = self.on_lease(name, Key::of(handle), false, |file, page, record, lease| {
            let state = State::Leased(lease.at_least(&self.now(), request.ttl));
            let host = crate::identity::host();
            let note = if request.note.is_empty() { record.note } else { &request.note };
            file.write_or_restore(&Record { state, owner, pid, started, host, note, ..*record }, page)?;
            if self.durable { file.sync(&self.place, false) } else { Ok(()) }
        });
        taken_over.await?.map_err(|why| Error::lost(name, why))?;
        let hold = Arc::new(LeaseHold {
            shared: self.clone(),
            name: name.clone(),
            key: Key { owner, token },
            signal: request.signal.clone(),
            generation: fork::generation(),
        });
        let watched = Arc::downgrade(&hold);
        lock(&self.held).insert(owner, watched);
        // What an operator did before we were among those to tell.
        hold.look();
        Ok(Grant { identity: request.identity, token, sent, term: Some(request.ttl), pushed: false, hold })
    }

    /// Makes a lease end `term` from now, unless it ends later already.
    async fn extend(&self, name: &Name, key: Key, term: Duration) -> Result<Renewal> {
        let sent = self.clock.now();
        let extended = self.on_lease(name, key, false, |file, page, record, lease| {
            let state = State::Leased(lease.at_least(&self.now(), term));
            file.write_or_restore(&Record { state, ..*record }, page)?;
            if self.durable { file.sync(&self.place, false) } else { Ok(()) }
        });
        Ok(match extended.await? {
            Ok(()) => Renewal::Renewed { sent, term: Some(term) },
            Err(why) => Renewal::Lost(why),
        })
    }

    /// The same for a lease that no process stands behind: nothing but the disk keeps it.
    pub(super) async fn extend_detached(
        self: &Arc<Self>,
        name: &Name,
        key: Key,
        term: Duration,
    ) -> Result<Renewal> {
        let renewal = self.extend(name, key, term).await?;
        if matches!(renewal, Renewal::Renewed { .. }) {
            self.sync(name).await?;
        }
        Ok(renewal)
    }

    /// Ends a lease, revoked or not; `false` if it was not this key's any more.
    pub(super) async fn end(&self, name: &Name, key: Key) -> Result<bool> {
        let ended = self.on_lease(name, key, true, |file, page, record, _| {
            file.write_or_restore(&Record { state: State::Free, ..*record }, page)
        });
        Ok(ended.await?.is_ok())
    }

    /// Puts the record of a lock on the disk, and its file's name. Not here: a disk may take its time.
    pub(super) async fn sync(self: &Arc<Self>, name: &Name) -> Result<()> {
        let (shared, file_name) = (self.clone(), place::file_name(name));
        let synced = tokio::task::spawn_blocking(move || {
            // A file that was replaced meanwhile has nothing of ours.
            let Some(file) = LockFile::open(&shared.place, &file_name)? else { return Ok(()) };
            file.sync(&shared.place, true)
        });
        let synced = synced.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        synced.map_err(|error| self.failed(&place::file_name(name), "put on the disk", error))
    }

    /// Does something to the record of a lease, under the flock, if it still runs and is this key's; `even_revoked` if
    /// that is no reason against it.
    pub(super) async fn on_lease<T>(
        &self,
        name: &Name,
        key: Key,
        even_revoked: bool,
        act: impl Fn(&LockFile, &Page, &Record<'_>, Lease) -> std::io::Result<T>,
    ) -> Result<Result<T, Loss>> {
        let file_name = place::file_name(name);
        let deadline = self.clock.now().plus(self.timeout);
        for tried in 0.. {
            if let Some(answer) = self.try_on_lease(name, key, even_revoked, &file_name, &act)? {
                return Ok(answer);
            }
            if self.clock.now() >= deadline {
                return Err(Error::Unavailable {
                    store: self.label.clone(),
                    source: format!(
                        "another process keeps lock file `{}` busy; it may be stopped",
                        self.place.path.join(&file_name).display()
                    )
                    .into(),
                });
            }
            self.pause(tried).await;
        }
        Ok(Err(Loss::Taken))
    }

    /// `None` if the file is in use just now.
    fn try_on_lease<T>(
        &self,
        name: &Name,
        key: Key,
        even_revoked: bool,
        file_name: &str,
        act: &impl Fn(&LockFile, &Page, &Record<'_>, Lease) -> std::io::Result<T>,
    ) -> Result<Option<Result<T, Loss>>> {
        let failed = |error| self.failed(file_name, "use", error);
        let Some(file) = LockFile::open(&self.place, file_name).map_err(failed)? else {
            return Ok(Some(Err(Loss::Taken)));
        };
        let locked = file.try_lock().map_err(failed)?;
        let page = file.peek().map_err(failed)?;
        let out = match self.lease(&page, name, key, even_revoked, file_name)? {
            Ok(_) if !locked => return Ok(None),
            Ok((record, lease)) => Ok(act(&file, &page, &record, lease).map_err(failed)?),
            Err(why) => Err(why),
        };
        // What was written into a file that had been replaced meanwhile does not count.
        Ok(file.is_current(&self.place, file_name).map_err(failed)?.then_some(out))
    }

    /// The lease in a page, if it still runs and is this key's.
    fn lease<'a>(
        &self,
        page: &'a Page,
        name: &Name,
        key: Key,
        even_revoked: bool,
        file_name: &str,
    ) -> Result<Result<(Record<'a>, Lease), Loss>> {
        let record = self.record(page, name, file_name)?.filter(|record| key.opens(record));
        let lease = match record {
            Some(Record { state: State::Leased(lease), .. }) => Some(lease),
            _ => None,
        };
        Ok(match (record, lease, page.revoked(key.owner)) {
            (record, _, Ok(Some(reason))) if record.is_none() || !even_revoked => {
                Err(Loss::ForceReleased { reason: reason.to_owned() })
            }
            (Some(record), Some(lease), _) if !lease.left(&self.now()).is_zero() => Ok((record, lease)),
            (_, Some(_), _) => Err(Loss::Expired),
            _ => Err(Loss::Taken),
        })
    }

    /// Lets whoever is in the way get out of it: for an instant usually, so first by yielding only.
    pub(super) async fn pause(&self, tried: u32) {
        if tried < 50 {
            std::thread::yield_now();
        } else {
            self.clock.sleep_until(self.clock.now().plus(Duration::from_millis(1))).await;
        }
    }
}

#[derive(Debug)]
struct LeaseHold {
    shared: Arc<Shared>,
    name: Name,
    key: Key,
    signal: Arc<LossSignal>,
    generation: u32,
}

impl Watched for LeaseHold {
    fn name(&self) -> &Name {
        &self.name
    }

    /// Only what an operator did is worth telling ahead of the next renewal.
    fn look(&self) {
        let file_name = place::file_name(&self.name);
        if let Ok(Some(file)) = LockFile::open(&self.shared.place, &file_name)
            && let Ok(page) = file.peek()
            && let Ok(Err(why @ Loss::ForceReleased { .. })) =
                self.shared.lease(&page, &self.name, self.key, false, &file_name)
        {
            self.signal.raise(why);
        }
    }
}

impl Drop for LeaseHold {
    /// The lease stays: nobody's process stands behind it.
    fn drop(&mut self) {
        // In a forked child the mutex may have been locked by a thread that is not here.
        if self.generation == fork::generation() {
            lock(&self.shared.held).remove(&self.key.owner);
        }
    }
}

#[async_trait]
impl Hold for LeaseHold {
    async fn renew(&self, term: Duration) -> Result<Renewal> {
        self.shared.extend(&self.name, self.key, term).await
    }

    async fn release(&self) -> Result<bool> {
        self.shared.end(&self.name, self.key).await
    }

    async fn detach(&self, term: Duration) -> Result<Renewal> {
        self.shared.extend_detached(&self.name, self.key, term).await
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
