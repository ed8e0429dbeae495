//! Many locks held at once, and kept by renewal alone. A process of its own holds them: its memory is that of the locks.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fencepost::{Guard, Locks};
use fencepost_testkit::redis::{Fleet, Server};

use crate::cycle::runtime;
use crate::results::Goal;
use crate::rounds::report_number;
use crate::usage::{memory, processor_time, threads};

const TTL: Duration = Duration::from_secs(5);

/// How long they are watched once all are held: more than two ttls.
const SPAN: Duration = Duration::from_secs(12);

/// How many are asked for at once.
const ABREAST: usize = 64;

/// The process that holds them. Tells how many were lost, what one takes in bytes, the share of one core that
/// keeping them takes, and its threads.
pub(crate) fn play(url: &str, count: &str) {
    let count: usize = count.parse().expect("a number");
    let told = runtime().block_on(async {
        let locks = Locks::connect(url).await.expect("a store");
        // What the first lock brings along, threads and connections, is not counted for the others.
        locks
            .lock("held:first")
            .ttl(TTL)
            .acquire()
            .await
            .expect("the lock")
            .release()
            .await
            .expect("a release");
        let before = memory();
        let guards = acquire(&locks, count).await;
        // All in their stride before it is measured.
        tokio::time::sleep(TTL).await;
        let (spent, started) = (processor_time(std::process::id()), Instant::now());
        tokio::time::sleep(SPAN).await;
        let share = (processor_time(std::process::id()) - spent) / started.elapsed().as_nanos() as f64;
        let lost = guards.iter().filter(|guard| guard.check().is_err()).count();
        let each = (memory() - before) / count as f64;
        format!("{lost} {each} {share} {}", threads())
    });
    println!("{told}");
    // Giving back a hundred thousand locks is not measured, and the servers are about to end.
    std::process::exit(0);
}

async fn acquire(locks: &Locks, count: usize) -> Vec<Guard> {
    let running: Vec<_> = (0..ABREAST)
        .map(|lane| {
            let locks = locks.clone();
            tokio::spawn(async move {
                let mut guards = Vec::new();
                for number in (lane..count).step_by(ABREAST) {
                    let lock = locks.lock(format!("held:{number}")).ttl(TTL);
                    guards.push(lock.acquire().await.expect("the lock"));
                }
                guards
            })
        })
        .collect();
    let mut guards = Vec::with_capacity(count);
    for lane in running {
        guards.extend(lane.await.expect("a task"));
    }
    guards
}

fn measure(what: &str, url: &str, servers: &[&Server], count: usize) {
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--play=held", url, &count.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let calls = || servers.iter().map(|server| server.evalsha_calls()).sum::<u64>();
    let (before, started) = (calls(), Instant::now());
    let output = child.wait_with_output().expect("its end");
    let calls = (calls() - before) as f64 / started.elapsed().as_secs_f64();
    assert!(output.status.success(), "the holder failed");
    let told = String::from_utf8_lossy(&output.stdout);
    let figures: Vec<f64> = told.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    let [lost, each, share, threads] = figures[..] else { panic!("{told}") };
    report_number(&format!("{what}, {count} held: lost"), lost, "", Some(Goal::AtMost(0.0)));
    report_number(&format!("{what}, {count} held: kB each"), each / 1000.0, "", Some(Goal::AtMost(2.0)));
    // The goal is for ten thousand.
    let goal = (count == 10_000).then_some(Goal::AtMost(0.05));
    let detail = format!("{threads} threads, {calls:.0} scripts/s at the servers, acquiring included");
    report_number(&format!("{what}, {count} held: share of a core"), share, &detail, goal);
}

pub(crate) fn run() {
    for count in [10_000, 100_000] {
        let server = Server::start();
        measure("redis", &server.url(), &[&server], count);
    }
    let fleet = Fleet::start(5);
    let url = fleet.url();
    runtime().block_on(Locks::init(&url, false)).expect("a new deployment");
    measure("redlock", &url, &fleet.iter().collect::<Vec<_>>(), 10_000);
}
