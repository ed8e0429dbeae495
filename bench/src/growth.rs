//! What an operation costs as the number of names, or of those who wait for one, grows.

use std::time::{Duration, Instant};

use fencepost::Locks;
use fencepost_measure::usage::processor_time;
use fencepost_testkit::redis::Server;

use crate::cycle::runtime;
use crate::results::{Goal, progress};
use crate::rounds::{SLICE, report_number};

/// Hand-overs that are counted for each number of waiters.
const HANDOVERS: usize = 400;

pub(crate) fn run(_: usize) {
    names();
    waiters();
}

/// Processor time of one cycle, client and server, by turns over so many names.
fn names() {
    let (server, runtime) = (Server::start(), runtime());
    let locks = runtime.block_on(Locks::connect(&server.url())).expect("a store");
    let mut first = None;
    for count in [1, 100, 10_000, 100_000] {
        progress(&format!("redis, {count} names"));
        let mut number = 0;
        let mut cycle = || {
            let lock = locks.lock(format!("growth:{number}"));
            number = (number + 1) % count;
            runtime.block_on(async {
                lock.acquire().await.expect("the lock").release().await.expect("a release");
            });
        };
        // Each name has been there once.
        (0..count).for_each(|_| cycle());
        let spent = || processor_time(std::process::id()) + processor_time(server.pid());
        let (before, started, mut cycles) = (spent(), Instant::now(), 0.0);
        while started.elapsed() < SLICE * 4 {
            cycle();
            cycles += 1.0;
        }
        let each = (spent() - before) / 1e3 / cycles;
        let ratio = each / *first.get_or_insert(each);
        report_number(
            &format!("redis, {count} names: CPU a cycle / 1 name"),
            ratio,
            &format!("{each:.1} us"),
            None,
        );
    }
}

/// Requests to the server for one hand-over, with so many clients in the queue; each is one script.
fn waiters() {
    for count in [1, 10, 100, 1000] {
        progress(&format!("redis, {count} waiters"));
        let (server, runtime) = (Server::start(), runtime());
        let url = server.url();
        let requests = || server.evalsha_calls();
        let each = runtime.block_on(async {
            let mut clients = Vec::new();
            for _ in 0..=count {
                clients.push(Locks::connect(&url).await.expect("a store"));
            }
            let running: Vec<_> = clients
                .iter()
                .map(|client| {
                    let lock = client.lock("growth:one");
                    tokio::spawn(async move {
                        loop {
                            let guard = lock.acquire().await.expect("the lock");
                            tokio::time::sleep(Duration::from_millis(1)).await;
                            guard.release().await.expect("a release");
                        }
                    })
                })
                .collect();
            let got = || clients.iter().map(|client| client.stats().acquired).sum::<u64>() as usize;
            // Everybody stands in the queue first.
            while got() < count + 1 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let (before, from) = (requests(), got());
            while got() < from + HANDOVERS {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let each = (requests() - before) as f64 / (got() - from) as f64;
            running.iter().for_each(tokio::task::JoinHandle::abort);
            each
        });
        let goal = (count == 1000).then_some(Goal::AtMost(10.0));
        report_number(&format!("redis, {count} waiters: requests a hand-over"), each, "", goal);
    }
}
