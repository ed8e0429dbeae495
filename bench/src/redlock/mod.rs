//! Locks on a majority of five nodes.

mod cpu;
mod crowd;
pub(crate) mod fanout;
mod faults;
mod load;

use std::time::Duration;

use fencepost::Locks;
use fencepost_testkit::redis::{Nodes, Server};
use tokio::runtime::Runtime;

use self::cpu::Bill;
use self::fanout::Fanout;
use crate::cycle::{TASKS, by_tasks, names, one_by_one, runtime};
use crate::results::{Goal, progress};
use crate::rounds::{Slice, report_number, report_rates, report_times};

const NODES: usize = 5;

/// Five nodes that vote, and a client of them.
struct Deployment {
    nodes: Nodes,
    runtime: Runtime,
    url: String,
    locks: Locks,
}

impl Deployment {
    fn start() -> Self {
        Self::start_at(|nodes| nodes.url())
    }

    /// The same by way of other addresses.
    fn start_at(url: impl FnOnce(&Nodes) -> String) -> Self {
        let (nodes, runtime) = (Nodes::start(NODES), runtime());
        let url = url(&nodes);
        let locks = runtime.block_on(async {
            Locks::init(&url).await.expect("a new deployment");
            Locks::connect(&url).await.expect("a store")
        });
        Self { nodes, runtime, url, locks }
    }
}

pub(crate) fn run(rounds: usize) {
    let deployment = Deployment::start();
    cycles(&deployment, rounds);
    round_trips(&deployment);
    faults::frozen(&deployment);
    faults::dead(&deployment, rounds);
    faults::frozen_under_load(&deployment, rounds);
    faults::slow_under_load();
    crowd::run(&deployment);
}

fn cycles(Deployment { nodes, runtime, locks, .. }: &Deployment, rounds: usize) {
    progress("redlock, cycles");
    let (mut fanout, lock) = (Fanout::connect(nodes), locks.lock("bench:one"));
    let (mut one, mut many) = (vec![], vec![]);
    let mut bills: [Bill; 2] = Default::default();
    let [ours_bill, bare_bill] = &mut bills;
    for _ in 0..rounds {
        let ours = ours_bill.add(nodes, || one_by_one(runtime, &lock));
        one.push((ours, bare_bill.add(nodes, || fanout.cycles())));
        many.push((by_tasks(runtime, names(locks, TASKS)), fanout.cycles()));
    }
    report_times("redlock, one task: cycle / bare fan-out", Some(1.4), &one);
    cpu::report("redlock, one task: CPU / bare fan-out", ours_bill, bare_bill);
    report_rates("redlock, 64 tasks: rate / one bare fan-out", None, &many);
}

/// How often each node is asked in one cycle: once to acquire, once to release; together with others if there
/// are many.
fn round_trips(Deployment { nodes, runtime, locks, .. }: &Deployment) {
    let lock = locks.lock("bench:count");
    report_calls("redlock, one task: scripts a node and cycle", nodes, || one_by_one(runtime, &lock));
    report_calls("redlock, 64 tasks: scripts a node and cycle", nodes, || {
        by_tasks(runtime, names(locks, TASKS))
    });
}

fn report_calls(what: &str, nodes: &Nodes, measure: impl Fn() -> Slice) {
    let before = calls(nodes);
    let cycles = measure().times.len() as f64;
    let each = calls(nodes).into_iter().zip(before).map(|(after, before)| (after - before) as f64 / cycles);
    let each: Vec<_> = each.collect();
    let mean = each.iter().sum::<f64>() / NODES as f64;
    let each: Vec<_> = each.iter().map(|calls| format!("{calls:.2}")).collect();
    report_number(what, mean, &each.join(" "), Some(Goal::AtMost(2.0)));
}

/// How many scripts each node has run, once the slower ones have caught up.
fn calls(nodes: &Nodes) -> Vec<u64> {
    let count = || nodes.iter().map(Server::evalsha_calls).collect::<Vec<_>>();
    let mut last = count();
    loop {
        std::thread::sleep(Duration::from_millis(50));
        let now = count();
        if now == last {
            return now;
        }
        last = now;
    }
}
