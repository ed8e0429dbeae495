//! Waiters that do not react: blocked, not polled, stopped, dead. They cost the others about a second, once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencepost::Locks;
use fencepost_testkit::redis::Server;
use tokio::runtime::{Builder, Runtime};

use crate::harness::{bounded, connect, ms, poll_once, queue_length, queues, secs, until};

/// A second for each group that does not react, and some for a busy machine. It was five to ten before.
const SOON: Duration = Duration::from_secs(3);

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn a_runtime_that_blocks_keeps_the_lock_from_nobody_else() {
    let server = Server::start();
    let [holding, blocked, healthy] = [(); 3].map(|()| runtime());
    let locks = blocked.block_on(connect(&server));
    let other = holding.block_on(connect(&server));
    let held = holding.block_on(other.lock("a").acquire()).unwrap();
    // Several of them: they do not cost a second each.
    for place in 1..=4 {
        let lock = locks.lock("a");
        blocked.spawn(async move { lock.acquire().await.map(drop) });
        holding.block_on(queues(&server, "a", place));
    }
    let (entered, started) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    blocked.spawn(async move {
        entered.send(()).unwrap();
        let _ = ended.recv();
    });
    started.recv().unwrap();
    let waiter = healthy.spawn({
        let lock = locks.lock("a");
        async move { lock.acquire().await.map(|guard| (Instant::now(), drop(guard)).0) }
    });
    holding.block_on(queues(&server, "a", 5));
    let released = Instant::now();
    holding.block_on(held.release()).unwrap();
    let served = holding.block_on(bounded("the healthy one is served", waiter)).unwrap().unwrap();
    drop(end);
    assert!(served - released < SOON, "{:?}", served - released);
}

#[tokio::test]
async fn a_waiter_that_nobody_polls_keeps_the_lock_from_nobody_else() {
    let server = Server::start();
    let (locks, other) = (connect(&server).await, connect(&server).await);
    let held = locks.lock("a").acquire().await.unwrap();
    let lazy = locks.lock("a").ttl(secs(60));
    let mut lazy = Box::pin(lazy.acquire());
    while queue_length(&server, "a") == 0 {
        poll_once(&mut lazy).await;
        tokio::time::sleep(ms(1)).await;
    }
    let waiters = [&locks, &other].map(|locks| {
        let lock = locks.lock("a").ttl(secs(60));
        tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() })
    });
    queues(&server, "a", 3).await;
    let released = Instant::now();
    held.release().await.unwrap();
    for waiter in waiters {
        bounded("the others are served", waiter).await.unwrap();
    }
    assert!(released.elapsed() < SOON, "{:?}", released.elapsed());
    drop(lazy);
}

/// Somebody who listens to all channels, such as a monitor, does not make the dead look alive.
#[tokio::test]
async fn waiters_that_died_cost_nothing_though_somebody_listens_to_everything() {
    let server = Arc::new(Server::start());
    let mut monitor = std::process::Command::new("redis-cli")
        .args(["-p", &server.addr().port().to_string(), "PSUBSCRIBE", "*"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    crate::harness::until("it listens", async || server.cli(&["PUBSUB", "NUMPAT"]) == "1").await;
    let held = connect(&server).await.lock("a").ttl(secs(60)).acquire().await.unwrap();
    // Entries of processes that are gone.
    let dead = |number: u64| {
        format!(
            "{:08}-0000-7000-8000-{number:012} {number:016x} {{\"host\":\"h\",\"pid\":1,\"since\":1}}",
            number
        )
    };
    for number in 0..10 {
        server.cli(&["RPUSH", "{lock:a}:waiting", &dead(number)]);
    }
    let waiter = tokio::spawn({
        let lock = connect(&server).await.lock("a");
        async move { lock.acquire().await.map(|guard| (Instant::now(), drop(guard)).0) }
    });
    queues(&server, "a", 11).await;
    let released = Instant::now();
    held.release().await.unwrap();
    let served = bounded("the live one is served", waiter).await.unwrap().unwrap();
    monitor.kill().unwrap();
    monitor.wait().unwrap();
    // Eight milliseconds; ten seconds when each of the dead had its turn.
    assert!(served - released < SOON, "{:?}", served - released);
}

/// How often the server has run a command.
fn calls(server: &Server, command: &str) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let start = format!("cmdstat_{command}:calls=");
    let count = stats.lines().find_map(|line| line.strip_prefix(&start)?.split(',').next()?.parse().ok());
    count.unwrap_or(0)
}

/// So many tasks that wait for the lock, once they stand in its queue.
async fn crowd(server: &Server, locks: &Locks, count: u64) -> Vec<tokio::task::JoinHandle<()>> {
    let waiters = (0..count).map(|_| {
        let lock = locks.lock("a");
        tokio::spawn(async move {
            loop {
                let guard = lock.acquire().await.unwrap();
                guard.release().await.unwrap();
            }
        })
    });
    let waiters = waiters.collect();
    queues(server, "a", count).await;
    waiters
}

/// A waiter looks the later the further back it stands, and the longer it has waited.
#[tokio::test]
async fn a_long_queue_asks_little() {
    let server = Server::start();
    let (holder, locks) = (connect(&server).await, connect(&server).await);
    let held = holder.lock("a").ttl(secs(60)).without_renewal().acquire().await.unwrap();
    let waiters = crowd(&server, &locks, 200).await;
    let (looks, searches) = (calls(&server, "pexpire"), calls(&server, "lpos"));
    tokio::time::sleep(secs(3)).await;
    let looks = calls(&server, "pexpire") - looks;
    // Some 30 a second; 200 waiters that look every 0.35 to 0.7 seconds make 400.
    assert!(looks < 300, "{looks} looks in three seconds");
    // Nobody has moved, so nobody is searched for from the head.
    assert_eq!(calls(&server, "lpos"), searches);
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
    held.release().await.unwrap();
}

/// A hand-over is two scripts, and what they do does not depend on how many wait.
#[tokio::test]
async fn a_hand_over_costs_the_same_however_many_wait() {
    const COMMANDS: [&str; 5] = ["evalsha", "set", "lpop", "rpush", "lindex"];
    let mut costs = Vec::new();
    for count in [10, 1_000] {
        let server = Server::start();
        let (holder, locks) = (connect(&server).await, connect(&server).await);
        let held = holder.lock("a").acquire().await.unwrap();
        let waiters = crowd(&server, &locks, count).await;
        let before = COMMANDS.map(|command| calls(&server, command));
        let granted = locks.stats().acquired;
        held.release().await.unwrap();
        until("they took turns", async || locks.stats().acquired >= granted + 5_000).await;
        waiters.iter().for_each(tokio::task::JoinHandle::abort);
        let turns = (locks.stats().acquired - granted) as f64;
        let after = COMMANDS.map(|command| calls(&server, command));
        costs.push([0, 1, 2, 3, 4].map(|which| (after[which] - before[which]) as f64 / turns));
    }
    // Two scripts, two writes of strings, one of each end of the queue. A busy machine adds looks and
    // renewals.
    for cost in &costs {
        assert!(cost.iter().all(|count| *count < 3.5), "{costs:?}");
    }
    assert!(costs[1].iter().sum::<f64>() < costs[0].iter().sum::<f64>() * 1.5, "{costs:?}");
}

/// What a lock takes at the server for as long as it is held: its key and its fence.
#[tokio::test]
async fn a_held_lock_takes_little_memory_of_the_server() {
    let server = Server::start();
    let locks = connect(&server).await;
    let used = || -> u64 {
        let memory = server.cli(&["INFO", "memory"]);
        memory.lines().find_map(|line| line.strip_prefix("used_memory:")?.parse().ok()).unwrap()
    };
    let before = used();
    let mut guards = Vec::new();
    for number in 0..5_000 {
        guards.push(locks.lock(format!("held:{number}")).acquire().await.unwrap());
    }
    let each = (used() - before) / 5_000;
    // About 400 bytes.
    assert!(each < 800, "{each} bytes each");
    assert_eq!(server.keys().len(), 10_000);
}

#[tokio::test]
async fn names_with_braces_form_a_hash_tag_or_are_refused() {
    let server = Server::start();
    let locks: Locks = connect(&server).await;
    for odd in ["a}b", "{}a", "}{"] {
        let error = locks.lock(odd).try_acquire().await.unwrap_err();
        assert!(matches!(error, fencepost::Error::Invalid { .. }), "{error:?}");
        assert!(locks.force_release(odd, "why").await.is_err());
    }
    let guard = locks.lock("a{b}c").acquire().await.unwrap();
    assert_eq!(server.keys_like("{b}:*"), ["{b}:lock:a%7Bb%7Dc:fence"]);
    guard.release().await.unwrap();
    assert!(server.keys_like("lock:*").is_empty());
}
