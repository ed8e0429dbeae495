//! What one bad node of five costs: dead, frozen (`SIGSTOP`) or slow.

use std::time::{Duration, Instant};

use fencepost::{Lock, Locks};
use fencepost_testkit::Proxy;
use fencepost_testkit::redis::Server;
use tokio::runtime::Runtime;

use super::{Deployment, NODES, peer};
use crate::cycle::{Cycle, by_tasks, names};
use crate::results::Goal;
use crate::rounds::{SLICE, Slice, report_number, report_rates, report_times};
use crate::usage::memory;

const BAD: usize = NODES - 1;
const PAIRS: usize = 10;
/// Longer than a node's answer is waited for, so that what a client does then is measured as well.
const FROZEN: Duration = Duration::from_millis(1500);
/// How long a peer gets that may not come back at all.
const PATIENCE: Duration = Duration::from_secs(3);

/// Goes through cycles for so long, and gives up on the last one then.
fn cycles_within(runtime: &Runtime, cycle: &impl Cycle, span: Duration) -> Slice {
    let mut out = Slice::default();
    let started = Instant::now();
    runtime.block_on(async {
        loop {
            let before = Instant::now();
            let left = span.saturating_sub(started.elapsed());
            if tokio::time::timeout(left, cycle.run()).await.is_err() {
                break;
            }
            out.times.push(before.elapsed());
        }
    });
    if out.times.is_empty() {
        // None at all; counted as one, so that there is a ratio.
        out.times.push(span);
    }
    out.took = started.elapsed();
    out
}

/// The times of acquiring alone.
fn acquires(runtime: &Runtime, lock: &Lock, span: Duration) -> Slice {
    let mut out = Slice::default();
    let started = Instant::now();
    runtime.block_on(async {
        while started.elapsed() < span {
            let before = Instant::now();
            let guard = lock.acquire().await.expect("the lock");
            out.times.push(before.elapsed());
            guard.release().await.expect("a release");
        }
    });
    out.took = started.elapsed();
    out
}

/// Lets a node go on, and waits until the client asks it again for good.
fn thaw(runtime: &Runtime, node: &Server, lock: &Lock) {
    node.resume();
    let mut asked = 0;
    // More than once: at first the node works off what had gathered for it.
    while asked < 3 {
        let before = node.evalsha_calls();
        acquires(runtime, lock, Duration::from_millis(50));
        asked = if node.evalsha_calls() > before { asked + 1 } else { 0 };
    }
}

pub(super) fn beside_peer(Deployment { fleet, runtime, locks, .. }: &Deployment) {
    let (lock, manager) = (locks.lock("bench:frozen"), peer::connect(fleet));
    let pairs: Vec<_> = (0..3)
        .map(|round| {
            let theirs = peer::lock(&manager, format!("peer:frozen:{round}"));
            runtime.block_on(theirs.run());
            fleet[BAD].pause();
            let pair = (cycles_within(runtime, &lock, FROZEN), cycles_within(runtime, &theirs, PATIENCE));
            thaw(runtime, &fleet[BAD], &lock);
            pair
        })
        .collect();
    report_rates("redlock, one node frozen: rate / rslock", Some(100.0), &pairs);
}

pub(super) fn frozen(Deployment { fleet, runtime, locks, .. }: &Deployment) {
    let lock = locks.lock("bench:frozen");
    let pairs: Vec<_> = (0..PAIRS)
        .map(|_| {
            let healthy = acquires(runtime, &lock, SLICE);
            fleet[BAD].pause();
            let frozen = acquires(runtime, &lock, FROZEN);
            thaw(runtime, &fleet[BAD], &lock);
            (frozen, healthy)
        })
        .collect();
    report_times("redlock, one node frozen: acquire / healthy", Some(1.3), &pairs);
}

/// A node that was restarted does not vote for a while: so a second fleet, one of which stays dead.
pub(super) fn dead(healthy: &Deployment) {
    let mut other = Deployment::start();
    other.fleet[BAD].kill();
    let [lock, crippled] = [&healthy.locks, &other.locks].map(|locks| locks.lock("bench:dead"));
    let pairs: Vec<_> = (0..PAIRS)
        .map(|_| {
            let healthy = acquires(&healthy.runtime, &lock, SLICE);
            (acquires(&other.runtime, &crippled, SLICE), healthy)
        })
        .collect();
    report_times("redlock, one node dead: acquire / healthy", Some(1.3), &pairs);
}

/// Full load for so long; returns how many cycles there were.
fn load(runtime: &Runtime, locks: &Locks, span: Duration) -> usize {
    let (started, mut cycles) = (Instant::now(), 0);
    while started.elapsed() < span {
        cycles += by_tasks(runtime, names(locks)).times.len();
    }
    cycles
}

fn report_memory(what: &str, runtime: &Runtime, locks: &Locks, turn_bad: impl FnOnce()) {
    load(runtime, locks, Duration::from_secs(2));
    let before = memory() / f64::from(1 << 20);
    turn_bad();
    let cycles = load(runtime, locks, Duration::from_secs(6));
    let after = memory() / f64::from(1 << 20);
    let detail = format!("{before:.1} MiB before, {after:.1} after {cycles} cycles");
    report_number(what, after / before, &detail, Some(Goal::AtMost(1.5)));
}

pub(super) fn memory_while_frozen(Deployment { fleet, runtime, locks, .. }: &Deployment) {
    report_memory("redlock, memory with a frozen node", runtime, locks, || fleet[BAD].pause());
    thaw(runtime, &fleet[BAD], &locks.lock("bench:frozen"));
}

pub(super) fn memory_while_slow() {
    let mut proxy = None;
    let deployment = Deployment::start_at(|fleet| {
        let between = proxy.insert(Proxy::start(fleet[BAD].addr()));
        let mut addrs: Vec<_> = fleet.iter().map(Server::addr).collect();
        addrs[BAD] = between.addr();
        let addrs: Vec<_> = addrs.iter().map(ToString::to_string).collect();
        format!("redlock://{}", addrs.join(","))
    });
    let slow = || {
        if let Some(proxy) = &proxy {
            proxy.delay(Duration::from_millis(100));
        }
    };
    report_memory("redlock, memory with a slow node", &deployment.runtime, &deployment.locks, slow);
}
