//! `bench`: how fast locks are on this store, from here.

use std::time::Duration;

use fencepost::Locks;
use serde::Serialize;

use crate::args::{Bench, BenchWorker, Global};
use crate::bench::{self, Crowd, Times};
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
    /// The 50th percentile by that of a round trip.
    round_trips: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    most_by_least_turns: Option<f64>,
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

pub(super) fn worker(args: &BenchWorker, global: &Global) -> Outcome {
    bench::worker(args, &store::url(global)?)
}

async fn measure(url: &str, locks: &Locks, lasts: Duration, console: Console) -> Result<Report, Failure> {
    let prefix = format!("bench:{}:", std::process::id());
    let mut progress = Progress { console, line: console.has_live_line().then(LiveLine::new) };
    progress.tell("one round trip");
    let round_trip = bench::round_trips(locks, &format!("{prefix}nobody"), lasts).await?;
    let round_trip = microseconds(&round_trip, 50);
    let mut report =
        Report { store: locks.capabilities().store, round_trip_us: round_trip, measures: Vec::new() };
    for tasks in TASKS {
        let what = format!("acquire and release, {tasks} at a time");
        progress.tell(&what);
        report.add(what, &bench::cycles(locks, &prefix, tasks, lasts).await?, None);
    }
    let name = |of: &str| format!("{prefix}{of}");
    progress.tell("waking a waiter in another process");
    let woken = bench::in_processes(url, &name("wake"), (2, HOLD), lasts).await?;
    report.add_crowd("waking a waiter in another process", &woken);
    let what = format!("{CONTENDERS} processes for one name");
    progress.tell(&what);
    let crowd = bench::in_processes(url, &name("apart"), (CONTENDERS, Duration::ZERO), lasts).await?;
    report.add_crowd(&what, &crowd);
    let what = format!("{CONTENDERS} tasks of one process for one name");
    progress.tell(&what);
    let crowd = bench::in_one_process(locks, &name("together"), CONTENDERS, lasts).await?;
    report.add_crowd(&what, &crowd);
    Ok(report)
}

fn microseconds(times: &Times, percent: usize) -> f64 {
    times.percentile(percent).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
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
    fn add(&mut self, what: String, times: &Times, most_by_least_turns: Option<f64>) {
        let (p50_us, p99_us) = (microseconds(times, 50), microseconds(times, 99));
        let round_trips = p50_us / self.round_trip_us;
        let per_second = times.rate();
        self.measures.push(Measure { what, per_second, p50_us, p99_us, round_trips, most_by_least_turns });
    }

    fn add_crowd(&mut self, what: &str, crowd: &Crowd) {
        self.add(what.to_owned(), &crowd.gaps, Some(crowd.unfairness));
    }

    fn text(&self) -> String {
        let mut out = format!(
            "{}: one round trip takes {:.0} us (half of them take less)\n\n{:42} {:>10} {:>10} {:>10} {:>12}\n",
            self.store, self.round_trip_us, "", "per second", "p50 us", "p99 us", "round trips"
        );
        for measure in &self.measures {
            let Measure { what, per_second, p50_us, p99_us, round_trips, .. } = measure;
            out.push_str(&format!(
                "{what:42} {per_second:>10.0} {p50_us:>10.0} {p99_us:>10.0} {round_trips:>12.1}"
            ));
            if let Some(unfairness) = measure.most_by_least_turns {
                out.push_str(&format!("   most / least turns {unfairness:.2}"));
            }
            out.push('\n');
        }
        out.push_str(
            "\nWith contention: hand-overs to another contender, from the call of release to the return of its acquire.\n",
        );
        out
    }
}
