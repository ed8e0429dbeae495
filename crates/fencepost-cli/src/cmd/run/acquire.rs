//! The locks of a command, for long enough to start it.

use std::time::Duration;

use fencepost::{Error, Guard, GuardSet, Locks, Name, Wait};
use tokio::time::{Instant, sleep};

use crate::args::Run;
use crate::exit::Failure;
use crate::output::Console;
use crate::signals::Incoming;
use crate::waiting;

/// Between two tries to make a short lease longer.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// For how long to wait for the lock, however often.
pub(super) struct Patience {
    started: Instant,
    /// `None` for one try alone.
    wait: Option<Wait>,
}

impl Patience {
    pub(super) fn new(args: &Run) -> Self {
        let wait = match args.lock.wait {
            wait @ (Wait::Forever | Wait::For(_)) if !args.lock.try_once => Some(wait),
            _ => None,
        };
        Self { started: Instant::now(), wait }
    }

    /// What is left of a wait that has an end.
    fn left(&self) -> Option<Duration> {
        match self.wait {
            Some(Wait::For(wait)) => Some(wait.saturating_sub(self.started.elapsed())),
            _ => None,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        // A try needs some time.
        self.wait.is_none() || self.left().is_some_and(|left| left < PAUSE)
    }
}

/// Acquires the locks for long enough to start a command. Nothing has been started while that goes on, so a
/// lock that is lost meanwhile is waited for again.
pub(super) async fn acquire(
    args: &Run,
    locks: &Locks,
    names: &[Name],
    margin: Duration,
    patience: &Patience,
    console: Console,
    signals: &Incoming,
) -> Result<GuardSet, Failure> {
    loop {
        let mut set = args.lock.all(locks, names);
        if let Some(left) = patience.left() {
            set = set.wait(left);
        }
        let guards = waiting::acquire(&set, names, locks, console, signals).await?;
        let covered = tokio::select! {
            biased;
            signal = waiting::ending(signals) => return Err(Failure::Interrupted(signal)),
            covered = cover(&guards, margin) => covered,
        };
        match covered {
            Ok(()) => return Ok(guards),
            Err(Error::Lost { .. }) if !patience.is_over() => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits until a lease lasts for longer than the margin in which the guardian would end the command. A lock
/// that came by a push has a short term at first.
async fn cover(guards: &GuardSet, margin: Duration) -> Result<(), Error> {
    let is_short = |guard: &Guard| guard.valid_for().is_some_and(|left| left <= margin + margin / 2);
    for _ in 0..3 {
        guards.check()?;
        let mut failed = false;
        for guard in guards.guards().iter().filter(|guard| is_short(guard)) {
            match guard.extend().await {
                Err(error) if error.is_transient() => failed = true,
                extended => drop(extended?),
            }
        }
        if !guards.guards().iter().any(is_short) {
            break;
        }
        if failed {
            sleep(PAUSE).await;
        }
    }
    // Whether that is enough is the guardian's to say.
    guards.check()
}
