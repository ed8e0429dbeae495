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

fn outer() -> String {
    std::env::var(OUTER).unwrap_or_default()
}

/// What [`OUTER`] is for a command that runs under these, too.
pub(crate) fn outer_and(owners: impl Iterator<Item = Owner>) -> String {
    let ours = owners.map(|owner| owner.to_string());
    Some(outer()).filter(|outer| !outer.is_empty()).into_iter().chain(ours).collect::<Vec<_>>().join(" ")
}

/// Refuses to wait for a lock that is held for us.
async fn refuse_nested(names: &[Name], locks: &Locks) -> Result<(), Failure> {
    let outer = outer();
    if outer.is_empty() {
        return Ok(());
    }
    for name in names {
        match locks.show(name.as_str()).await? {
            Some(holder) if holder.owner.is_some_and(|owner| is_among(&outer, owner)) => {
                return Err(Failure::Nested { holder: holder.into(), code: exit::BUSY });
            }
            _ => {}
        }
    }
    Ok(())
}

fn is_among(owners: &str, owner: Owner) -> bool {
    let owner = owner.to_string();
    owners.split(' ').any(|outer| outer == owner)
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
    fn an_outer_lock_is_known_by_its_owner() {
        let [ours, other] = ["0190a0a0-0000-7000-8000-000000000001", "0190a0a0-0000-7000-8000-000000000002"]
            .map(|owner| owner.parse::<Owner>().unwrap());
        assert!(is_among(&format!("{other} {ours}"), ours));
        assert!(!is_among(&other.to_string(), ours) && !is_among("", ours));
    }
}
