//! A detached lock: a lease in the record. No flock stands behind it; whoever changes it has the flock for the moment
//! of the change.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::lockfile::LockFile;
use super::record::{Lease, Page, Record, State};
use super::watch::Watched;
use super::{Shared, fork, place};
use crate::backend::{Grant, Hold, Renewal, Request, Signal, lock};
use crate::{Error, FencingToken, Handle, Loss, Name, Owner, Result};

impl Shared {
    pub(super) async fn attach(self: &Arc<Self>, handle: &Handle, request: &Request) -> Result<Grant> {
        let (name, owner, sent) = (handle.name(), handle.owner(), self.clock.now());
        let token = self.extend(name, owner, request.ttl).await?;
        let token = token.map_err(|why| Error::lost(name, why))?;
        let (shared, signal) = (self.clone(), request.signal.clone());
        let hold =
            Arc::new(LeaseHold { shared, name: name.clone(), owner, signal, generation: fork::generation() });
        let watched = Arc::downgrade(&hold);
        lock(&self.held).insert(owner, watched);
        Ok(Grant { owner, token, sent, term: Some(request.ttl), pushed: false, hold })
    }

    /// Makes a lease end `term` from now, unless it ends later already.
    async fn extend(&self, name: &Name, owner: Owner, term: Duration) -> Result<Result<FencingToken, Loss>> {
        let extended = self.on_lease(name, owner, |file, page, record, lease| {
            let now = self.now();
            if lease.left(&now) < term {
                let state = State::Leased(Lease::ending(&now, term));
                file.write_or_restore(&Record { state, ..*record }, page)?;
                if self.durable {
                    file.sync(&self.place, false)?;
                }
            }
            Ok(record.token)
        });
        let token = match extended.await? {
            Ok(token) => token,
            Err(why) => return Ok(Err(why)),
        };
        let limit = || self.damaged(&place::file_name(name), name, super::record::Damage::Contents);
        FencingToken::new(token).ok_or_else(limit).map(Ok)
    }

    /// Does something to the record of a lease, under the flock, if it still runs and is this owner's.
    pub(super) async fn on_lease<T>(
        &self,
        name: &Name,
        owner: Owner,
        act: impl Fn(&LockFile, &Page, &Record<'_>, Lease) -> std::io::Result<T>,
    ) -> Result<Result<T, Loss>> {
        let file_name = place::file_name(name);
        let deadline = self.clock.now().plus(self.timeout);
        for tried in 0.. {
            if let Some(answer) = self.try_on_lease(name, owner, &file_name, &act)? {
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
        owner: Owner,
        file_name: &str,
        act: &impl Fn(&LockFile, &Page, &Record<'_>, Lease) -> std::io::Result<T>,
    ) -> Result<Option<Result<T, Loss>>> {
        let failed = |error| self.failed(file_name, "use", error);
        let Some(file) = LockFile::open(&self.place, file_name).map_err(failed)? else {
            return Ok(Some(Err(Loss::Taken)));
        };
        let locked = file.try_lock().map_err(failed)?;
        let page = file.peek().map_err(failed)?;
        let out = match self.lease(&page, name, owner, file_name)? {
            Ok(_) if !locked => return Ok(None),
            Ok((record, lease)) => Ok(act(&file, &page, &record, lease).map_err(failed)?),
            Err(why) => Err(why),
        };
        // What was written into a file that had been replaced meanwhile does not count.
        Ok(file.is_current().map_err(failed)?.then_some(out))
    }

    /// The lease in a page, if it still runs and is this owner's.
    fn lease<'a>(
        &self,
        page: &'a Page,
        name: &Name,
        owner: Owner,
        file_name: &str,
    ) -> Result<Result<(Record<'a>, Lease), Loss>> {
        let record = self.record(page, name, file_name)?.filter(|record| record.owner == owner);
        let lease = match record {
            Some(Record { state: State::Leased(lease), .. }) => Some(lease),
            _ => None,
        };
        Ok(match (record, lease, page.revoked(owner)) {
            (_, _, Ok(Some(reason))) => Err(Loss::ForceReleased { reason: reason.to_owned() }),
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
    owner: Owner,
    signal: Arc<Signal>,
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
                self.shared.lease(&page, &self.name, self.owner, &file_name)
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
            lock(&self.shared.held).remove(&self.owner);
        }
    }
}

#[async_trait]
impl Hold for LeaseHold {
    async fn renew(&self, term: Duration) -> Result<Renewal> {
        let sent = self.shared.clock.now();
        let extended = self.shared.extend(&self.name, self.owner, term).await?;
        Ok(match extended {
            Ok(_) => Renewal::Renewed { sent, term: Some(term) },
            Err(why) => Renewal::Lost(why),
        })
    }

    async fn release(&self) -> Result<bool> {
        let released = self.shared.on_lease(&self.name, self.owner, |file, page, record, _| {
            file.write_or_restore(&Record { state: State::Free, ..*record }, page)
        });
        Ok(released.await?.is_ok())
    }

    async fn detach(&self, term: Duration) -> Result<Renewal> {
        self.renew(term).await
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
