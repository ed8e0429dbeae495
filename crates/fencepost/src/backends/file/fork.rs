//! A forked child must not keep our locks. A flock lives as long as any copy of its open file does, and
//! `fork` copies them all. (`exec` does not: the files are close-on-exec.)
//!
//! All lock files are noted in a table by their numbers. The child's side of a fork puts `/dev/null` in the
//! place of each. That closes the child's copy, and its owner in the copied memory still has a valid number.

use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};

pub(super) use crate::runtime::fork::generation;

/// The largest number of open files that Linux allows a process unless told otherwise.
const MOST: usize = 1 << 20;

static FILES: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];
/// How much of the table was ever used.
static USED: AtomicUsize = AtomicUsize::new(0);
static NULL: AtomicI32 = AtomicI32::new(-1);
static STARTED: AtomicU32 = AtomicU32::new(0);
static FINISHED: AtomicU32 = AtomicU32::new(0);

/// Registers the handlers, once per process.
pub(crate) fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        use rustix::fs::{Mode, OFlags, open};
        let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(rustix::io::Errno::raw_os_error)?;
        NULL.store(null.into_raw_fd(), SeqCst);
        // SAFETY: the handlers are `extern "C"` functions that live as long as the process.
        #[allow(unsafe_code)]
        match unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) } {
            0 => Ok(()),
            error => Err(error),
        }
    });
    installed.map_err(io::Error::from_raw_os_error)
}

/// Opens a file and notes it. If a fork may have come in between, the child has a copy that it does not know
/// of. Then the file is opened anew.
pub(super) fn noted<F: AsRawFd>(mut open: impl FnMut() -> io::Result<F>) -> io::Result<F> {
    loop {
        let forks = FINISHED.load(SeqCst);
        if STARTED.load(SeqCst) != forks {
            std::thread::yield_now();
            continue;
        }
        let file = open()?;
        let number = file.as_raw_fd();
        let (word, bit) = entry(number)?;
        USED.fetch_max(word + 1, SeqCst);
        FILES[word].fetch_or(bit, SeqCst);
        if STARTED.load(SeqCst) == forks {
            return Ok(file);
        }
        forget(number);
    }
}

/// Takes a file out of the table; to be called before it is closed.
pub(super) fn forget(number: RawFd) {
    if let Ok((word, bit)) = entry(number) {
        FILES[word].fetch_and(!bit, SeqCst);
    }
}

/// Where a file is noted.
fn entry(number: RawFd) -> io::Result<(usize, u64)> {
    let number = usize::try_from(number).unwrap_or(MOST);
    if number >= MOST {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    Ok((number / 64, 1 << (number % 64)))
}

extern "C" fn before() {
    STARTED.fetch_add(1, SeqCst);
}

extern "C" fn in_parent() {
    FINISHED.fetch_add(1, SeqCst);
}

/// Only atomics and one system call: other threads of the parent may have held any lock, the allocator's
/// included.
extern "C" fn in_child() {
    FINISHED.store(STARTED.load(SeqCst), SeqCst);
    let null = NULL.load(SeqCst);
    for (word, files) in FILES.iter().enumerate().take(USED.load(SeqCst)) {
        let mut bits = files.load(SeqCst);
        while bits != 0 {
            let number = word * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            // SAFETY: plain system call. A number in the table is an open lock file of ours. With `/dev/null`
            // in its place the number stays valid for its owner.
            #[allow(unsafe_code)]
            unsafe {
                libc::dup3(null, number as RawFd, libc::O_CLOEXEC);
            }
        }
    }
}

/// Whether a descriptor is in the table.
#[cfg(test)]
fn is_noted(file: std::os::fd::BorrowedFd<'_>) -> bool {
    entry(file.as_raw_fd()).is_ok_and(|(word, bit)| FILES[word].load(SeqCst) & bit != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_file_is_noted_until_it_is_forgotten() {
        install().unwrap();
        let file = noted(|| std::fs::File::open("/dev/null")).unwrap();
        assert!(is_noted(file.as_fd()));
        forget(file.as_raw_fd());
        assert!(!is_noted(file.as_fd()));
    }
}
