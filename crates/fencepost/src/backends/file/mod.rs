//! Files on this machine: locks between processes, with no server. The default store.
//!
//! One file per lock in one directory. **The lock is the kernel's `flock` on that file**; the record in it carries the
//! fencing token and tells others who holds it.
//!
//! | URL | directory |
//! |---|---|
//! | `file:` | `$XDG_STATE_HOME/fencepost/locks`, else `~/.local/state/fencepost/locks` |
//! | `file:relative/path` | from the working directory |
//! | `file:///absolute/path`, `file:/absolute/path` | as it says |
//!
//! | parameter | |
//! |---|---|
//! | `mode` | `private` (default): the directory is made with 0700. One that belongs to others, or that others may write or move away, is refused: every directory above it must belong to this user or to root, and be closed to other users (also to those of an access control list, and to a group that is not known to be the owner's alone) or sticky, as `/tmp` is; links of other users are not followed. One that others may only read is used, with a warning: they see the names of locks, and can keep a force-release waiting. `shared`: the directory is made by an administrator, and whoever may write into it may use its locks; files have its group and are as open as it is (1777 makes them 0666, 0770 makes them 0660) |
//! | `durable` | `no` (default): a token is the last one plus one, or the wall clock in microseconds if that is larger; a power cut may lose the last records, and then the clock keeps tokens growing. `yes`: every grant waits until its token is on the disk, for machines whose clock may be wrong after a restart; files are never collected |
//! | `timeout` | how long to put up with a file that another process keeps busy without holding the lock (it was stopped in the middle of a call). Default 2 s. Waiting for a lock is bounded by the caller's `wait` |
//!
//! # What it promises
//! - A held lock has no end but its release and the end of its process, by whatever signal; then it is free at once. A
//!   stopped holder keeps it. The ttl matters only for detached locks.
//! - A detached lock is a lease in the record that outlives its process, and a reboot: it is on the disk before its handle is
//!   given out. It counts the same in every container, also in one with a clock of its own (a time namespace).
//! - A force-release takes the lock from the holder that it found, never from the one after it. Unless the
//!   lock is to be free at once, the holder keeps it until it lets go, a detached one until its lease ends.
//! - Neither a forked child (without exec) nor an executed program keeps a lock. In a forked child the parent's guards
//!   mean nothing; connect again there. To let another process keep a lock on purpose, hand it a *duplicate* of the
//!   guard's lifeline.
//! - Waiters block in the kernel. Inside a process they are served in order; between processes the kernel chooses.
//! - A lock file that cannot be read is reported and not touched. A list leaves it out, with a warning.
//!
//! # What breaks it
//! - Network file systems: refused.
//! - Removing or replacing lock files of held locks by hand. Their holders learn that they lost the lock, after
//!   somebody else may have taken it. Hard links of them, as some backups make, do no harm.
//! - In a shared directory: anybody who may write there. Without the sticky bit that includes removing others' files.
//! - For tokens: losing the files (or, without `durable`, a power cut) *and* a wall clock that is behind the last
//!   token, at once.
//! - For detached locks after a reboot: a wall clock that was set back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;

use crate::backends::StoreKind;
use crate::backend::{Backend, Capabilities, ForceRelease, Grant, Renewal, Request, Revoked, TryOutcome};
use crate::runtime::clock::Clock;
use crate::text::printable;
use crate::url::StoreUrl;
use crate::{Error, Handle, Holder, Listing, Name, Owner, Result};

mod bell;
mod claim;
mod contender;
pub(crate) mod fork;
mod hold;
mod lease;
pub(crate) mod lockfile;
mod operator;
mod parents;
pub(crate) mod place;
mod record;
#[cfg(test)]
mod tests;
mod watch;

use claim::Tried;
use lease::Key;
use place::{Access, Place};

const TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Store(Arc<Shared>);

/// What the calls, the holds and the threads of one store share.
#[derive(Debug)]
struct Shared {
    place: Place,
    durable: bool,
    timeout: Duration,
    clock: Clock,
    /// The store, for messages.
    label: String,
    /// What we hold, to be told when an operator takes it.
    held: Mutex<HashMap<Owner, Weak<dyn watch::Watched>>>,
    queues: contender::Queues,
    watch: watch::Watch,
}

/// The store's row in the registry.
pub(super) const STORE: StoreKind =
    StoreKind::new("files on this machine", &["file:", "file:///dir"], |url| Box::pin(connect(url)));

pub(super) async fn connect(url: StoreUrl) -> Result<Arc<dyn Backend>> {
    let shared = open(url)?;
    shared.sweep();
    Ok(Arc::new(Store(shared)))
}

fn open(mut url: StoreUrl) -> Result<Arc<Shared>> {
    let access = url.take_choice("mode", &[("private", Access::Private), ("shared", Access::Shared)])?;
    let durable = url.take_choice("durable", &[("yes", true), ("no", false)])?;
    let timeout = url.take_duration("timeout")?;
    let directory = place::directory(&url)?;
    url.finish()?;
    let place = Place::open(&directory, access.unwrap_or(Access::Private))?;
    fork::install().map_err(|error| {
        Error::config(format!("the file store cannot protect its locks from forked children: {error}"))
    })?;
    Ok(Arc::new(Shared {
        label: printable(&format!("file:{}", place.path.display())).into_owned(),
        place,
        durable: durable.unwrap_or(false),
        timeout: timeout.unwrap_or(TIMEOUT),
        clock: Clock::system(),
        held: Mutex::default(),
        queues: contender::Queues::default(),
        watch: watch::Watch::default(),
    }))
}

#[async_trait]
impl Backend for Store {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new(self.0.label.clone(), false, true, false)
    }

    fn clock(&self) -> &Clock {
        &self.0.clock
    }

    async fn try_acquire(&self, request: &Request) -> Result<TryOutcome> {
        self.0.watch.ensure_soon(&self.0);
        let deadline = self.0.clock.now().plus(self.0.timeout);
        loop {
            match self.0.try_claim(request)? {
                Tried::Granted(grant) => return Ok(TryOutcome::Granted(grant)),
                Tried::Busy(holder) => return Ok(TryOutcome::Busy(Some(holder))),
                Tried::Passing if self.0.clock.now() >= deadline => return Ok(TryOutcome::Busy(None)),
                Tried::Passing => self.0.pause(u32::MAX).await,
            }
        }
    }

    async fn acquire(&self, request: &Request) -> Result<Grant> {
        self.0.watch.ensure_soon(&self.0);
        // Not past those of this process who wait already.
        if !self.0.queues.is_waited_for(&request.name) {
            match self.0.try_claim(request)? {
                Tried::Granted(grant) => return Ok(grant),
                Tried::Busy(holder) => request.seen.note(holder),
                Tried::Passing => {}
            }
        } else if let Some(holder) = self.0.look_up(&request.name)? {
            request.seen.note(holder);
        }
        self.0.watch.ensure(&self.0);
        self.0.enter(request)?.await
    }

    async fn attach(&self, handle: &Handle, request: &Request) -> Result<Grant> {
        self.0.watch.ensure_soon(&self.0);
        self.0.attach(handle, request).await
    }

    async fn renew(&self, handle: &Handle, term: Duration) -> Result<Renewal> {
        self.0.extend_detached(handle.name(), Key::of(handle), term).await
    }

    async fn release(&self, handle: &Handle) -> Result<bool> {
        self.0.end(handle.name(), Key::of(handle)).await
    }

    async fn list(&self, prefix: &str) -> Result<Listing> {
        self.0.look_around(prefix)
    }

    async fn show(&self, name: &Name) -> Result<Option<Holder>> {
        self.0.look_up(name)
    }

    async fn force_release(&self, name: &Name, how: &ForceRelease) -> Result<Option<Revoked>> {
        self.0.revoke(name, how).await
    }

    async fn check(&self) -> Result<()> {
        Ok(())
    }

    async fn settle(&self) {}

    async fn close(&self) {
        self.0.watch.stop();
    }
}
