//! A cycle and a renewal, beside so many locks that another process holds and renews.

use fencepost_measure::Worker;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::target::Target;
use super::{Cost, report};
use crate::cycle::runtime;
use crate::results::{Goal, add_row, progress};
use crate::rounds::report_number;
use crate::workers::player;

const SIZES: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];

/// Of the locks that are held, in seconds. Each is renewed once in a third of it.
const TTL: usize = 60;

/// Cycles that are measured at a time.
const CYCLES: usize = 2_000;

/// Turns of that in a round.
const TURNS: usize = 5;

struct Side {
    target: Target,
    holder: Worker,
    cycler: Worker,
    cycles: Vec<Cost>,
    renewals: Vec<Cost>,
}

pub(super) fn run(name: &str, start: fn() -> Target, rounds: usize) {
    runtime().block_on(async {
        let mut sides = Vec::new();
        for size in SIZES {
            progress(&format!("{name}, {size} held"));
            sides.push(Side::start(name, start, size).await);
        }
        for _ in 0..rounds {
            // Those who hold stand still for less than a ttl, so that what the servers do is the cycles.
            sides.iter().for_each(|side| side.signal(Signal::STOP));
            for _ in 0..TURNS {
                for side in &mut sides {
                    side.cycle().await;
                }
            }
            sides.iter().for_each(|side| side.signal(Signal::CONT));
            renew(&mut sides).await;
        }
        let cycles: Vec<_> = sides.iter().map(|side| side.cycles.clone()).collect();
        report(name, "a cycle", "held", &SIZES, &cycles, true);
        let renewals: Vec<_> = sides.iter().map(|side| side.renewals.clone()).collect();
        report(name, "a renewal", "held", &SIZES, &renewals, true);
        for side in sides {
            // It would give back all that it has, which is not measured.
            drop(side.holder);
            side.cycler.end().await.expect("a process");
        }
    });
}

/// One whole period of renewals: locks that were taken at once are renewed at once.
async fn renew(sides: &mut [Side]) {
    let period = TTL / 3;
    let mut before = Vec::new();
    for side in &mut *sides {
        side.holder.tell(&format!("renew {period}")).await.expect("a process");
        before.push(side.target.spent());
    }
    for (side, before) in sides.iter_mut().zip(before) {
        let told = side.holder.answer().await.expect("figures");
        let server = side.target.spent() - before;
        let figure = |field: &str| told[field].as_f64().expect("a figure");
        assert!(figure("lost") < 1.0, "{told}");
        let renewed = figure("renewed");
        side.renewals.push(Cost { client: figure("spent") / renewed, server: server / renewed });
    }
}

impl Side {
    async fn start(name: &str, start: fn() -> Target, size: usize) -> Self {
        let target = start();
        let mut workers = Vec::new();
        for _ in 0..2 {
            let mut worker = Worker::start(player("growth", &target.url, 0)).expect("a process");
            worker.ready().await.expect("a process");
            // What the first time brings along is not measured.
            worker.tell("cycle 1000").await.expect("a process");
            worker.answer().await.expect("cycles");
            workers.push(worker);
        }
        let (cycler, mut holder) = (workers.remove(0), workers.remove(0));
        let (spent, memory) = (target.spent(), target.memory());
        holder.tell(&format!("hold {size} {TTL}")).await.expect("a process");
        let told = holder.answer().await.expect("all held");
        let server = (target.spent() - spent) / size as f64;
        let figure = |field: &str| told[field].as_f64().expect("a figure");
        let (client_kb, server_kb) =
            (figure("bytes_each") / 1e3, (target.memory() - memory) / size as f64 / 1e3);
        let rate = size as f64 / figure("took");
        let detail = format!("{server_kb:.2} kB at the server");
        // What a process has anyway weighs on few locks.
        let goal = (size >= 100_000).then_some(Goal::AtMost(2.0));
        report_number(&format!("{name}, {size} held for a minute: kB each"), client_kb, &detail, goal);
        let detail =
            format!("{:.1} us client, {server:.1} us server, CPU each", figure("spent") / size as f64);
        report_number(&format!("{name}, {size} held: taken a second"), rate, &detail, None);
        add_row(json!({
            "target": name, "operation": "memory", "what": "held", "size": size,
            "client_kb": client_kb, "server_kb": server_kb, "taken_per_s": rate,
        }));
        Self { target, holder, cycler, cycles: Vec::new(), renewals: Vec::new() }
    }

    async fn cycle(&mut self) {
        let before = self.target.spent();
        self.cycler.tell(&format!("cycle {CYCLES}")).await.expect("a process");
        let told = self.cycler.answer().await.expect("figures");
        let each = |spent: f64| spent / CYCLES as f64;
        let client = each(told["spent"].as_f64().expect("a figure"));
        self.cycles.push(Cost { client, server: each(self.target.spent() - before) });
    }

    fn signal(&self, signal: Signal) {
        let pid = self.holder.pid().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        kill_process(pid.expect("it runs"), signal).expect("a process of ours");
    }
}
