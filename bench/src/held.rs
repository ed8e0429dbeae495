//! Many locks held at once, and kept by renewal alone. A process of its own holds them: its memory is that of
//! the locks.

use std::time::{Duration, Instant};

use fencepost::Locks;
use fencepost_measure::Worker;
use fencepost_testkit::redis::{Nodes, Server};

use crate::cycle::runtime;
use crate::results::{Goal, progress};
use crate::rounds::report_number;
use crate::workers::locks;

/// How long they are watched once all are held: more than two ttls.
pub(crate) const SPAN: Duration = Duration::from_secs(12);

fn measure(what: &str, url: &str, servers: &[&Server], count: usize) {
    progress(&format!("{what}, {count} held"));
    let calls = || servers.iter().map(|server| server.evalsha_calls()).sum::<u64>();
    let (told, calls) = runtime().block_on(async {
        let mut worker = Worker::start(locks(url)).expect("a process");
        worker.ready().await.expect("a process");
        worker.tell(&format!("hold {count} {}", SPAN.as_secs())).await.expect("a process");
        worker.answer().await.expect("all held");
        let (before, started) = (calls(), Instant::now());
        let told = worker.answer().await.expect("figures");
        // It still has them: giving back a hundred thousand locks is not measured.
        (told, (calls() - before) as f64 / started.elapsed().as_secs_f64())
    });
    let [lost, each, share, threads] =
        ["lost", "bytes_each", "core", "threads"].map(|field| told[field].as_f64().expect("a figure"));
    report_number(&format!("{what}, {count} held: lost"), lost, "", Some(Goal::AtMost(0.0)));
    report_number(&format!("{what}, {count} held: kB each"), each / 1000.0, "", Some(Goal::AtMost(2.0)));
    // The goal is for ten thousand.
    let goal = (count == 10_000).then_some(Goal::AtMost(0.05));
    let detail = format!("{threads} threads");
    report_number(&format!("{what}, {count} held: share of a core"), share, &detail, goal);
    report_number(&format!("{what}, {count} held: scripts a second"), calls, "at all servers", None);
}

pub(crate) fn run(_: usize) {
    for count in [10_000, 100_000] {
        let server = Server::start();
        measure("redis", &server.url(), &[&server], count);
    }
    let nodes = Nodes::start(5);
    let url = nodes.url();
    runtime().block_on(Locks::init(&url)).expect("a new deployment");
    measure("redlock", &url, &nodes.iter().collect::<Vec<_>>(), 10_000);
}
