//! One open lock file: flock, the page in it, and its life in the directory. Every system call of the store that
//! touches a lock file is here.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, fdatasync,
    flock, fstat, ftruncate, futimens, openat, renameat, renameat_with, statat, unlinkat,
};
use rustix::io::{Errno, pread, pwrite};

use super::fork;
use super::place::{Access, Place};
use super::record::{Page, REVOCATION, Record, Revocation};

/// How often a reader without the flock looks again at a page that a writer may be in the middle of.
const LOOKS: u32 = 200;
/// How a lock file is opened: never through a link, and without waiting for whatever else may have its name.
const FLAGS: OFlags =
    OFlags::RDWR.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW).union(OFlags::NOCTTY).union(OFlags::NONBLOCK);
/// What files are called that have no lock's name yet.
pub(super) const UNFINISHED: &str = ".new-";

/// An open lock file. Dropping it unlocks and closes.
#[derive(Debug)]
pub(crate) struct LockFile {
    file: OwnedFd,
    /// Its device and number, which no other file has while this one is open.
    inode: (u64, u64),
    locked: AtomicBool,
}

impl LockFile {
    /// Opens the file; `None` if there is none.
    pub(super) fn open(place: &Place, file_name: &str) -> io::Result<Option<Self>> {
        // Without O_CREAT: in a directory with the sticky bit Linux refuses O_CREAT on a file of another user.
        match Self::noted(|| openat(&place.dir, file_name, FLAGS, Mode::empty())) {
            Ok(file) => file.plain().map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens the file, making it if need be.
    pub(crate) fn open_or_create(place: &Place, file_name: &str) -> io::Result<Self> {
        loop {
            if let Some(file) = Self::open(place, file_name)? {
                return Ok(file);
            }
            if place.access == Access::Private {
                let flags = FLAGS | OFlags::CREATE;
                return Self::noted(|| openat(&place.dir, file_name, flags, place.mode))?.plain();
            }
            // Under another name first: nobody sees it with the permissions that the umask has cut.
            let (name, file) = Self::create(place)?;
            match renameat_with(&place.dir, &name, &place.dir, file_name, RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(file),
                Err(error) => {
                    let _ = unlinkat(&place.dir, &name, AtFlags::empty());
                    if error != Errno::EXIST {
                        return Err(error.into());
                    }
                }
            }
        }
    }

    /// A new file under a name that is no lock's.
    fn create(place: &Place) -> io::Result<(String, Self)> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let flags = FLAGS | OFlags::CREATE | OFlags::EXCL;
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("{UNFINISHED}{}-{number}", std::process::id());
            let file = match Self::noted(|| openat(&place.dir, &name, flags, place.mode)) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            };
            return Ok((name, place.open_to_others(&file.file).and_then(|()| file.plain())?));
        }
    }

    /// The directory itself, whose flock is the operators' turn.
    pub(super) fn directory(place: &Place) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self::noted(|| openat(&place.dir, ".", flags, Mode::empty()))
    }

    fn noted(mut open: impl FnMut() -> rustix::io::Result<OwnedFd>) -> io::Result<Self> {
        let file = fork::noted(|| open().map_err(io::Error::from))?;
        Ok(Self { file, inode: (0, 0), locked: AtomicBool::new(false) })
    }

    /// Refuses what is no plain file: a pipe or a device may do anything when it is used.
    fn plain(mut self) -> io::Result<Self> {
        let stat = fstat(&self.file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain file"));
        }
        self.inode = (stat.st_dev, stat.st_ino);
        Ok(self)
    }

    /// Takes the flock if nobody has one.
    pub(crate) fn try_lock(&self) -> io::Result<bool> {
        self.flock(FlockOperation::NonBlockingLockExclusive)
    }

    /// Waits for the flock.
    pub(super) fn lock(&self) -> io::Result<()> {
        self.flock(FlockOperation::LockExclusive).map(|_| ())
    }

    /// Whether somebody has the flock. Asks for a shared one for an instant: probes do not see each other, and
    /// whoever finds the file taken asks the same question, so none takes a probe for a holder.
    pub(super) fn is_locked(&self) -> io::Result<bool> {
        let free = self.flock(FlockOperation::NonBlockingLockShared)?;
        self.unlock();
        Ok(!free)
    }

    fn flock(&self, operation: FlockOperation) -> io::Result<bool> {
        loop {
            match flock(&self.file, operation) {
                Ok(()) => {
                    self.locked.store(true, Ordering::Relaxed);
                    return Ok(true);
                }
                Err(Errno::WOULDBLOCK) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Gives the flock up, for every copy of this open file at once.
    pub(super) fn unlock(&self) {
        if self.locked.swap(false, Ordering::Relaxed) {
            // Fails only for a descriptor that is none.
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }

    /// Whether this is still the file that the directory has under its name: files are collected and replaced. Its count of
    /// links does not tell: a backup may have linked it elsewhere.
    pub(crate) fn is_current(&self, place: &Place, file_name: &str) -> io::Result<bool> {
        match statat(&place.dir, file_name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok((stat.st_dev, stat.st_ino) == self.inode),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the page. Whole only under the flock.
    pub(super) fn read(&self, page: &mut Page) -> io::Result<()> {
        loop {
            match pread(&self.file, &mut page.bytes[..], 0) {
                Ok(len) => {
                    page.len = len;
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads the page without the flock: looks again while it may be half written.
    pub(super) fn peek(&self) -> io::Result<Page> {
        let mut page = Page::blank();
        self.read(&mut page)?;
        for _ in 0..LOOKS {
            if page.record().is_ok() && page.revocation().is_ok() {
                break;
            }
            std::thread::yield_now();
            self.read(&mut page)?;
        }
        Ok(page)
    }

    /// Writes the record; the flock must be ours.
    pub(super) fn write(&self, record: &Record<'_>) -> io::Result<()> {
        let mut slot = [0; REVOCATION];
        let len = record.encode(&mut slot);
        write_at(self.file.as_fd(), &slot[..len], 0)
    }

    /// Writes the record, or puts back what was there before.
    pub(super) fn write_or_restore(&self, record: &Record<'_>, before: &Page) -> io::Result<()> {
        let written = self.write(record);
        if written.is_err() {
            // Needs no new space, so it gets through where the write did not.
            let restored = match before.len {
                0 => ftruncate(&self.file, 0).map_err(io::Error::from),
                len => write_at(self.file.as_fd(), &before.bytes[..len.min(REVOCATION)], 0),
            };
            if let Err(error) = restored {
                tracing::warn!(%error, "a lock record could not be restored after a failed write");
            }
        }
        written
    }

    /// Writes a revocation; no flock needed. Holders hear of it when the file is touched or replaced.
    pub(super) fn revoke(&self, revocation: &Revocation<'_>) -> io::Result<()> {
        let mut slot = [0; REVOCATION];
        let len = revocation.encode(&mut slot);
        write_at(self.file.as_fd(), &slot[..len], REVOCATION as u64)
    }

    /// Sets the time of modification to now.
    pub(super) fn touch(&self) -> io::Result<()> {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        Ok(futimens(&self.file, &Timestamps { last_access: now, last_modification: now })?)
    }

    /// Puts the page on the disk; for a file that was just made, its entry in the directory too.
    pub(super) fn sync(&self, place: &Place, new: bool) -> io::Result<()> {
        fdatasync(&self.file)?;
        if new { place.sync() } else { Ok(()) }
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A new file on its way into the place of another. Its flock is ours: nobody has it before its record is final.
pub(super) struct Spare<'a> {
    place: &'a Place,
    durable: bool,
    name: String,
    file: LockFile,
    put: bool,
}

impl<'a> Spare<'a> {
    pub(super) fn create(place: &'a Place, durable: bool) -> io::Result<Self> {
        let (name, file) = LockFile::create(place)?;
        let spare = Self { place, durable, name, file, put: false };
        if spare.file.try_lock()? { Ok(spare) } else { Err(io::ErrorKind::ResourceBusy.into()) }
    }

    pub(super) fn write(&self, record: &Record<'_>) -> io::Result<()> {
        self.file.write(record)?;
        if self.durable { self.file.sync(self.place, false) } else { Ok(()) }
    }

    /// Takes the place of the file that has the name now, which nobody is granted from here on.
    pub(super) fn put(&mut self, file_name: &str) -> io::Result<()> {
        renameat(&self.place.dir, &self.name, &self.place.dir, file_name)?;
        self.put = true;
        if self.durable { self.place.sync() } else { Ok(()) }
    }
}

impl Drop for Spare<'_> {
    fn drop(&mut self) {
        if !self.put {
            let _ = unlinkat(&self.place.dir, &self.name, AtFlags::empty());
        }
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // Before the close: a copy that a child has by accident then keeps nothing.
        self.unlock();
        fork::forget(self.file.as_raw_fd());
    }
}

/// One write; a short one is an error.
fn write_at(file: BorrowedFd<'_>, bytes: &[u8], at: u64) -> io::Result<()> {
    loop {
        match pwrite(file, bytes, at) {
            Ok(len) if len == bytes.len() => return Ok(()),
            Ok(_) => return Err(io::ErrorKind::StorageFull.into()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
