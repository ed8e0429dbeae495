//! The wrapper's end: starts the guardian, gives it orders, hears what becomes of the command.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group};
use tokio::io::unix::AsyncFd;

use super::process::{self, Duty};
use super::wire::{self, Answer, Order, Start};
use crate::signals::Inherited;

/// A guardian, from the wrapper's side. Dropping it ends the command, if one runs.
pub(crate) struct Leash {
    socket: OwnedFd,
    guardian: Pid,
}

/// What the guardian reports.
#[derive(Debug)]
pub(crate) enum News {
    Started(Pid),
    NotStarted(io::Error),
    /// The lease was about to end; the command was not started.
    TooLate,
    Stopped(i32),
    /// With its wait status; `ended` if the guardian made it end.
    Exited {
        status: i32,
        ended: bool,
    },
    /// The guardian was killed.
    Gone,
}

impl Leash {
    /// Forks the guardian. Must be called while this process has only one thread.
    pub(crate) fn fork(command: Vec<OsString>, grace: Duration, inherited: Inherited) -> io::Result<Self> {
        let (ours, theirs) = wire::pair()?;
        // SAFETY: no other thread exists, so the child may go on as an ordinary process.
        #[allow(unsafe_code)]
        let forked = unsafe { libc::fork() };
        match forked {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(ours);
                let served = process::serve(theirs, Duty { command, grace, inherited });
                if let Err(error) = &served {
                    let _ = writeln!(io::stderr(), "fencepost: the guardian failed: {error}");
                }
                std::process::exit(i32::from(served.is_err()))
            }
            pid => {
                let guardian = Pid::from_raw(pid).ok_or_else(|| io::Error::other("fork returned no pid"))?;
                Ok(Self { socket: ours, guardian })
            }
        }
    }

    /// Moves into the runtime.
    pub(crate) fn listen(self) -> io::Result<Listening> {
        let Self { socket, guardian } = self;
        // SAFETY: the descriptor is owned by the `AsyncFd` from here on; nothing replaces or closes it.
        #[allow(unsafe_code)]
        let socket = unsafe { AsyncFd::register(socket)? };
        Ok(Listening { socket, guardian })
    }
}

/// A guardian, in the runtime.
pub(crate) struct Listening {
    socket: AsyncFd<OwnedFd>,
    guardian: Pid,
}

impl Listening {
    /// Starts the command. The lifelines keep the locks held while the guardian lives, whatever becomes of
    /// us.
    /// Fails if it cannot be told. That a guardian is gone is in the news.
    pub(crate) fn go(&self, start: Start, lifelines: &[BorrowedFd<'_>]) -> io::Result<()> {
        match wire::send(self.socket.as_fd(), &Order::Go(start), lifelines) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            sent => sent,
        }
    }

    /// Says when the lease ends now, and how long before that the command shall be asked to end.
    pub(crate) fn lease(&self, until: Duration, margin: Duration) {
        self.order(&Order::Lease { until, margin });
    }

    /// Says that the lock is lost.
    pub(crate) fn lost(&self) {
        self.order(&Order::Lost);
        // A guardian that somebody stopped has to act now, not when we do its work.
        let _ = kill_process(self.guardian, Signal::CONT);
    }

    /// Passes a signal on to the command's group.
    pub(crate) fn signal(&self, signal: i32) {
        self.order(&Order::Signal(signal));
    }

    /// The next report. May be dropped at any time.
    pub(crate) async fn news(&self) -> News {
        loop {
            let Ok(mut ready) = self.socket.readable().await else { return News::Gone };
            let answer = match wire::receive::<Answer>(self.socket.as_fd()) {
                Ok(Some((answer, _))) => answer,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready.clear_ready();
                    continue;
                }
                Ok(None) | Err(_) => return News::Gone,
            };
            return match answer {
                Answer::Started { pid } => match Pid::from_raw(pid) {
                    Some(pid) => News::Started(pid),
                    None => News::Gone,
                },
                Answer::NotStarted { errno } => News::NotStarted(io::Error::from_raw_os_error(errno)),
                Answer::TooLate => News::TooLate,
                Answer::Stopped { signal } => News::Stopped(signal),
                Answer::Exited { status, ended } => News::Exited { status, ended },
            };
        }
    }

    /// Ends what the guardian did not, because it was killed or is stopped itself. Returns when the group is
    /// gone.
    pub(crate) async fn take_over(&self, group: Option<Pid>) {
        const LOOKS: usize = 500;
        let _ = kill_process(self.guardian, Signal::KILL);
        let Some(group) = group else { return };
        for _ in 0..LOOKS {
            if kill_process_group(group, Signal::KILL).is_err() {
                return;
            }
            // Nobody tells us when a process dies that is not our child.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Lets the guardian go. Its work is done, or it has nothing to do without us.
    pub(crate) fn dismiss(self) {
        let Self { socket, guardian } = self;
        drop(socket);
        // One that somebody stopped would not see that.
        let _ = kill_process(guardian, Signal::CONT);
        let _ = rustix::process::waitpid(Some(guardian), WaitOptions::empty());
    }

    /// A guardian that is gone hears nothing; that it is gone is in the news.
    fn order(&self, order: &Order) {
        let _ = wire::send(self.socket.as_fd(), order, &[]);
    }
}
