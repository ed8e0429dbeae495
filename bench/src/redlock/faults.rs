//! What one bad node of five costs: dead, frozen (`SIGSTOP`) or slow.

use std::time::{Duration, Instant};

use fencepost::{Lock, Locks};
use fencepost_measure::Times;
use fencepost_measure::usage::{memory, threads};
use fencepost_testkit::Proxy;
use fencepost_testkit::redis::Server;
use tokio::runtime::Runtime;

use super::{Deployment, NODES};
use crate::cycle::{TASKS, by_tasks, names};
use crate::results::{Goal, progress};
use crate::rounds::{SLICE, Slice, report_number, report_times};

const BAD: usize = NODES - 1;
const PAIRS: usize = 10;
/// Longer than a node's answer is waited for, so that what a client does then is measured as well.
const FROZEN: Duration = Duration::from_millis(1500);
/// How long a node is bad under load, if there are enough rounds.
const LONG: Duration = Duration::from_secs(60);

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

pub(super) fn frozen(Deployment { fleet, runtime, locks, .. }: &Deployment) {
    progress("redlock, one node frozen");
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
    report_times("redlock, one node frozen: acquire / healthy", Some(1.2), &pairs);
}

/// A node that was restarted does not vote for a while: so a second fleet, one of which stays dead.
pub(super) fn dead(healthy: &Deployment, rounds: usize) {
    progress("redlock, one node dead");
    let mut other = Deployment::start();
    other.fleet[BAD].kill();
    let [lock, crippled] = [&healthy.locks, &other.locks].map(|locks| locks.lock("bench:dead"));
    let pairs: Vec<_> = (0..PAIRS)
        .map(|_| {
            let healthy = acquires(&healthy.runtime, &lock, SLICE);
            (acquires(&other.runtime, &crippled, SLICE), healthy)
        })
        .collect();
    report_times("redlock, one node dead: acquire / healthy", Some(1.2), &pairs);
    drop(other);
    let Deployment { mut fleet, runtime, locks, .. } = Deployment::start();
    report_load("a dead node", (&runtime, &locks), long(rounds), || fleet[BAD].kill());
}

/// Full load for so long; returns the times of the cycles.
fn load(runtime: &Runtime, locks: &Locks, span: Duration) -> Times {
    let (started, mut times) = (Instant::now(), Vec::new());
    while started.elapsed() < span {
        times.extend(by_tasks(runtime, names(locks, TASKS)).times);
    }
    Times::new(times, started.elapsed())
}

/// What a node that is bad for long does to a client under load: its memory, its threads, and the slowest of its cycles.
fn report_load(what: &str, (runtime, locks): (&Runtime, &Locks), span: Duration, turn_bad: impl FnOnce()) {
    let mebibytes = || memory() / f64::from(1 << 20);
    progress(&format!("redlock, {what} under load"));
    load(runtime, locks, span.min(Duration::from_secs(2)));
    let healthy = load(runtime, locks, span / 4);
    turn_bad();
    // What it takes to get used to it is no growth.
    load(runtime, locks, span.min(Duration::from_secs(5)));
    let before = (mebibytes(), threads());
    let bad = load(runtime, locks, span);
    let after = (mebibytes(), threads());
    let detail =
        format!("{:.1} MiB before, {:.1} after {} cycles in {span:?}", before.0, after.0, bad.count());
    let flat = Some(Goal::AtMost(1.1));
    report_number(&format!("redlock, {what} under load: memory"), after.0 / before.0, &detail, flat);
    let detail = format!("{} beside {}", after.1, before.1);
    let flat = Some(Goal::AtMost(0.0));
    report_number(&format!("redlock, {what} under load: more threads"), after.1 - before.1, &detail, flat);
    let [slow, slow_healthy] = [&bad, &healthy].map(|times| times.microseconds(99));
    let detail = format!("{slow:.0} us beside {slow_healthy:.0} us");
    let twice = Some(Goal::AtMost(2.0));
    report_number(
        &format!("redlock, {what} under load: p99 / healthy"),
        slow / slow_healthy,
        &detail,
        twice,
    );
}

/// A minute, and less where fewer rounds than by default are asked for.
fn long(rounds: usize) -> Duration {
    LONG.min(Duration::from_secs(4) * u32::try_from(rounds).unwrap_or(u32::MAX))
}

pub(super) fn frozen_under_load(Deployment { fleet, runtime, locks, .. }: &Deployment, rounds: usize) {
    report_load("a frozen node", (runtime, locks), long(rounds), || fleet[BAD].pause());
    thaw(runtime, &fleet[BAD], &locks.lock("bench:frozen"));
}

pub(super) fn slow_under_load() {
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
    report_load("a slow node", (&deployment.runtime, &deployment.locks), Duration::from_secs(6), slow);
}
