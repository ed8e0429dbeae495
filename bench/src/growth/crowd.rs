//! Hand-overs among so many who wait for one name, and of so many names; and what it costs to wait.

use std::time::{Duration, Instant};

use fencepost_measure::Worker;
use serde_json::json;

use super::target::Target;
use super::{Cost, report};
use crate::cycle::runtime;
use crate::results::{Goal, add_row, progress};
use crate::rounds::{middle, report_number};
use crate::workers::player;

const WAITERS: [usize; 5] = [1, 10, 100, 1_000, 10_000];
/// A process each.
const PROCESSES: [usize; 4] = [1, 10, 100, 300];
const NAMES: [usize; 4] = [1, 100, 1_000, 10_000];
/// How often all names together change hands in a second: less than what a process can do.
const RATE: usize = 8_000;

/// How long hand-overs are counted.
const SECONDS: usize = 3;
/// Who wait, and nobody is served.
const WAITING: [usize; 3] = [100, 1_000, 10_000];
/// How long until they have their pace, and how long they are watched: longer than the longest pause.
const SETTLED: Duration = Duration::from_secs(15);
const WATCHED: Duration = Duration::from_secs(30);

/// What came of one contest.
struct Outcome {
    cost: Cost,
    per_second: f64,
    scripts: f64,
}

pub(super) fn run(name: &str, start: fn() -> Target, rounds: usize) {
    let in_turns = |sizes: &[usize], measure: &dyn Fn(usize) -> Option<Outcome>| -> Vec<Vec<Outcome>> {
        let mut outcomes: Vec<Vec<_>> = sizes.iter().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            for (size, outcomes) in sizes.iter().zip(&mut outcomes) {
                outcomes.extend(measure(*size));
            }
        }
        outcomes
    };
    let told = |what: &str, sizes: &[usize], outcomes: Vec<Vec<Outcome>>| {
        let (through, failed): (Vec<_>, Vec<_>) =
            sizes.iter().copied().zip(outcomes).partition(|(_, rounds)| !rounds.is_empty());
        for (size, _) in failed {
            report_number(
                &format!("{name}, {size} {what}: rounds"),
                0.0,
                "requests were not answered in time",
                None,
            );
        }
        let (sizes, outcomes): (Vec<_>, Vec<_>) = through.into_iter().unzip();
        if sizes.is_empty() {
            return;
        }
        let costs: Vec<Vec<_>> =
            outcomes.iter().map(|rounds| rounds.iter().map(|one| one.cost).collect()).collect();
        report(name, "a hand-over", what, &sizes, &costs, true);
        for (size, rounds) in sizes.iter().zip(&outcomes) {
            let of = |side: fn(&Outcome) -> f64| middle(rounds.iter().map(side).collect());
            let (rate, scripts) = (of(|one| one.per_second), of(|one| one.scripts));
            let detail = format!("{scripts:.2} scripts each");
            report_number(&format!("{name}, {size} {what}: hand-overs a second"), rate, &detail, None);
            add_row(json!({
                "target": name, "operation": "hand-overs", "what": what, "size": size,
                "per_s": rate, "scripts": scripts,
            }));
        }
    };
    let waiters = in_turns(&WAITERS, &|size| {
        progress(&format!("{name}, {size} waiters"));
        contest(start, 1, [1, size + 1, 0])
    });
    told("waiters", &WAITERS, waiters);
    let processes = in_turns(&PROCESSES, &|size| {
        progress(&format!("{name}, {size} waiting processes"));
        contest(start, size + 1, [1, 1, 0])
    });
    told("waiting processes", &PROCESSES, processes);
    let names = in_turns(&NAMES, &|size| {
        progress(&format!("{name}, {size} contended names"));
        contest(start, 2, [size, 1, 1_000_000 * size / RATE])
    });
    told("contended names", &NAMES, names);
    wait(name, start);
}

/// So many processes, each with so many names, contenders for each, and microseconds that they hold it.
fn contest(
    start: fn() -> Target,
    processes: usize,
    [names, contenders, hold]: [usize; 3],
) -> Option<Outcome> {
    runtime().block_on(async {
        let target = start();
        let mut workers = Vec::new();
        for _ in 0..processes {
            workers.push(Worker::start(player("growth", &target.url, 0)).expect("a process"));
        }
        for worker in &mut workers {
            worker.ready().await.expect("a process");
            worker.tell(&format!("contend {names} {contenders} {hold}")).await.ok()?;
        }
        for worker in &mut workers {
            worker.answer().await.ok()?;
        }
        let (before, scripts, started) = (target.spent(), target.scripts(), Instant::now());
        for worker in &mut workers {
            worker.tell(&format!("count {SECONDS}")).await.ok()?;
        }
        let (mut acquired, mut spent) = (0.0, 0.0);
        for worker in &mut workers {
            let told = worker.answer().await.ok()?;
            acquired += told["acquired"].as_f64().expect("a figure");
            spent += told["spent"].as_f64().expect("a figure");
        }
        let server = target.spent() - before;
        Some(Outcome {
            cost: Cost { client: spent / acquired, server: server / acquired },
            per_second: acquired / started.elapsed().as_secs_f64(),
            scripts: (target.scripts() - scripts) / acquired,
        })
    })
}

/// The share of a core that the servers use, and how many scripts a second they run, while so many wait and
/// nobody is served.
fn wait(name: &str, start: fn() -> Target) {
    progress(&format!("{name}, many who only wait"));
    runtime().block_on(async {
        let mut sides = Vec::new();
        for size in WAITING {
            let target = start();
            let mut workers = Vec::new();
            for commands in ["hold 1 60".to_owned(), format!("wait held:0 {size}")] {
                let mut worker = Worker::start(player("growth", &target.url, 0)).expect("a process");
                worker.ready().await.expect("a process");
                worker.tell(&commands).await.expect("a process");
                worker.answer().await.expect("it is done");
                workers.push(worker);
            }
            sides.push((size, target, workers));
        }
        // At first everybody has just come.
        tokio::time::sleep(SETTLED).await;
        let before: Vec<_> = sides.iter().map(|(_, target, _)| (target.spent(), target.scripts())).collect();
        let started = Instant::now();
        tokio::time::sleep(WATCHED).await;
        for ((size, target, _workers), (spent, scripts)) in sides.iter().zip(before) {
            let took = started.elapsed().as_secs_f64();
            let (share, scripts) =
                ((target.spent() - spent) / took / 1e6, (target.scripts() - scripts) / took);
            report_number(
                &format!("{name}, {size} only wait: share of a server core"),
                share,
                &format!("{scripts:.0} scripts a second"),
                Some(Goal::AtMost(0.05)),
            );
            add_row(json!({
                "target": name, "operation": "waiting", "what": "waiters", "size": size,
                "core": share, "scripts_per_s": scripts,
            }));
        }
    });
}
