//! Who waits, for others to see: the file `.waiting` beside the lock files. Each waiter has a slot there with
//! its record, and a lock on one byte (an OFD lock) for as long as it waits. The kernel takes that lock back
//! with the process, so what stands in a slot that nobody has locked means nothing.
//!
//! It is for people to read. Nothing is decided by it, and a waiter that cannot be listed waits all the same.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::fs::fstat;
use rustix::io::{pread, pwrite, retry_on_intr};
use rustix::process::{Resource, getrlimit};

use super::client::Client;
use super::directory::Directory;
use super::fork;
use super::lockfile::LockFile;
use super::operator::holder;
use super::record::{HeldBy, Page, REVOCATION, Record};
use crate::backend::Request;
use crate::runtime::sync::lock;
use crate::text::printable;
use crate::wait::random;
use crate::{Holder, Name};

/// A wait is listed when it has taken so long. Most are over before, and cost nothing.
pub(super) const LISTED_AFTER: Duration = Duration::from_millis(100);

const FILE: &str = ".waiting";
/// A record has the room here that it has in a lock file.
const SLOT: usize = REVOCATION;
/// More waiters are not listed.
const SLOTS: u64 = 1000;
/// How many slots are tried, from the beginning and from a random place.
const TRIES: u64 = 64;

/// The slots that this client has.
#[derive(Debug, Default)]
pub(super) struct WaiterSlots(Mutex<OwnSlots>);

#[derive(Debug, Default)]
struct OwnSlots {
    /// Open as long as one is taken.
    file: Option<LockFile>,
    /// An open file is not kept out by its own locks.
    taken: BTreeSet<u64>,
}

/// A waiter that others can see, for as long as this value lives.
pub(super) struct ListedWaiter {
    client: Arc<Client>,
    slot: u64,
    generation: u32,
}

impl ListedWaiter {
    /// Lists a caller that has waited since then, in microseconds of the wall clock. `None` if there is no
    /// room.
    pub(super) fn enter(client: &Arc<Client>, request: &Request, since: u64) -> Option<Self> {
        let record = Record {
            held_by: HeldBy::Nobody,
            owner: request.owner(),
            token: 0,
            pid: std::process::id(),
            since,
            durable: false,
            name: request.name.as_str(),
            host: crate::identity::host(),
            note: &request.note,
        };
        let entered = lock(&client.waiters.0).enter(&client.directory, &record);
        let slot = entered.unwrap_or_else(|error| {
            tracing::debug!(name = %printable(request.name.as_str()), %error, "a waiter is not listed");
            None
        })?;
        Some(Self { client: client.clone(), slot, generation: fork::generation() })
    }
}

impl Drop for ListedWaiter {
    fn drop(&mut self) {
        // In a forked child the slot is the parent's, and any thread of the parent may have had the mutex.
        if self.generation == fork::generation() {
            lock(&self.client.waiters.0).leave(self.slot);
        }
    }
}

impl OwnSlots {
    fn enter(&mut self, directory: &Arc<Directory>, record: &Record<'_>) -> io::Result<Option<u64>> {
        let file = match self.file.take() {
            Some(file) => file,
            None => LockFile::open_or_create(directory, FILE)?,
        };
        let entered = claim(&file, &self.taken, record);
        if let Ok(Some(slot)) = entered {
            self.taken.insert(slot);
        }
        self.file = Some(file).filter(|_| !self.taken.is_empty());
        entered
    }

    fn leave(&mut self, slot: u64) {
        if let Some(file) = &self.file {
            let _ = set_lock(file, slot, libc::F_UNLCK);
        }
        self.taken.remove(&slot);
        if self.taken.is_empty() {
            self.file = None;
        }
    }
}

/// Takes a slot that nobody has: one of the first, or of some others. Others see the record when it is
/// complete: then the lock becomes a shared one.
fn claim(file: &LockFile, own: &BTreeSet<u64>, record: &Record<'_>) -> io::Result<Option<u64>> {
    // Looking at a slot that another user has takes time, and other users can take all.
    let start = (random() * SLOTS as f64) as u64;
    let others = (start..start + TRIES).map(|slot| slot % SLOTS);
    for slot in (0..TRIES).chain(others).filter(|slot| !own.contains(slot)) {
        if getrlimit(Resource::Fsize).current.is_some_and(|most| (slot + 1) * SLOT as u64 > most) {
            // A longer file would end the process by a signal.
            continue;
        }
        if !set_lock(file, slot, libc::F_WRLCK)? {
            continue;
        }
        let written = retry_on_intr(|| pwrite(file, &record.encode(), slot * SLOT as u64));
        let shown = written.map_err(io::Error::from).and_then(|_| set_lock(file, slot, libc::F_RDLCK));
        if let Err(error) = shown {
            let _ = set_lock(file, slot, libc::F_UNLCK);
            return Err(error);
        }
        return Ok(Some(slot));
    }
    Ok(None)
}

/// Who waits for a lock, first come first.
pub(super) fn waiters(client: &Client, name: &Name) -> io::Result<Vec<Holder>> {
    // Opened anew: a lock of the same open file would not show.
    let Some(file) = LockFile::open(&client.directory, FILE)? else { return Ok(Vec::new()) };
    let size = u64::try_from(fstat(&file)?.st_size).unwrap_or(0);
    let mut found = Vec::new();
    for slot in 0..size.div_ceil(SLOT as u64).min(SLOTS) {
        // The lock first. What is read after that is the record of who has it, or of who came next.
        if !is_listed(&file, slot)? {
            continue;
        }
        let mut page = Page::blank();
        page.len = retry_on_intr(|| pread(&file, &mut page.bytes[..SLOT], slot * SLOT as u64))?;
        if let Ok(Some(record)) = page.record()
            && record.name == name.as_str()
        {
            found.push(holder(name, &page, &record));
        }
    }
    found.sort_by_key(|waiter| waiter.since);
    Ok(found)
}

/// Whether a slot has a waiter whose record is complete.
fn is_listed(file: &LockFile, slot: u64) -> io::Result<bool> {
    let found = byte_lock(file, libc::F_OFD_GETLK, slot, libc::F_WRLCK)?;
    Ok(i32::from(found.l_type) == libc::F_RDLCK)
}

/// Takes, changes or gives back the lock on a slot; `false` if another process has it.
fn set_lock(file: &LockFile, slot: u64, kind: i32) -> io::Result<bool> {
    match byte_lock(file, libc::F_OFD_SETLK, slot, kind) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

fn byte_lock(file: &LockFile, command: i32, slot: u64, kind: i32) -> io::Result<libc::flock> {
    // SAFETY: all zeros is a valid value of this plain struct of numbers.
    #[allow(unsafe_code)]
    let mut byte = unsafe { std::mem::zeroed::<libc::flock>() };
    byte.l_type = kind as _;
    byte.l_whence = libc::SEEK_SET as _;
    byte.l_start = slot as _;
    byte.l_len = 1;
    // SAFETY: plain system call on an open file, with a struct that outlives it.
    #[allow(unsafe_code)]
    match unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, &mut byte) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(byte),
    }
}
