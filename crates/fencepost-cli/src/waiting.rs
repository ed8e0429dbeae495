//! Waiting for a lock as people and signals want it: says who holds it, and leaves nothing behind when told
//! to end.

use std::time::Duration;

use fencepost::{GuardSet, Holder, LockSet, Locks, Name, Owner, format_duration};
use tokio::time::{Instant, sleep, sleep_until};

use crate::exit::{self, Failure};
use crate::output::{Console, LiveLine, shown};
use crate::signals::{self, Incoming};

/// When a wait is worth a line in a log, in seconds; after that, every so often.
const WORTH_A_LINE: [u64; 4] = [2, 10, 60, 300];
const EVERY: Duration = Duration::from_secs(15 * 60);

/// Whose commands this process runs under: the owners of their locks, with spaces.
pub(crate) const OUTER: &str = "FENCEPOST_OUTER";

/// More would be no nesting but an accident.
const MOST_OUTER: usize = 64;

fn outer() -> Vec<Owner> {
    owners(&std::env::var(OUTER).unwrap_or_default())
}

fn owners(text: &str) -> Vec<Owner> {
    text.split(' ').filter_map(|word| word.parse().ok()).take(MOST_OUTER).collect()
}

/// What [`OUTER`] is for a command that runs under these, too.
pub(crate) fn outer_and(owners: impl Iterator<Item = Owner>) -> String {
    let all: Vec<_> = outer().into_iter().chain(owners).map(|owner| owner.to_string()).collect();
    all.join(" ")
}

/// Refuses to wait for a lock that is held for us. What cannot be seen is waited for.
async fn refuse_nested(names: &[Name], locks: &Locks) -> Result<(), Failure> {
    let outer = outer();
    for name in names.iter().filter(|_| !outer.is_empty()) {
        match locks.show(name.as_str()).await {
            Ok(Some(holder)) if holder.owner.is_some_and(|owner| outer.contains(&owner)) => {
                return Err(Failure::Nested { holder: holder.into(), code: exit::BUSY });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Acquires locks; a signal ends the waiting.
pub(crate) async fn acquire(
    set: &LockSet,
    names: &[Name],
    locks: &Locks,
    console: Console,
    signals: &Incoming,
) -> Result<GuardSet, Failure> {
    let acquired = async {
        refuse_nested(names, locks).await?;
        Ok(set.acquire().await?)
    };
    tokio::select! {
        biased;
        guards = acquired => guards,
        signal = ending(signals) => Err(Failure::Interrupted(signal)),
        () = tell(names, locks, console) => unreachable!("telling goes on until the wait is over"),
    }
}

/// The first signal that means the end; a stop only stops us.
pub(crate) async fn ending(signals: &Incoming) -> i32 {
    loop {
        match signals.next().await {
            libc::SIGCONT => {}
            // The rest of our group was sent its own.
            libc::SIGTSTP => {
                let _ =
                    signals::stop(|signal| rustix::process::kill_process(rustix::process::getpid(), signal));
            }
            signal => return signal,
        }
    }
}

/// Tells who holds the lock, until dropped: on a terminal on one line that updates, else in a line now and
/// then.
async fn tell(names: &[Name], locks: &Locks, console: Console) {
    let started = Instant::now();
    if console.has_live_line() {
        let mut line = LiveLine::new();
        loop {
            sleep(Duration::from_secs(1)).await;
            let (name, _, why) = reason(names, locks).await;
            line.write(&format!("waiting {}: {why}; lock `{}`", waited(started), shown(name.as_str())));
        }
    }
    let first = WORTH_A_LINE.into_iter().map(Duration::from_secs);
    let later = (1..).map(|times| EVERY * times);
    for at in first.chain(later) {
        sleep_until(started + at).await;
        let (name, holder, why) = reason(names, locks).await;
        let text = format!("waiting for lock `{}`, {} so far; {why}", shown(name.as_str()), waited(started));
        console.waiting(name, started.elapsed(), holder.as_ref(), &text);
    }
}

fn waited(started: Instant) -> String {
    format_duration(Duration::from_secs(started.elapsed().as_secs()))
}

/// The first lock that is not had yet, and why.
async fn reason<'a>(names: &'a [Name], locks: &Locks) -> (&'a Name, Option<Holder>, String) {
    let ours = |holder: &Holder| holder.pid == Some(std::process::id());
    for name in names {
        match locks.show(name.as_str()).await {
            Ok(Some(holder)) if names.len() > 1 && ours(&holder) => {}
            Ok(Some(holder)) => {
                let why = format!("held by {holder}");
                return (name, Some(holder), why);
            }
            Ok(None) => {}
            Err(error) => return (name, None, error.to_string()),
        }
    }
    let why =
        locks.check().await.map_or_else(|error| error.to_string(), |()| "nobody has it just now".into());
    (&names[0], None, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_owners_are_taken_from_the_environment() {
        let [ours, other] = ["0190a0a0-0000-7000-8000-000000000001", "0190a0a0-0000-7000-8000-000000000002"];
        assert_eq!(owners(&format!("{other} x\u{1} {ours}")).len(), 2);
        assert!(owners("").is_empty());
        assert_eq!(owners(&format!("{ours} ").repeat(100)).len(), MOST_OUTER);
    }
}
