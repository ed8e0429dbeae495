//! Waiting for a lock as people and signals want it: says who holds it, and leaves nothing behind when told
//! to end.

use std::time::Duration;

use fencepost::{Guard, Lock, Locks, Name, format_duration};
use tokio::time::{Instant, sleep};

use crate::exit::Failure;
use crate::output::{Console, LiveLine, shown};
use crate::signals::{self, Incoming};

/// How long a wait has to last before it is worth a line in a log.
const WORTH_A_LINE: Duration = Duration::from_secs(2);

/// Acquires a lock; a signal ends the waiting.
pub(crate) async fn acquire(
    lock: &Lock,
    name: &Name,
    locks: &Locks,
    console: Console,
    signals: &Incoming,
) -> Result<Guard, Failure> {
    tokio::select! {
        biased;
        guard = lock.acquire() => Ok(guard?),
        signal = ending(signals) => Err(Failure::Interrupted(signal)),
        () = tell(name, locks, console) => unreachable!("telling goes on until the wait is over"),
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

/// Tells who holds the lock, until dropped: on a terminal on one line that updates, else in one line once.
async fn tell(name: &Name, locks: &Locks, console: Console) {
    let started = Instant::now();
    if console.has_live_line() {
        let mut line = LiveLine::new();
        loop {
            sleep(Duration::from_secs(1)).await;
            line.write(&text(name, locks, started).await);
        }
    }
    sleep(WORTH_A_LINE).await;
    console.note(&text(name, locks, started).await);
    std::future::pending().await
}

async fn text(name: &Name, locks: &Locks, started: Instant) -> String {
    let waiting = format!("waiting for lock `{}`", shown(name.as_str()));
    let waited = format_duration(Duration::from_secs(started.elapsed().as_secs()));
    match locks.show(name.as_str()).await {
        Ok(Some(holder)) => format!("{waiting}, {waited} so far; held by {holder}"),
        Ok(None) => match locks.check().await {
            Ok(()) => format!("{waiting}, {waited} so far"),
            Err(error) => format!("{waiting}, {waited} so far; {error}"),
        },
        Err(error) => format!("{waiting}, {waited} so far; {error}"),
    }
}
