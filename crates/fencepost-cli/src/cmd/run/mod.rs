//! `run`: a command under a lock. This process holds the lock and forwards signals; its guardian, forked
//! before any thread starts, runs the command and ends it when it must not go on.

mod acquire;
mod watch;

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use fencepost::{Error, Guard, GuardSet, Locks, Name, State, format_duration};
use tokio::time::{Instant, sleep};

use self::acquire::{PAUSE, Patience, acquire};
use self::watch::{End, Watch};
use crate::args::{Global, Run};
use crate::exit::{self, Failure, Outcome, system};
use crate::guardian::{Leash, Listening, MOST_LOCKS};
use crate::output::{Console, shown};
use crate::signals::{Caught, Incoming};
use crate::terminal::Terminal;
use crate::{store, waiting};

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
        let started = Instant::now();
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
            end => {
                let outstayed = args.max_hold.filter(|hold| started.elapsed() >= *hold);
                return finish(guards, end, outstayed, console).await;
            }
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
async fn finish(guards: GuardSet, end: End, outstayed: Option<Duration>, console: Console) -> Outcome {
    let Some(guard) = worst(&guards) else { unreachable!("a lock for each name") };
    let name = guard.name().clone();
    let lock = format!("lock `{}`", shown(name.as_str()));
    let (cause, threat) = match (guard.state(), outstayed) {
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
        End::NotTold(error) => Err(Failure::System { doing: "telling the guardian", error }),
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
