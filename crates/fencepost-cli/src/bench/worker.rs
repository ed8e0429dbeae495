//! One who contends for a name, in this process or as one of its own.

use std::io::{self, BufRead as _, Write as _};
use std::time::{Duration, Instant};

use fencepost::{Locks, Result};
use rustix::time::{ClockId, clock_gettime};

use crate::args::BenchWorker;
use crate::exit::{Outcome, system};
use crate::signals::Caught;
use crate::waiting;

/// One time that the lock was held. The moments are of the clock that all processes share, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    pub(super) token: u64,
    pub(super) acquired: u64,
    pub(super) released: u64,
}

impl Turn {
    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut numbers = line.split(' ').map(|word| word.parse().ok());
        let mut next = || numbers.next().flatten();
        Some(Self { token: next()?, acquired: next()?, released: next()? })
    }
}

fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Takes the lock, holds it for a while, gives it back, and so on.
pub(super) async fn contend(locks: &Locks, name: &str, hold: Duration, end: Instant) -> Result<Vec<Turn>> {
    let (lock, mut turns) = (locks.lock(name), Vec::new());
    while Instant::now() < end {
        let guard = lock.acquire().await?;
        let (token, acquired) = (guard.token().get(), now());
        if !hold.is_zero() {
            tokio::time::sleep(hold).await;
        }
        let released = now();
        guard.release().await?;
        turns.push(Turn { token, acquired, released });
        // A store that never waits must not keep the others from their turn.
        tokio::task::yield_now().await;
    }
    Ok(turns)
}

/// The process: says that it is ready, waits for a line, contends, and writes down its turns.
pub(crate) fn run(args: &BenchWorker, url: &str) -> Outcome {
    let caught = Caught::start(false).map_err(system("catching signals"))?;
    crate::cmd::runtime()?.block_on(async {
        let signals = caught.listen().map_err(system("catching signals"))?;
        let locks = Locks::connect(url).await?;
        println_now("ready").map_err(system("talking to the bench"))?;
        let begin = tokio::task::spawn_blocking(|| io::stdin().lock().read_line(&mut String::new()));
        begin.await.unwrap_or(Ok(0)).map_err(system("listening to the bench"))?;
        let end = Instant::now() + args.lasts;
        let outcome = tokio::select! {
            turns = contend(&locks, &args.name, args.hold, end) => turns.map_err(Into::into),
            signal = waiting::ending(&signals) => Err(crate::exit::Failure::Interrupted(signal)),
        };
        locks.close().await;
        let lines = outcome?
            .iter()
            .map(|turn| format!("{} {} {}\n", turn.token, turn.acquired, turn.released))
            .collect::<String>();
        io::stdout().lock().write_all(lines.as_bytes()).map_err(system("talking to the bench"))?;
        Ok(0)
    })
}

fn println_now(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
