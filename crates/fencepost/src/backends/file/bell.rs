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
use crate::text::printable;

/// How often a thread looks by itself that could not be told of changes.
const UNTOLD: Duration = Duration::from_secs(1);

/// Rung by other threads, or by a change of what it listens to.
#[derive(Clone, Debug)]
pub(super) struct Bell {
    rope: Arc<OwnedFd>,
    /// `None` if the system has no more listeners for us.
    changes: Option<Arc<OwnedFd>>,
    generation: u32,
}

impl Bell {
    fn new(changes: Option<OwnedFd>) -> io::Result<Self> {
        let rope = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Self { rope, changes: changes.map(Arc::new), generation: fork::generation() })
    }

    /// Listens to one lock file: rewritten, revoked, replaced, removed. The number of listeners per user is limited;
    /// past it, whoever waits looks by itself now and then.
    pub(super) fn listening(file: &Path) -> io::Result<Self> {
        let events =
            WatchFlags::MODIFY | WatchFlags::ATTRIB | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        let changes = listener(file, events).inspect_err(|error| {
            let file = file.display().to_string();
            let every = crate::format_duration(UNTOLD);
            tracing::debug!(file = %printable(&file), %error, "no listener; looking every {every} instead");
        });
        Self::new(changes.ok())
    }

    /// Listens to a directory, for what nobody does on the way of an ordinary acquire or release: files touched,
    /// replaced, removed.
    pub(super) fn listening_to_directory(directory: &Path) -> io::Result<Self> {
        let events = WatchFlags::ATTRIB | WatchFlags::MOVED_TO | WatchFlags::DELETE | WatchFlags::ONLYDIR;
        Self::new(Some(listener(directory, events)?))
    }

    /// What it listens to.
    pub(super) fn changes(&self) -> Option<&OwnedFd> {
        self.changes.as_deref()
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
        let mut ready = self.poll_fds();
        poll_through(&mut ready)?;
        Ok(ready[0].revents().is_empty())
    }

    /// Waits until the bell rings, what it listens to changes, or `left` has passed. May return early: the caller
    /// looks again.
    pub(super) fn wait_for(&self, left: Duration) {
        let left = if self.changes.is_some() { left } else { left.min(UNTOLD) };
        let timer = match timer(left) {
            Ok(timer) => timer,
            Err(error) => {
                tracing::debug!(%error, "no timer for the end of a lease");
                return std::thread::sleep(left.min(UNTOLD));
            }
        };
        let mut ready = self.poll_fds();
        ready.push(PollFd::from_borrowed_fd(timer.as_fd(), PollFlags::IN));
        if let Err(error) = poll_through(&mut ready) {
            tracing::debug!(%error, "waiting for the end of a lease");
            std::thread::sleep(left.min(UNTOLD));
        }
    }

    /// The rope first.
    fn poll_fds(&self) -> Vec<PollFd<'_>> {
        let files = [Some(&self.rope), self.changes.as_ref()].into_iter().flatten();
        files.map(|file| PollFd::from_borrowed_fd(file.as_fd(), PollFlags::IN)).collect()
    }
}

fn listener(path: &Path, events: WatchFlags) -> io::Result<OwnedFd> {
    let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    inotify::add_watch(&changes, path, events)?;
    Ok(changes)
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
