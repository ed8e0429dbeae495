//! `run`: a command under a lock. This process holds the lock and forwards signals; its guardian, forked
//! before any thread starts, runs the command and ends it when it must not go on.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use fencepost::SupervisorExt as _;
use fencepost::{Error, Guard, GuardSet, Locks, Name, State, Wait, format_duration};
use rustix::process::Pid;
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use crate::args::{Global, Run};
use crate::exit::{self, Failure, Outcome, system};
use crate::guardian::{Leash, Listening, MOST_LOCKS, News, Start};
use crate::output::{Console, shown};
use crate::signals::{self, Caught, Incoming};
use crate::terminal::Terminal;
use crate::{store, waiting};

/// How much longer than the grace the guardian may take before we do its work.
const OVERDUE: Duration = Duration::from_secs(15);

/// Between two tries to make a short lease longer.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) fn run(mut args: Run, global: &Global, console: Console) -> Outcome {
    if args.max_hold.is_some_and(|hold| hold.is_zero()) {
        return Err(Failure::Usage("--max-hold must be longer than zero".to_owned()));
    }
    let url = store::url(global)?;
    let caught = Caught::start(true).map_err(system("catching signals"))?;
    let command = std::mem::take(&mut args.command);
    let program = command.first().cloned().unwrap_or_default();
    // No thread may exist before this line.
    let leash = Leash::fork(command, args.grace, caught.inherited.clone())
        .map_err(system("starting the guardian"))?;
    super::runtime()?.block_on(async {
        let signals = caught.listen().map_err(system("catching signals"))?;
        let guardian = leash.listen().map_err(system("listening to the guardian"))?;
        let locks = tokio::select! {
            locks = Locks::connect(&url) => locks?,
            signal = waiting::ending(&signals) => return Err(Failure::Interrupted(signal)),
        };
        let outcome = hold(&args, &locks, console, &signals, &guardian).await;
        guardian.dismiss();
        locks.close().await;
        outcome.map_err(|failure| match failure {
            Failure::Lock(error @ (Error::Busy { .. } | Error::Timeout { .. })) => {
                Failure::Busy(error, args.busy_code)
            }
            Failure::Nested { holder, .. } => Failure::Nested { holder, code: args.busy_code },
            Failure::CannotRun { error, .. } => Failure::CannotRun { command: program, error },
            other => other,
        })
    })
}

/// Acquires the lock, has the command run, and releases.
async fn hold(
    args: &Run,
    locks: &Locks,
    console: Console,
    signals: &Incoming,
    guardian: &Listening,
) -> Outcome {
    let names = names(args, locks)?;
    let ttl = args.lock.ttl.unwrap_or(locks.default_ttl());
    let margin = args.grace.min(ttl / 4);
    let patience = Patience::new(args);
    let mut tried = 0;
    loop {
        let guards = acquire(args, locks, &names, margin, &patience, console, signals).await?;
        let terminal = Terminal::open();
        let watch = Watch { args, name: &names[0], guards: &guards, guardian, signals, terminal, margin };
        let end = watch.run().await;
        if let (End::Ended | End::Unguarded, Some(terminal)) = (&end, &watch.terminal) {
            terminal.reset();
        }
        drop(watch);
        match end {
            End::TooLate { asked: Some(signal) } => return Err(Failure::Interrupted(signal)),
            // Nothing was started.
            End::TooLate { asked: None } if !patience.is_over() => {
                if tried == 1 {
                    let (name, ttl) = (shown(names[0].as_str()), format_duration(ttl));
                    console.note(&format!(
                        "lock `{name}` was granted too late to start the command, twice; trying again; \
                         its ttl of {ttl} may be too short for this machine or store"
                    ));
                }
                tokio::select! {
                    biased;
                    signal = waiting::ending(signals) => return Err(Failure::Interrupted(signal)),
                    () = give_back(guards, (PAUSE * 2u32.pow(tried)).min(ttl)) => {}
                }
                tried = (tried + 1).min(10);
            }
            end => return finish(guards, end, args.max_hold, console).await,
        }
    }
}

/// The names of the locks, first the one whose token the command gets by itself.
fn names(args: &Run, locks: &Locks) -> Result<Vec<Name>, Failure> {
    let mut names = vec![args.target.name(locks)?];
    for also in &args.also {
        let name = args.target.name_of(also, locks)?;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.len() > MOST_LOCKS {
        return Err(Failure::Usage(format!("a command has at most {MOST_LOCKS} locks")));
    }
    Ok(names)
}

/// Releases a lock on which nothing was started, and leaves others some time. If the release fails, the lock
/// is free with the end of its lease.
async fn give_back(guards: GuardSet, pause: Duration) {
    drop(guards.release().await);
    sleep(pause).await;
}

/// For how long to wait for the lock, however often.
struct Patience {
    started: Instant,
    /// `None` for one try alone.
    wait: Option<Wait>,
}

impl Patience {
    fn new(args: &Run) -> Self {
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

    fn is_over(&self) -> bool {
        // A try needs some time.
        self.wait.is_none() || self.left().is_some_and(|left| left < PAUSE)
    }
}

/// Acquires the locks for long enough to start a command. Nothing has been started while that goes on, so a
/// lock that is lost meanwhile is waited for again.
async fn acquire(
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

/// When the first lease ends, on `CLOCK_BOOTTIME`.
fn valid_until(guards: &GuardSet) -> Option<Duration> {
    guards.guards().iter().filter_map(Guard::valid_until_boottime).min()
}

/// How it ended for the command.
enum End {
    /// By itself.
    Exited(ExitStatus),
    /// By the guardian or by us, because the lock was lost or about to be.
    Ended,
    /// It was never started: the lease was about to end. By then, somebody may have asked us to end.
    TooLate {
        asked: Option<i32>,
    },
    NotStarted(io::Error),
    /// Somebody killed the guardian, so we killed the command.
    Unguarded,
}

/// A command at work under its locks.
struct Watch<'a> {
    args: &'a Run,
    /// Of the lock whose token the command gets by itself.
    name: &'a Name,
    guards: &'a GuardSet,
    guardian: &'a Listening,
    signals: &'a Incoming,
    terminal: Option<Terminal>,
    margin: Duration,
}

impl Watch<'_> {
    async fn run(&self) -> End {
        let foreground = self.terminal.as_ref().is_some_and(Terminal::hand_over_at_start);
        let mut told = valid_until(self.guards);
        let lease = told.map(|until| (until, self.margin));
        let (environment, max_hold) = (self.environment(), self.args.max_hold);
        let lifelines: Vec<_> = self.guards.guards().iter().filter_map(Guard::lifeline).collect();
        self.guardian.go(Start { environment, foreground, lease, max_hold }, &lifelines);
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

/// The lock that is worst off.
fn worst(guards: &GuardSet) -> Option<&Guard> {
    let severity = |guard: &&Guard| match guard.state() {
        State::Lost(_) => 0,
        State::AtRisk { .. } => 1,
        _ => 2,
    };
    guards.guards().iter().min_by_key(severity)
}

/// Releases the locks and says how it went.
async fn finish(guards: GuardSet, end: End, max_hold: Option<Duration>, console: Console) -> Outcome {
    let Some(guard) = worst(&guards) else { unreachable!("a lock for each name") };
    let name = guard.name().clone();
    let lock = format!("lock `{}`", shown(name.as_str()));
    let (cause, threat) = match (guard.state(), max_hold) {
        (State::Lost(why), _) => (why.as_str(), format!("{lock} was lost: {why}")),
        (State::AtRisk { why, .. }, _) => ("at_risk", format!("{lock} was about to be lost: {why}")),
        (_, Some(hold)) if matches!(end, End::Ended) => {
            ("max_hold", format!("{lock} was held for its --max-hold of {}", format_duration(hold)))
        }
        _ => ("at_risk", format!("the renewal of {lock} came too late to go on safely")),
    };
    let released = guards.release().await;
    let ended = |cause, message| Err(Failure::Ended { name, message, cause });
    match end {
        End::NotStarted(error) => Err(Failure::CannotRun { command: Default::default(), error }),
        End::TooLate { .. } => ended(cause, format!("{threat}; the command was not started")),
        End::Ended => ended(cause, format!("{threat}; the command was ended")),
        End::Unguarded => {
            ended("unguarded", format!("the guardian of {lock} was killed; so the command was ended"))
        }
        End::Exited(status) => match released {
            Ok(()) => Ok(code(status)),
            Err(Error::Lost { name: lost, why, .. }) => ended(
                why.as_str(),
                format!(
                    "lock `{}` was lost: {why}; the command had ended by then ({status}), maybe after the \
                     lock did",
                    shown(lost.as_str())
                ),
            ),
            Err(error) => {
                console.note(&format!("{error}; the command had ended while the lock was held"));
                Ok(code(status))
            }
        },
    }
}

fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, signal) => exit::by_signal(signal.unwrap_or_default()),
    }
}
