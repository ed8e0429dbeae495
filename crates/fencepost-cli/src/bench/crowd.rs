//! With contention: several for one name, in one process or in one each. Only what goes to another one counts: who takes back what it has
//! just given back shows nothing.

use std::process::Stdio;
use std::time::{Duration, Instant};

use fencepost::Locks;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use super::Times;
use super::worker::{Turn, contend};
use crate::exit::{Failure, system};

/// What came of it.
#[derive(Debug)]
pub(crate) struct Crowd {
    /// From the call of release to the return of acquire of another one.
    pub(crate) gaps: Times,
    /// The most turns of one of them by the least.
    pub(crate) unfairness: f64,
}

impl Crowd {
    fn new(contenders: &[Vec<Turn>], lasts: Duration) -> Self {
        let turns = contenders.iter().enumerate();
        let mut turns: Vec<_> =
            turns.flat_map(|(one, turns)| turns.iter().map(move |turn| (*turn, one))).collect();
        turns.sort_unstable();
        let handed = turns.windows(2).filter(|pair| pair[0].1 != pair[1].1);
        let gap = |pair: &[(Turn, usize)]| pair[1].0.acquired.saturating_sub(pair[0].0.released);
        let gaps = handed.map(gap).map(Duration::from_nanos).collect();
        let counts = contenders.iter().map(Vec::len);
        let (most, least) = (counts.clone().max().unwrap_or(0), counts.min().unwrap_or(0));
        Self { gaps: Times::new(gaps, lasts), unfairness: most as f64 / least.max(1) as f64 }
    }
}

pub(crate) async fn in_one_process(
    locks: &Locks,
    name: &str,
    count: usize,
    lasts: Duration,
) -> Result<Crowd, Failure> {
    let end = Instant::now() + lasts;
    let mut running = JoinSet::new();
    for _ in 0..count {
        let (locks, name) = (locks.clone(), name.to_owned());
        running.spawn(async move { contend(&locks, &name, Duration::ZERO, end).await });
    }
    let mut turns = Vec::new();
    while let Some(ended) = running.join_next().await {
        turns.push(ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?);
    }
    Ok(Crowd::new(&turns, lasts))
}

/// Each holds the lock for `hold`.
pub(crate) async fn in_processes(
    url: &str,
    name: &str,
    (count, hold): (usize, Duration),
    lasts: Duration,
) -> Result<Crowd, Failure> {
    let mut workers = Vec::new();
    for _ in 0..count {
        workers.push(Worker::start(url, name, hold, lasts)?);
    }
    for worker in &mut workers {
        worker.line().await?;
    }
    for worker in &mut workers {
        worker.begin().await?;
    }
    let mut turns = Vec::new();
    for worker in workers {
        turns.push(worker.turns().await?);
    }
    Ok(Crowd::new(&turns, lasts))
}

/// A process that contends. Killed if it is dropped before its end.
struct Worker {
    child: Child,
    output: BufReader<tokio::process::ChildStdout>,
}

impl Worker {
    fn start(url: &str, name: &str, hold: Duration, lasts: Duration) -> Result<Self, Failure> {
        let program = std::env::current_exe().map_err(system("finding this program"))?;
        let mut command = Command::new(program);
        command.args(["bench-worker", "--name", name]);
        command.args(["--hold", &format!("{}ms", hold.as_millis())]);
        command.args(["--lasts", &format!("{}ms", lasts.as_millis())]);
        // Not an argument, which others could read.
        command.env("FENCEPOST_STORE", url);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(system("starting a process"))?;
        let output = child.stdout.take().ok_or_else(|| silent("it has no output"))?;
        Ok(Self { child, output: BufReader::new(output) })
    }

    /// Its next line: it is ready.
    async fn line(&mut self) -> Result<(), Failure> {
        let mut line = String::new();
        self.output.read_line(&mut line).await.map_err(system("listening to a process"))?;
        if line.is_empty() { Err(silent("it ended before it was ready")) } else { Ok(()) }
    }

    async fn begin(&mut self) -> Result<(), Failure> {
        let Some(mut input) = self.child.stdin.take() else { return Ok(()) };
        input.write_all(b"go\n").await.map_err(system("talking to a process"))
    }

    async fn turns(mut self) -> Result<Vec<Turn>, Failure> {
        let (mut turns, mut lines) = (Vec::new(), self.output.lines());
        while let Some(line) = lines.next_line().await.map_err(system("listening to a process"))? {
            turns.extend(Turn::parse(&line));
        }
        let ended = self.child.wait().await.map_err(system("waiting for a process"))?;
        if ended.success() { Ok(turns) } else { Err(silent("it failed; see above")) }
    }
}

fn silent(why: &str) -> Failure {
    system("running a process that contends")(std::io::Error::other(why.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(token: u64, acquired: u64, released: u64) -> Turn {
        Turn { token, acquired, released }
    }

    #[test]
    fn only_what_goes_to_another_one_counts() {
        let first = vec![turn(1, 0, 10), turn(2, 11, 20), turn(4, 50, 60)];
        let second = vec![turn(3, 25, 40)];
        let crowd = Crowd::new(&[first, second], Duration::from_secs(1));
        assert_eq!(crowd.gaps.percentile(0), Some(Duration::from_nanos(5)));
        assert_eq!(crowd.gaps.percentile(100), Some(Duration::from_nanos(10)));
        assert!((crowd.gaps.rate() - 2.0).abs() < 1e-9);
        assert!((crowd.unfairness - 3.0).abs() < 1e-9);
    }

    #[test]
    fn a_turn_is_read_as_it_was_written() {
        assert_eq!(Turn::parse("7 8 9"), Some(turn(7, 8, 9)));
        assert_eq!(Turn::parse("ready"), None);
        assert_eq!(Turn::parse("7 8"), None);
    }
}
