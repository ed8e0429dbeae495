//! What wakes a thread that waits: a bell that other threads ring, changes of files, and a timer that counts suspend.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::inotify::{self, WatchFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::fork;

/// Rung by other threads, or by a change of what it listens to.
#[derive(Clone, Debug)]
pub(super) struct Bell {
    rope: Arc<OwnedFd>,
    pub(super) changes: Arc<OwnedFd>,
    generation: u32,
}

impl Bell {
    fn new(path: &Path, events: WatchFlags) -> io::Result<Self> {
        let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        inotify::add_watch(&changes, path, events)?;
        let rope = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { rope: Arc::new(rope), changes: Arc::new(changes), generation: fork::generation() })
    }

    /// Listens to one lock file: rewritten, revoked, replaced, removed.
    pub(super) fn listening(file: &Path) -> io::Result<Self> {
        Self::new(
            file,
            WatchFlags::MODIFY | WatchFlags::ATTRIB | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF,
        )
    }

    /// Listens to a directory, for what nobody does on the way of an ordinary acquire or release: files touched,
    /// replaced, removed.
    pub(super) fn listening_to_directory(directory: &Path) -> io::Result<Self> {
        Self::new(
            directory,
            WatchFlags::ATTRIB | WatchFlags::MOVED_TO | WatchFlags::DELETE | WatchFlags::ONLYDIR,
        )
    }

    /// Wakes the thread. In a forked child the thread is the parent's, and none of its business.
    pub(super) fn ring(&self) {
        if self.generation == fork::generation() {
            // Fails only when the counter is full, and then the thread is awake.
            let _ = rustix::io::write(&*self.rope, &1u64.to_ne_bytes());
        }
    }

    /// Waits for a change; `false` if the bell was rung.
    pub(super) fn wait(&self) -> io::Result<bool> {
        let mut ready = [
            PollFd::from_borrowed_fd(self.rope.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.changes.as_fd(), PollFlags::IN),
        ];
        poll_through(&mut ready)?;
        Ok(ready[0].revents().is_empty())
    }
}

/// Waits until the bell rings, the file changes or `left` has passed. If the system has no timer for us, for a second
/// at most: the caller looks again.
pub(super) fn wait_for_change(bell: &Bell, left: Duration) {
    let timer = match timer(left) {
        Ok(timer) => timer,
        Err(error) => {
            tracing::debug!(%error, "no timer for the end of a lease");
            return std::thread::sleep(left.min(Duration::from_secs(1)));
        }
    };
    let _ = poll_through(&mut [
        PollFd::from_borrowed_fd(bell.rope.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(bell.changes.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(timer.as_fd(), PollFlags::IN),
    ]);
}

fn poll_through(ready: &mut [PollFd<'_>]) -> io::Result<()> {
    loop {
        match poll(ready, None) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn timer(left: Duration) -> io::Result<OwnedFd> {
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
    // Zero would disarm it.
    let left = left.max(Duration::from_nanos(1));
    let once = Itimerspec {
        it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
        it_value: Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        },
    };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &once)?;
    Ok(timer)
}
