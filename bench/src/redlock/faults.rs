//! What one bad node of five costs: dead, frozen (`SIGSTOP`) or slow.

use std::time::{Duration, Instant};

use fencepost::Lock;
use fencepost_testkit::Proxy;
use fencepost_testkit::redis::Server;
use tokio::runtime::Runtime;

use super::load::report_load;
use super::{Deployment, NODES};
use crate::results::progress;
use crate::rounds::{SLICE, Slice, report_times};

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

pub(super) fn frozen(Deployment { nodes, runtime, locks, .. }: &Deployment) {
    progress("redlock, one node frozen");
    let lock = locks.lock("bench:frozen");
    let pairs: Vec<_> = (0..PAIRS)
        .map(|_| {
            let healthy = acquires(runtime, &lock, SLICE);
            nodes[BAD].pause();
            let frozen = acquires(runtime, &lock, FROZEN);
            thaw(runtime, &nodes[BAD], &lock);
            (frozen, healthy)
        })
        .collect();
    report_times("redlock, one node frozen: acquire / healthy", Some(1.2), &pairs);
}

/// A node that was restarted does not vote for a while: so a second deployment, a node of which stays dead.
pub(super) fn dead(healthy: &Deployment, rounds: usize) {
    progress("redlock, one node dead");
    let mut other = Deployment::start();
    other.nodes[BAD].kill();
    let [lock, crippled] = [&healthy.locks, &other.locks].map(|locks| locks.lock("bench:dead"));
    let pairs: Vec<_> = (0..PAIRS)
        .map(|_| {
            let healthy = acquires(&healthy.runtime, &lock, SLICE);
            (acquires(&other.runtime, &crippled, SLICE), healthy)
        })
        .collect();
    report_times("redlock, one node dead: acquire / healthy", Some(1.2), &pairs);
    drop(other);
    let Deployment { mut nodes, runtime, locks, .. } = Deployment::start();
    report_load("a dead node", (&runtime, &locks), long(rounds), || nodes[BAD].kill());
}

/// A minute, and less where fewer rounds than by default are asked for.
fn long(rounds: usize) -> Duration {
    LONG.min(Duration::from_secs(4) * u32::try_from(rounds).unwrap_or(u32::MAX))
}

pub(super) fn frozen_under_load(Deployment { nodes, runtime, locks, .. }: &Deployment, rounds: usize) {
    report_load("a frozen node", (runtime, locks), long(rounds), || nodes[BAD].pause());
    thaw(runtime, &nodes[BAD], &locks.lock("bench:frozen"));
}

pub(super) fn slow_under_load() {
    let mut proxy = None;
    let deployment = Deployment::start_at(|nodes| {
        let between = proxy.insert(Proxy::start(nodes[BAD].addr()));
        let mut addrs: Vec<_> = nodes.iter().map(Server::addr).collect();
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
