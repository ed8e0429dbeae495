//! The controlling terminal and whose turn it is: ours, or the command's group's.

use std::cell::Cell;
use std::io::IsTerminal;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, getpgrp};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// The controlling terminal.
pub(crate) struct Terminal {
    tty: OwnedFd,
    /// How it was set before the command.
    modes: Option<Termios>,
    /// The group that we made the foreground one.
    given: Cell<Option<Pid>>,
}

impl Terminal {
    /// The controlling terminal, if there is one.
    pub(crate) fn open() -> Option<Self> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let tty = rustix::fs::open("/dev/tty", flags, Mode::empty()).ok()?;
        let modes = tcgetattr(&tty).ok();
        Some(Self { tty, modes, given: Cell::new(None) })
    }

    /// Whether our own group is the foreground one.
    pub(crate) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|group| group == getpgrp())
    }

    /// Whether the command shall have the terminal from the start: we have it, and no neighbour in a pipeline
    /// may want it. A command that needs it all the same is given it when it asks, by being stopped for it.
    pub(crate) fn hand_over_at_start(&self) -> bool {
        std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && self.is_ours()
    }

    /// Notes that the command's group has made itself the foreground group.
    pub(crate) fn was_given_to(&self, group: Pid) {
        self.given.set(Some(group));
    }

    /// Makes the command's group the foreground group.
    pub(crate) fn give(&self, group: Pid) {
        if tcsetpgrp(&self.tty, group).is_ok() {
            self.given.set(Some(group));
        }
    }

    /// Undoes the modes of a command that was killed and could not do so itself; an editor leaves it without
    /// echo.
    pub(crate) fn reset(&self) {
        self.take_back();
        if let Some(modes) = self.modes.as_ref().filter(|_| self.is_ours()) {
            let _ = tcsetattr(&self.tty, OptionalActions::Now, modes);
        }
    }

    /// Takes the terminal back, unless somebody else has it by now.
    pub(crate) fn take_back(&self) {
        let Some(group) = self.given.take() else { return };
        if tcgetpgrp(&self.tty).is_ok_and(|current| current != group) {
            return;
        }
        let _ = tcsetpgrp(&self.tty, getpgrp());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.take_back();
    }
}
