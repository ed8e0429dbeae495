//! `bench`: how fast locks are on this store, from here.

use std::io;
use std::process::Command;
use std::time::{Duration, Instant};

use fencepost::{Locks, Result};
use fencepost_measure::{Contest, Crowd, Times, Worker, contend, contend_in_processes, cycles, serve};
use serde::Serialize;

use crate::args::{Bench, Global};
use crate::exit::{Failure, Outcome, system};
use crate::output::{Console, LiveLine};
use crate::signals::Caught;
use crate::{store, waiting};

const TASKS: [usize; 4] = [1, 16, 64, 256];
const CONTENDERS: usize = 8;
/// Long enough that the other one waits before the release.
const HOLD: Duration = Duration::from_millis(5);

#[derive(Debug, Serialize)]
struct Report {
    store: String,
    /// The 50th percentile of asking for the holder of a free lock.
    round_trip_us: f64,
    measures: Vec<Measure>,
}

#[derive(Debug, Serialize)]
struct Measure {
    what: String,
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
    /// The 50th percentile by that of a round trip.
    round_trips: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    contended: Option<Contended>,
}

/// What only those have who contend.
#[derive(Debug, Serialize)]
struct Contended {
    most_by_least_turns: f64,
    wait_p50_us: f64,
    wait_p99_us: f64,
    wait_max_us: f64,
}

pub(super) fn run(args: &Bench, global: &Global, console: Console) -> Outcome {
    let url = store::url(global)?;
    // Before any thread starts.
    let caught = Caught::start(false).map_err(system("catching signals"))?;
    super::runtime()?.block_on(async {
        let signals = caught.listen().map_err(system("catching signals"))?;
        let locks = Locks::connect(&url).await?;
        let measured = tokio::select! {
            report = measure(&url, &locks, args.each, console) => report,
            signal = waiting::ending(&signals) => Err(Failure::Interrupted(signal)),
        };
        locks.close().await;
        let report = measured?;
        console.result(&report, || report.text())?;
        Ok(0)
    })
}

/// One of the processes that contend.
pub(super) fn worker(global: &Global) -> Outcome {
    let url = store::url(global)?;
    let caught = Caught::start(false).map_err(system("catching signals"))?;
    super::runtime()?.block_on(async {
        let signals = caught.listen().map_err(system("catching signals"))?;
        let locks = Locks::connect(&url).await?;
        let outcome = tokio::select! {
            served = serve(&locks) => served.map_err(system("talking to the bench")),
            signal = waiting::ending(&signals) => Err(Failure::Interrupted(signal)),
        };
        locks.close().await;
        outcome.map(|()| 0)
    })
}

async fn measure(
    url: &str,
    locks: &Locks,
    lasts: Duration,
    console: Console,
) -> std::result::Result<Report, Failure> {
    let prefix = format!("bench:{}:", std::process::id());
    let mut progress = Progress { console, line: console.has_live_line().then(LiveLine::new) };
    progress.tell("one round trip");
    let round_trip = round_trips(locks, &format!("{prefix}nobody"), lasts).await?;
    let mut report = Report {
        store: locks.capabilities().store,
        round_trip_us: round_trip.microseconds(50),
        measures: Vec::new(),
    };
    for tasks in TASKS {
        let what = format!("acquire and release, {tasks} at a time");
        progress.tell(&what);
        report.add(what, &cycles(locks, &prefix, tasks, lasts).await?);
    }
    let contest = |of: &str, contenders: usize, hold: Duration| Contest {
        name: format!("{prefix}{of}"),
        contenders,
        hold,
        lasts,
        polite: None,
    };
    let what = "waking a waiter in another process";
    progress.tell(what);
    report.add_crowd(what, &in_processes(url, 2, &contest("wake", 1, HOLD)).await?);
    let what = format!("{CONTENDERS} processes for one name");
    progress.tell(&what);
    report.add_crowd(&what, &in_processes(url, CONTENDERS, &contest("apart", 1, Duration::ZERO)).await?);
    let what = format!("{CONTENDERS} tasks of one process for one name");
    progress.tell(&what);
    let turns = contend(locks, &contest("together", CONTENDERS, Duration::ZERO)).await?;
    report.add_crowd(&what, &Crowd::new(&turns, lasts));
    Ok(report)
}

/// Asks who holds a lock that nobody has: one round trip to the store, whatever store it is.
async fn round_trips(locks: &Locks, name: &str, lasts: Duration) -> Result<Times> {
    let (started, mut times) = (Instant::now(), Vec::new());
    while started.elapsed() < lasts {
        let before = Instant::now();
        locks.show(name).await?;
        times.push(before.elapsed());
    }
    Ok(Times::new(times, started.elapsed()))
}

async fn in_processes(url: &str, count: usize, contest: &Contest) -> std::result::Result<Crowd, Failure> {
    started_and_contended(url, count, contest).await.map_err(system("running processes that contend"))
}

async fn started_and_contended(url: &str, count: usize, contest: &Contest) -> io::Result<Crowd> {
    let mut workers = Vec::new();
    for _ in 0..count {
        let mut command = Command::new(std::env::current_exe()?);
        // The store is not an argument, which others could read.
        command.arg("bench-worker").env("FENCEPOST_STORE", url);
        workers.push(Worker::start(command)?);
    }
    for worker in &mut workers {
        worker.ready().await?;
    }
    let crowd = contend_in_processes(&mut workers, contest).await?;
    for worker in workers {
        worker.end().await?;
    }
    Ok(crowd)
}

struct Progress {
    console: Console,
    line: Option<LiveLine>,
}

impl Progress {
    fn tell(&mut self, what: &str) {
        match &mut self.line {
            Some(line) => line.write(&format!("measuring: {what}")),
            None => self.console.note(&format!("measuring: {what}")),
        }
    }
}

impl Report {
    fn add(&mut self, what: String, times: &Times) {
        let [p50_us, p99_us, max_us] = [50, 99, 100].map(|percent| times.microseconds(percent));
        let round_trips = p50_us / self.round_trip_us;
        let per_second = times.rate();
        self.measures.push(Measure {
            what,
            per_second,
            p50_us,
            p99_us,
            max_us,
            round_trips,
            contended: None,
        });
    }

    fn add_crowd(&mut self, what: &str, crowd: &Crowd) {
        self.add(what.to_owned(), &crowd.gaps);
        let [wait_p50_us, wait_p99_us, wait_max_us] =
            [50, 99, 100].map(|percent| crowd.waits.microseconds(percent));
        if let Some(measure) = self.measures.last_mut() {
            measure.per_second = crowd.handovers;
            let most_by_least_turns = crowd.unfairness;
            measure.contended =
                Some(Contended { most_by_least_turns, wait_p50_us, wait_p99_us, wait_max_us });
        }
    }

    fn text(&self) -> String {
        let mut out = format!(
            "{}: one round trip takes {:.0} us (half of them take less)\n\n{:42} {:>10} {:>10} {:>10} {:>10} \
            {:>12}\n",
            self.store, self.round_trip_us, "", "per second", "p50 us", "p99 us", "max us", "round trips"
        );
        for measure in &self.measures {
            let Measure { what, per_second, p50_us, p99_us, max_us, round_trips, .. } = measure;
            out.push_str(&format!(
                "{what:42} {per_second:>10.0} {p50_us:>10.0} {p99_us:>10.0} {max_us:>10.0} \
                {round_trips:>12.1}\n"
            ));
            if let Some(Contended { most_by_least_turns, wait_p50_us, wait_p99_us, wait_max_us }) =
                &measure.contended
            {
                out.push_str(&format!(
                    "{:42} {:>10} {wait_p50_us:>10.0} {wait_p99_us:>10.0} {wait_max_us:>10.0}   most / least \
                    turns {most_by_least_turns:.2}\n",
                    "  each waited", ""
                ));
            }
        }
        out.push_str(
            "\nWith contention: hand-overs to another contender, from the call of release to the return of \
            its acquire; \
             and how long each waited for its turn.\n",
        );
        out
    }
}
