//! One open lock file: its flock, the page in it, and its life in the directory. All system calls that touch
//! a lock file are here.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{
    AtFlags, FileType, FlockOperation, OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, fdatasync,
    flock, fstat, ftruncate, futimens, openat, renameat_with, statat, unlinkat,
};
use rustix::io::{Errno, pread, pwrite, retry_on_intr};

use super::directory::{Access, Directory};
use super::fork;
use super::record::{Page, REVOCATION, Record, Revocation};

/// How often a reader without the flock looks again at a page that another process may be writing.
const LOOKS: u32 = 200;
/// How a lock file is opened: never through a link, and without waiting for anything else of that name.
const FLAGS: OFlags =
    OFlags::RDWR.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW).union(OFlags::NOCTTY).union(OFlags::NONBLOCK);
/// How the names of files begin that have no lock's name yet.
pub(super) const UNFINISHED: &str = ".new-";

/// An open lock file. Dropping it unlocks and closes it.
#[derive(Debug)]
pub(crate) struct LockFile {
    directory: Arc<Directory>,
    name: String,
    /// Has no lock's name yet. Such a file is removed when it is dropped.
    unfinished: bool,
    file: OwnedFd,
    /// Its device and number, which no other file has while this one is open.
    inode: (u64, u64),
}

impl LockFile {
    /// Opens the file; `None` if there is none.
    pub(super) fn open(directory: &Arc<Directory>, name: &str) -> io::Result<Option<Self>> {
        // Without O_CREAT: in a directory with the sticky bit Linux refuses it on a file of another user.
        match Self::open_with(directory, name, FLAGS) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens the file, making it if need be.
    pub(crate) fn open_or_create(directory: &Arc<Directory>, name: &str) -> io::Result<Self> {
        loop {
            if let Some(file) = Self::open(directory, name)? {
                return Ok(file);
            }
            if directory.access == Access::Private {
                return Self::open_with(directory, name, FLAGS | OFlags::CREATE);
            }
            // Under another name first: nobody sees it with the permissions that the umask has cut.
            let mut file = Self::create(directory)?;
            match file.rename(name, RenameFlags::NOREPLACE) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                renamed => return renamed.map(|()| file),
            }
        }
    }

    /// Makes a file under a name that is no lock's.
    pub(super) fn create(directory: &Arc<Directory>) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("{UNFINISHED}{}-{number}", std::process::id());
            match Self::open_with(directory, &name, FLAGS | OFlags::CREATE | OFlags::EXCL) {
                Ok(mut file) => {
                    file.unfinished = true;
                    directory.open_to_others(&file.file)?;
                    return Ok(file);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The directory itself. Its flock is the operators' turn.
    pub(super) fn of_directory(directory: &Arc<Directory>) -> io::Result<Self> {
        Self::open_raw(directory, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC)
    }

    /// Opens a plain file. Others are refused: a pipe or a device may do anything when it is used.
    fn open_with(directory: &Arc<Directory>, name: &str, flags: OFlags) -> io::Result<Self> {
        let mut file = Self::open_raw(directory, name, flags)?;
        let stat = fstat(&file.file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain file"));
        }
        file.inode = (stat.st_dev, stat.st_ino);
        Ok(file)
    }

    fn open_raw(directory: &Arc<Directory>, name: &str, flags: OFlags) -> io::Result<Self> {
        let file = fork::noted(|| Ok(openat(&directory.file, name, flags, directory.mode)?))?;
        let (directory, name) = (directory.clone(), name.to_owned());
        Ok(Self { directory, name, unfinished: false, file, inode: (0, 0) })
    }

    /// Gives the file another name. Without `NOREPLACE` it takes the place of the file that has it now.
    pub(super) fn rename(&mut self, name: &str, flags: RenameFlags) -> io::Result<()> {
        let dir = &self.directory.file;
        renameat_with(dir, &self.name, dir, name, flags)?;
        self.unfinished = false;
        name.clone_into(&mut self.name);
        Ok(())
    }

    /// Takes the flock if nobody has one.
    pub(crate) fn try_lock(&self) -> io::Result<bool> {
        self.flock(FlockOperation::NonBlockingLockExclusive)
    }

    /// Waits for the flock.
    pub(super) fn lock(&self) -> io::Result<()> {
        self.flock(FlockOperation::LockExclusive).map(|_| ())
    }

    /// Whether somebody has the flock. Asks for a shared one for an instant. Probes do not see each other,
    /// and all that find the file taken ask the same question, so none takes a probe for a holder.
    pub(super) fn is_locked(&self) -> io::Result<bool> {
        let free = self.flock(FlockOperation::NonBlockingLockShared)?;
        if free {
            self.unlock();
        }
        Ok(!free)
    }

    fn flock(&self, operation: FlockOperation) -> io::Result<bool> {
        match retry_on_intr(|| flock(&self.file, operation)) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives the flock up, for every copy of this open file at once.
    pub(super) fn unlock(&self) {
        // Fails only for a descriptor that is none.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }

    /// Whether the directory still has this file under its name: files are collected and replaced. Its count
    /// of links does not tell: a backup may have linked it elsewhere.
    pub(crate) fn is_current(&self) -> io::Result<bool> {
        match statat(&self.directory.file, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok((stat.st_dev, stat.st_ino) == self.inode),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the page. Without the flock it looks again while the page may be half written.
    pub(super) fn read(&self) -> io::Result<Page> {
        let mut page = Page::blank();
        for _ in 0..LOOKS {
            page.len = retry_on_intr(|| pread(&self.file, &mut page.bytes[..], 0))?;
            if page.record().is_ok() && page.revocation().is_ok() {
                break;
            }
            std::thread::yield_now();
        }
        Ok(page)
    }

    /// Writes the record; the flock must be ours.
    pub(super) fn write(&self, record: &Record<'_>) -> io::Result<()> {
        self.write_at(&record.encode(), 0)
    }

    /// Writes the record, or puts back what was there before.
    pub(super) fn write_or_restore(&self, record: &Record<'_>, before: &Page) -> io::Result<()> {
        let written = self.write(record);
        if written.is_err() {
            // Needs no new space, so it gets through where the write did not.
            let restored = match before.len {
                0 => ftruncate(&self.file, 0).map_err(io::Error::from),
                len => self.write_at(&before.bytes[..len.min(REVOCATION)], 0),
            };
            if let Err(error) = restored {
                tracing::warn!(%error, "a lock record could not be restored after a failed write");
            }
        }
        written
    }

    /// Writes a revocation; no flock is needed. Holders hear of it when the file is touched or replaced.
    pub(super) fn revoke(&self, revocation: &Revocation<'_>) -> io::Result<()> {
        self.write_at(&revocation.encode(), REVOCATION as u64)
    }

    /// One write; a short one is an error.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        match retry_on_intr(|| pwrite(&self.file, bytes, at))? {
            len if len == bytes.len() => Ok(()),
            _ => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    /// Sets the time of modification to now. All that listen to the directory hear of it.
    pub(super) fn touch(&self) -> io::Result<()> {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        Ok(futimens(&self.file, &Timestamps { last_access: now, last_modification: now })?)
    }

    /// Puts the page on the disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(fdatasync(&self.file)?)
    }

    /// Puts the page on the disk, and the file's entry in the directory.
    pub(super) fn sync_with_entry(&self) -> io::Result<()> {
        self.sync()?;
        self.directory.sync()
    }
}

impl AsFd for LockFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        if self.unfinished {
            let _ = unlinkat(&self.directory.file, &self.name, AtFlags::empty());
        }
        // Before the close: a copy that a child has by accident then keeps nothing.
        self.unlock();
        fork::forget(self.file.as_raw_fd());
    }
}
