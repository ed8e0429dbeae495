//! The guardian's own process: one thread, three descriptors (the wrapper, its children, a timer), one loop.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

use super::net::Net;
use super::plan::{Plan, Step};
use super::wire::{self, Answer, Order, Start};
use crate::signals::{self, Children, Inherited};

/// What the guardian is told when it is forked.
pub(super) struct Duty {
    pub(super) command: Vec<OsString>,
    pub(super) grace: Duration,
    pub(super) inherited: Inherited,
}

/// Serves until the command has ended or is not wanted any more.
pub(super) fn serve(wrapper: OwnedFd, duty: Duty) -> io::Result<()> {
    // A group of its own: what is sent to the wrapper's group or to the command's must not end the guardian.
    rustix::process::setpgid(None, None)?;
    signals::ignore_all()?;
    // Told apart from the wrapper in a list of processes, and not hit by a `killall -9 fencepost`.
    let _ = rustix::thread::set_name(c"lock-guardian");
    // Orphans of the command's group become our children, so that we see when the last one is gone.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let plan = Plan::new(duty.grace);
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
    let children = Children::watch()?;
    Guardian {
        wrapper: Some(wrapper),
        children,
        timer,
        duty,
        plan,
        group: None,
        status: None,
        lifelines: Vec::new(),
        net: None,
    }
    .serve()
}

struct Guardian {
    /// `None` once the wrapper is gone.
    wrapper: Option<OwnedFd>,
    children: Children,
    timer: OwnedFd,
    duty: Duty,
    plan: Plan,
    /// The command's process group, which has the command's pid.
    group: Option<Pid>,
    /// The command's wait status, once it has ended.
    status: Option<i32>,
    /// Keep the locks held while they are open, where the store works that way.
    lifelines: Vec<OwnedFd>,
    /// Kills the group should we be killed.
    net: Option<Net>,
}

enum Next {
    Watch,
    Leave,
}

impl Guardian {
    fn serve(mut self) -> io::Result<()> {
        self.watch()?;
        // Only after a good end: whatever else ends us, the net is for.
        if let Some(net) = self.net {
            net.take_down();
        }
        Ok(())
    }

    fn watch(&mut self) -> io::Result<()> {
        loop {
            self.arm()?;
            let [wrapper, children] = self.wait()?;
            if wrapper && matches!(self.listen(), Next::Leave) {
                return Ok(());
            }
            if children && matches!(self.reap(), Next::Leave) {
                return Ok(());
            }
            if let Some(step) = self.plan.due(now())
                && matches!(self.step(step), Next::Leave)
            {
                return Ok(());
            }
        }
    }

    /// Waits for the wrapper, a child or the plan.
    fn wait(&self) -> io::Result<[bool; 2]> {
        let mut sources =
            vec![PollFd::new(&self.children, PollFlags::IN), PollFd::new(&self.timer, PollFlags::IN)];
        sources.extend(self.wrapper.as_ref().map(|wrapper| PollFd::new(wrapper, PollFlags::IN)));
        match poll(&mut sources, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = |index: usize| sources.get(index).is_some_and(|source| !source.revents().is_empty());
        let ready = [ready(2), ready(0)];
        let _ = rustix::io::read(&self.timer, &mut [0u8; 8]);
        Ok(ready)
    }

    /// Takes one order; the next one makes `poll` return again.
    fn listen(&mut self) -> Next {
        let Some(wrapper) = &self.wrapper else { return Next::Watch };
        // A wrapper that cannot be understood is as good as none.
        let Ok(Some((order, descriptors))) = wire::receive::<Order>(wrapper.as_fd()) else {
            self.wrapper = None;
            return self.end();
        };
        match order {
            Order::Go(start) => {
                self.plan = Plan::new(self.duty.grace);
                if let Some((until, margin)) = start.lease {
                    self.plan.lease(until, margin);
                }
                if let Some(max_hold) = start.max_hold {
                    self.plan.end_at(now().saturating_add(max_hold));
                }
                self.lifelines = descriptors;
                return self.start(&start);
            }
            // About a lock on which nothing was started.
            Order::Lease { .. } | Order::Lost if self.group.is_none() => {}
            Order::Lease { until, margin } => self.plan.lease(until, margin),
            Order::Lost => return self.end(),
            Order::Signal(signal) => {
                if let Some(signal) = Signal::from_named_raw(signal) {
                    self.signal(signal);
                }
            }
        }
        Next::Watch
    }

    fn start(&mut self, start: &Start) -> Next {
        if self.plan.due(now()).is_some() {
            // The wrapper may take the lock once more.
            (self.plan, self.lifelines) = (Plan::new(self.duty.grace), Vec::new());
            self.say(&Answer::TooLate);
            return Next::Watch;
        }
        // Without one, if the system has no more processes for us: it is needed only if two others are
        // killed.
        self.net = Net::hang(self.wrapper.as_ref()).ok();
        match self.spawn(start) {
            Ok(pid) => {
                self.group = Some(pid);
                self.say(&Answer::Started { pid: pid.as_raw_nonzero().get() });
                Next::Watch
            }
            Err(error) => {
                if start.foreground {
                    take_terminal_back();
                }
                self.say(&Answer::NotStarted { errno: error.raw_os_error().unwrap_or(libc::ENOEXEC) });
                Next::Leave
            }
        }
    }

    fn spawn(&self, start: &Start) -> io::Result<Pid> {
        let Some((program, arguments)) = self.duty.command.split_first() else {
            return Err(Errno::NOENT.into());
        };
        let mut command = Command::new(program);
        command.args(arguments).envs(start.environment.iter().map(|(key, value)| (key, value)));
        let (guardian, foreground) = (rustix::process::getpid(), start.foreground);
        let inherited = self.duty.inherited.clone();
        let net = self.net.as_ref().map(|net| net.line().as_raw_fd());
        // SAFETY: between fork and exec this makes system calls only; it neither allocates nor locks.
        #[allow(unsafe_code)]
        unsafe {
            command.pre_exec(move || {
                rustix::process::setpgid(None, None)?;
                if let Some(net) = net {
                    // Said by the command itself: there is no moment when it runs and the net does not know
                    // of it.
                    let group = rustix::process::getpid().as_raw_nonzero().get().to_ne_bytes();
                    let _ = rustix::io::write(BorrowedFd::borrow_raw(net), &group);
                }
                if foreground {
                    // TTOU is still ignored here; that stdin is no terminal any more is not the command's
                    // fault.
                    let _ = rustix::termios::tcsetpgrp(rustix::stdio::stdin(), rustix::process::getpid());
                }
                // Should the guardian be killed: at once, but it reaches none of the command's children.
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                if rustix::process::getppid() != Some(guardian) {
                    return Err(Errno::SRCH.into());
                }
                inherited.restore()
            });
        }
        let pid = command.spawn()?.id();
        i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| Errno::SRCH.into())
    }

    /// Collects the dead.
    fn reap(&mut self) -> Next {
        self.children.clear();
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED)
        {
            if Some(pid) != self.group {
                continue;
            }
            match status.stopping_signal() {
                Some(signal) => self.say(&Answer::Stopped { signal }),
                None => self.status = Some(status.as_raw()),
            }
        }
        let Some(status) = self.status else { return Next::Watch };
        let ended = self.plan.is_ending();
        if ended && !self.is_gone() {
            return Next::Watch;
        }
        self.say(&Answer::Exited { status, ended });
        Next::Leave
    }

    /// Begins to end the command.
    fn end(&mut self) -> Next {
        if self.group.is_none() {
            return Next::Leave;
        }
        match self.plan.end(now()) {
            Some(step) => self.step(step),
            None => Next::Watch,
        }
    }

    fn step(&mut self, step: Step) -> Next {
        match step {
            Step::Terminate => {
                self.signal(Signal::TERM);
                // A stopped process gets its TERM only when it goes on.
                self.signal(Signal::CONT);
            }
            Step::Kill => self.signal(Signal::KILL),
            Step::GiveUp => {
                self.say(&Answer::Exited { status: self.status.unwrap_or(libc::SIGKILL), ended: true });
                return Next::Leave;
            }
        }
        // The group may have been empty already.
        self.reap()
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, signal);
        }
    }

    fn is_gone(&self) -> bool {
        self.group.is_none_or(|group| rustix::process::test_kill_process_group(group) == Err(Errno::SRCH))
    }

    /// Tells the wrapper; if it is gone, the end of the connection says so at the next look.
    fn say(&self, answer: &Answer) {
        if let Some(wrapper) = &self.wrapper {
            let _ = wire::send(wrapper.as_fd(), answer, &[]);
        }
    }

    fn arm(&self) -> io::Result<()> {
        let at = self.plan.wake_at().unwrap_or(Duration::ZERO);
        // A zero would disarm the timer, which is right only when there is nothing to wait for.
        let at = if self.plan.wake_at().is_some() { at.max(Duration::from_nanos(1)) } else { at };
        let value = Timespec {
            tv_sec: i64::try_from(at.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: at.subsec_nanos().into(),
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)?;
        Ok(())
    }
}

/// Makes the wrapper's group the foreground one again: what could not be executed had made itself that.
fn take_terminal_back() {
    if let Some(wrapper) = rustix::process::getppid()
        && let Ok(group) = rustix::process::getpgid(Some(wrapper))
    {
        let _ = rustix::termios::tcsetpgrp(rustix::stdio::stdin(), group);
    }
}

fn now() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}
