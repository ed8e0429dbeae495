//! Locks on a majority of five nodes.

mod cpu;
mod crowd;
mod fanout;
mod faults;
mod peer;

use std::time::Duration;

use fencepost::Locks;
use fencepost_testkit::redis::{Fleet, Server};
use tokio::runtime::Runtime;

use self::cpu::Bill;
use self::fanout::Fanout;
use crate::cycle::{by_tasks, names, one_by_one, runtime};
use crate::results::Goal;
use crate::rounds::{Slice, report_number, report_rates, report_times};

const NODES: usize = 5;

/// Five nodes that vote, and a client of them.
struct Deployment {
    fleet: Fleet,
    runtime: Runtime,
    url: String,
    locks: Locks,
}

impl Deployment {
    fn start() -> Self {
        Self::start_at(|fleet| fleet.url())
    }

    /// The same by way of other addresses.
    fn start_at(url: impl FnOnce(&Fleet) -> String) -> Self {
        let (fleet, runtime) = (Fleet::start(NODES), runtime());
        let url = url(&fleet);
        let locks = runtime.block_on(async {
            Locks::init(&url, false).await.expect("a new deployment");
            Locks::connect(&url).await.expect("a store")
        });
        Self { fleet, runtime, url, locks }
    }
}

pub(crate) fn run(rounds: usize) {
    let deployment = Deployment::start();
    cycles(&deployment, rounds);
    round_trips(&deployment);
    faults::beside_peer(&deployment);
    faults::frozen(&deployment);
    faults::dead(&deployment);
    faults::memory_while_frozen(&deployment);
    faults::memory_while_slow();
    crowd::run(&deployment);
}

fn cycles(Deployment { fleet, runtime, locks, .. }: &Deployment, rounds: usize) {
    let (mut fanout, manager) = (Fanout::connect(fleet), peer::connect(fleet));
    let (lock, theirs) = (locks.lock("bench:one"), peer::lock(&manager, "peer:one"));
    let (mut bare, mut one, mut many) = (vec![], vec![], vec![]);
    let mut bills: [Bill; 5] = Default::default();
    let [one_bill, bare_bill, their_one, many_bill, their_many] = &mut bills;
    for _ in 0..rounds {
        let ours = one_bill.add(fleet, || one_by_one(runtime, &lock));
        bare.push((ours, bare_bill.add(fleet, || fanout.cycles())));
        let ours = one_bill.add(fleet, || one_by_one(runtime, &lock));
        one.push((ours, their_one.add(fleet, || one_by_one(runtime, &theirs))));
        let ours = many_bill.add(fleet, || by_tasks(runtime, names(locks)));
        many.push((ours, their_many.add(fleet, || by_tasks(runtime, peer::names(&manager)))));
    }
    report_times("redlock, one task: cycle / bare fan-out", Some(1.4), &bare);
    cpu::report("redlock, one task: CPU / bare fan-out", one_bill, bare_bill);
    report_rates("redlock, one task: rate / rslock", Some(1.2), &one);
    cpu::report("redlock, one task: CPU / rslock", one_bill, their_one);
    report_rates("redlock, 64 tasks: rate / rslock", Some(0.9), &many);
    cpu::report("redlock, 64 tasks: CPU / rslock", many_bill, their_many);
}

/// How often each node is asked in one cycle: once to acquire, once to release; together with others if there are many.
fn round_trips(Deployment { fleet, runtime, locks, .. }: &Deployment) {
    let lock = locks.lock("bench:count");
    report_calls("redlock, one task: scripts a node and cycle", fleet, || one_by_one(runtime, &lock));
    report_calls("redlock, 64 tasks: scripts a node and cycle", fleet, || by_tasks(runtime, names(locks)));
}

fn report_calls(what: &str, fleet: &Fleet, measure: impl Fn() -> Slice) {
    let before = calls(fleet);
    let cycles = measure().times.len() as f64;
    let each = calls(fleet).into_iter().zip(before).map(|(after, before)| (after - before) as f64 / cycles);
    let each: Vec<_> = each.collect();
    let mean = each.iter().sum::<f64>() / NODES as f64;
    let each: Vec<_> = each.iter().map(|calls| format!("{calls:.2}")).collect();
    report_number(what, mean, &each.join(" "), Some(Goal::AtMost(2.0)));
}

/// How many scripts each node has run, once the slower ones have caught up.
fn calls(fleet: &Fleet) -> Vec<u64> {
    let count = || fleet.iter().map(Server::evalsha_calls).collect::<Vec<_>>();
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
