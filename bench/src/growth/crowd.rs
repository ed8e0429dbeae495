//! Hand-overs among so many who wait for one name, and of so many names; and what it costs to wait.

use std::time::Instant;

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
const NAMES: [usize; 4] = [1, 100, 10_000, 100_000];
/// For each of many names.
const CONTENDERS: usize = 3;

/// How long hand-overs are counted.
const SECONDS: usize = 3;
/// How long those who only wait are watched: more than two pauses of those who look least.
const WATCHED: usize = 12;

/// What came of one contest.
struct Outcome {
    cost: Cost,
    per_second: f64,
    scripts: f64,
}

pub(super) fn run(name: &str, start: fn() -> Target, rounds: usize) {
    let in_turns = |sizes: &[usize], measure: &dyn Fn(usize) -> Outcome| -> Vec<Vec<Outcome>> {
        let mut outcomes: Vec<Vec<_>> = sizes.iter().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            for (size, outcomes) in sizes.iter().zip(&mut outcomes) {
                outcomes.push(measure(*size));
            }
        }
        outcomes
    };
    let told = |what: &str, sizes: &[usize], outcomes: Vec<Vec<Outcome>>| {
        let costs: Vec<Vec<_>> =
            outcomes.iter().map(|rounds| rounds.iter().map(|one| one.cost).collect()).collect();
        report(name, "a hand-over", what, sizes, &costs, true);
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
        contest(start, 1, 1, size + 1)
    });
    told("waiters", &WAITERS, waiters);
    let processes = in_turns(&PROCESSES, &|size| {
        progress(&format!("{name}, {size} waiting processes"));
        contest(start, size + 1, 1, 1)
    });
    told("waiting processes", &PROCESSES, processes);
    let names = in_turns(&NAMES, &|size| {
        progress(&format!("{name}, {size} contended names"));
        contest(start, 1, size, CONTENDERS)
    });
    told("contended names", &NAMES, names);
    for size in WAITERS {
        progress(&format!("{name}, {size} who only wait"));
        let (share, scripts) = wait(start, size);
        let detail = format!("{scripts:.0} scripts a second");
        let goal = Some(Goal::AtMost(0.05));
        report_number(&format!("{name}, {size} only wait: share of a server core"), share, &detail, goal);
        add_row(json!({
            "target": name, "operation": "waiting", "what": "waiters", "size": size,
            "core": share, "scripts_per_s": scripts,
        }));
    }
}

/// So many processes with so many contenders for each of so many names.
fn contest(start: fn() -> Target, processes: usize, names: usize, contenders: usize) -> Outcome {
    runtime().block_on(async {
        let target = start();
        let mut workers = Vec::new();
        for _ in 0..processes {
            workers.push(Worker::start(player("growth", &target.url, 0)).expect("a process"));
        }
        for worker in &mut workers {
            worker.ready().await.expect("a process");
            worker.tell(&format!("contend {names} {contenders}")).await.expect("a process");
        }
        for worker in &mut workers {
            worker.answer().await.expect("everybody's first turn");
        }
        let (before, scripts, started) = (target.spent(), target.scripts(), Instant::now());
        for worker in &mut workers {
            worker.tell(&format!("count {SECONDS}")).await.expect("a process");
        }
        let (mut acquired, mut spent) = (0.0, 0.0);
        for worker in &mut workers {
            let told = worker.answer().await.expect("figures");
            acquired += told["acquired"].as_f64().expect("a figure");
            spent += told["spent"].as_f64().expect("a figure");
        }
        let server = target.spent() - before;
        Outcome {
            cost: Cost { client: spent / acquired, server: server / acquired },
            per_second: acquired / started.elapsed().as_secs_f64(),
            scripts: (target.scripts() - scripts) / acquired,
        }
    })
}

/// The share of a core that the servers use, and how many scripts a second they run, while so many wait.
fn wait(start: fn() -> Target, waiters: usize) -> (f64, f64) {
    runtime().block_on(async {
        let target = start();
        let mut workers = Vec::new();
        for _ in 0..2 {
            let mut worker = Worker::start(player("growth", &target.url, 0)).expect("a process");
            worker.ready().await.expect("a process");
            workers.push(worker);
        }
        let (crowd, holder) = (1, 0);
        workers[holder].tell("hold 1 60").await.expect("a process");
        workers[holder].answer().await.expect("the lock");
        workers[crowd].tell(&format!("wait held:0 {waiters}")).await.expect("a process");
        workers[crowd].answer().await.expect("a crowd");
        let mut figures = (f64::NAN, f64::NAN);
        // At first everybody has just come.
        for _ in 0..2 {
            let (before, scripts, started) = (target.spent(), target.scripts(), Instant::now());
            workers[crowd].tell(&format!("count {WATCHED}")).await.expect("a process");
            workers[crowd].answer().await.expect("figures");
            let took = started.elapsed().as_secs_f64();
            figures = ((target.spent() - before) / took / 1e6, (target.scripts() - scripts) / took);
        }
        figures
    })
}
