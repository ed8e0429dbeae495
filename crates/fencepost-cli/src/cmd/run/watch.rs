//! A command at work: what its guardian says, what its locks say, and which signals come.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use fencepost::{Guard, GuardSet, Name, SupervisorExt as _};
use rustix::process::Pid;
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::args::Run;
use crate::guardian::{Listening, News, Start};
use crate::signals::{self, Incoming};
use crate::terminal::Terminal;
use crate::waiting;

/// How much longer than the grace the guardian may take before we do its work.
const OVERDUE: Duration = Duration::from_secs(15);

/// When the first lease ends, on `CLOCK_BOOTTIME`.
fn valid_until(guards: &GuardSet) -> Option<Duration> {
    guards.guards().iter().filter_map(Guard::valid_until_boottime).min()
}

/// How it ended for the command.
pub(super) enum End {
    /// By itself.
    Exited(ExitStatus),
    /// By the guardian or by us, because the lock was lost or about to be.
    Ended,
    /// It was never started: the lease was about to end. By then, somebody may have asked us to end.
    TooLate {
        asked: Option<i32>,
    },
    NotStarted(io::Error),
    /// The guardian could not be told to start it.
    NotTold(io::Error),
    /// Somebody killed the guardian, so we killed the command.
    Unguarded,
}

/// A command at work under its locks.
pub(super) struct Watch<'a> {
    pub(super) args: &'a Run,
    /// Of the lock whose token the command gets by itself.
    pub(super) name: &'a Name,
    pub(super) guards: &'a GuardSet,
    pub(super) guardian: &'a Listening,
    pub(super) signals: &'a Incoming,
    pub(super) terminal: Option<Terminal>,
    pub(super) margin: Duration,
}

impl Watch<'_> {
    pub(super) async fn run(&self) -> End {
        let foreground = self.terminal.as_ref().is_some_and(Terminal::hand_over_at_start);
        let mut told = valid_until(self.guards);
        let lease = told.map(|until| (until, self.margin));
        let (environment, max_hold) = (self.environment(), self.args.max_hold);
        let lifelines: Vec<_> = self.guards.guards().iter().filter_map(Guard::lifeline).collect();
        let start = Start { environment, foreground, lease, max_hold };
        if let Err(error) = self.guardian.go(start, &lifelines) {
            return End::NotTold(error);
        }
        // Renewals come every third of the ttl; looking four times as often keeps the guardian well ahead.
        let left = self.guards.valid_for().unwrap_or(Duration::MAX);
        let mut look = interval((left / 12).clamp(Duration::from_millis(5), Duration::from_secs(5)));
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut group, mut asked) = (None, None);
        let mut lost = false;
        // When we do the guardian's work.
        let late = |after: Duration| {
            let grace = self.args.grace.saturating_add(OVERDUE);
            Instant::now().checked_add(after.saturating_add(grace))
        };
        let mut overdue = self.args.max_hold.and_then(late);
        loop {
            tokio::select! {
                biased;
                news = self.guardian.news() => match news {
                    News::Started(pid) => {
                        group = Some(pid);
                        if let Some(terminal) = self.terminal.as_ref().filter(|_| foreground) {
                            terminal.was_given_to(pid);
                        }
                    }
                    News::Stopped(signal) => self.stopped(signal, group),
                    News::Exited { ended: true, .. } => return End::Ended,
                    News::Exited { status, .. } => return End::Exited(ExitStatus::from_raw(status)),
                    News::NotStarted(error) => return End::NotStarted(error),
                    News::TooLate => return End::TooLate { asked },
                    News::Gone => {
                        self.guardian.take_over(group).await;
                        return End::Unguarded;
                    }
                },
                _ = self.guards.lost(), if !lost => {
                    self.guardian.lost();
                    lost = true;
                    overdue = overdue.into_iter().chain(late(Duration::ZERO)).min();
                }
                signal = self.signals.next() => {
                    if group.is_none() && !matches!(signal, libc::SIGCONT | libc::SIGTSTP) {
                        asked = asked.or(Some(signal));
                    }
                    // Continued: the command goes on as well, but not without the lock.
                    if signal != libc::SIGCONT || !self.guards.state().is_lost() {
                        self.guardian.signal(signal);
                    }
                }
                _ = look.tick() => told = self.tell_lease(told),
                () = sleep_until(overdue.unwrap_or_else(Instant::now)), if overdue.is_some() => {
                    self.guardian.take_over(group).await;
                    return End::Ended;
                }
            }
        }
    }

    /// What the command sees.
    fn environment(&self) -> Vec<(String, String)> {
        let guards = self.guards.guards();
        let token = |guard: &Guard| (guard.name().to_string(), guard.token().get());
        let tokens = json!(guards.iter().map(token).collect::<BTreeMap<_, _>>());
        let mut environment = vec![
            ("FENCEPOST_TOKENS".to_owned(), tokens.to_string()),
            (waiting::OUTER.to_owned(), waiting::outer_and(guards.iter().map(Guard::owner))),
        ];
        if let Some(first) = guards.iter().find(|guard| guard.name() == self.name) {
            environment.push(("FENCEPOST_NAME".to_owned(), first.name().to_string()));
            environment.push(("FENCEPOST_TOKEN".to_owned(), first.token().to_string()));
            environment.push(("FENCEPOST_OWNER".to_owned(), first.owner().to_string()));
        }
        environment
    }

    /// Tells the guardian when the lease ends, if it does not know; returns what it knows now.
    fn tell_lease(&self, told: Option<Duration>) -> Option<Duration> {
        let until = valid_until(self.guards);
        if let Some(until) = until.filter(|_| until != told) {
            self.guardian.lease(until, self.margin);
        }
        until
    }

    /// The command was stopped. If its terminal did that, we stop as well, so that the shell sees a stopped
    /// job; when it has continued us, the command goes on only if the lock is still ours.
    fn stopped(&self, signal: i32, group: Option<Pid>) {
        let (Some(terminal), Some(group)) = (&self.terminal, group) else { return };
        match signal {
            libc::SIGTTIN | libc::SIGTTOU if terminal.is_ours() => {}
            libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU => {
                terminal.take_back();
                // Our whole group: the shell waits for all of a pipeline or script to stop.
                if signals::stop(rustix::process::kill_current_process_group).is_err() {
                    return;
                }
            }
            // Somebody stopped the command with STOP, and will continue it.
            _ => return,
        }
        if self.guards.state().is_lost() {
            // The loss is told at the next turn of the loop; the command must not run before.
            return;
        }
        self.tell_lease(None);
        if terminal.is_ours() {
            terminal.give(group);
        }
        self.guardian.signal(libc::SIGCONT);
    }
}
