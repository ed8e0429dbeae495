//! Another server becomes master.

use std::sync::Arc;

use fencepost::Locks;
use fencepost_testkit::LIMIT;
use fencepost_testkit::redis::{Sentinel, Sentinels, Server};

use crate::harness::{REIGN, apart, bounded, connect, declared, declared_with, in_sync, ms, until, use_once};

async fn other_than(all: &Arc<Sentinels>, old: usize) -> usize {
    let all = all.clone();
    apart(move || all.await_other_than(old)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_the_replica_has_seen_outlives_its_master() {
    let mut all = declared_with(2, "max_ttl=12s").await;
    let (locks, other) = (connect(&all).await, connect(&all).await);
    let guard = locks.lock("a").acquire().await.unwrap();
    in_sync(&all[0], &all[1]).await;
    in_sync(&all[0], &all[2]).await;
    let waiter = tokio::spawn({
        let lock = other.lock("a").wait(LIMIT);
        async move { lock.acquire().await }
    });
    until("it stands in the queue", async || all[0].cli(&["LLEN", "{lock:a}:waiting"]) == "1").await;
    Arc::get_mut(&mut all).unwrap()[0].kill();
    let new = other_than(&all, 0).await;
    until("it is extended there", async || guard.extend().await.is_ok()).await;
    assert!(all[new].cli(&["GET", REIGN]).ends_with("switched"));
    let token = guard.token();
    guard.release().await.unwrap();
    let next = bounded("the waiter gets it after the quarantine", waiter).await.unwrap().unwrap();
    assert!(next.token() > token);
}

/// For some ten seconds it takes itself for the master, and says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_comes_back_too_late_is_not_asked() {
    let mut all = declared(2).await;
    let before = use_once(&connect(&all).await, "a").await;
    Arc::get_mut(&mut all).unwrap()[0].kill();
    let new = other_than(&all, 0).await;
    Arc::get_mut(&mut all).unwrap()[0].restart_as_configured();
    assert!(all[0].cli(&["INFO", "replication"]).contains("role:master"));
    let locks = connect(&all).await;
    let guard = bounded("the lock is granted", locks.lock("a").acquire()).await.unwrap();
    assert!(guard.token().get() > before);
    assert_eq!(all[new].keys_like("lock:a").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_through_failover_and_failback() {
    let all = declared(2).await;
    let locks = connect(&all).await;
    let mut last = use_once(&locks, "a").await;
    for _ in 0..2 {
        let there = all.clone();
        apart(move || there.fail_over()).await;
        for _ in 0..2 {
            let token = use_once(&locks, "a").await;
            assert!(token > last, "{token} after {last}");
            last = token;
        }
        let there = all.clone();
        apart(move || there.await_replicas()).await;
    }
}

/// Whether anything lies unread that came from one of these ports to a server.
#[cfg(target_os = "linux")]
fn has_unread(server: &Server, from: &[u16]) -> bool {
    let connections = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let number = |text: &str| u32::from_str_radix(text, 16).unwrap();
    connections.lines().skip(1).any(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let port = |at: usize| number(words[at].split_once(':').unwrap().1);
        let unread = number(words[4].split_once(':').unwrap().1);
        port(1) == u32::from(server.addr().port())
            && from.iter().any(|&from| port(2) == u32::from(from))
            && unread > 0
    })
}

/// Before it reads that its replicas have left it, it reads what they sent until then.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_stood_still_does_not_take_its_replicas_for_near() {
    let all = declared(2).await;
    let idle = connect(&all).await;
    use_once(&idle, "z").await;
    let port = |line: &str| line.split_once(" addr=127.0.0.1:")?.1.split_once(' ')?.0.parse().ok();
    let clients = all[0].cli(&["CLIENT", "LIST"]);
    let locked = clients.lines().filter(|line| line.contains(" cmd=evalsha "));
    let ports: Vec<u16> = locked.filter_map(port).collect();
    assert!(!ports.is_empty(), "{clients}");
    all[0].pause();
    other_than(&all, 0).await;
    let other = connect(&all).await;
    let guard = bounded("the lock is granted", other.lock("a").acquire()).await.unwrap();
    assert!(!has_unread(&all[0], &ports));
    let tried = tokio::spawn({
        let lock = idle.lock("a");
        async move { lock.try_acquire().await }
    });
    until("a request lies there", async || has_unread(&all[0], &ports)).await;
    all[0].resume();
    let tried = bounded("it is answered", tried).await.unwrap();
    let tried = tried.ok().flatten().map(|second| second.token());
    assert_eq!(tried, None, "two hold it; the other one has token {}", guard.token());
    guard.check().unwrap();
}

/// Lets two servers change their places while the sentinels see nothing: links stay open.
async fn change_places(master: &Server, replica: &Server) {
    let addr = replica.addr();
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    master.cli(&["REPLICAOF", &addr.ip().to_string(), &addr.port().to_string()]);
    until("it follows", async || {
        master.cli(&["INFO", "replication"]).contains("master_link_status:up")
            && replica.cli(&["INFO", "replication"]).contains("state=online")
    })
    .await;
}

/// What a new master says about waiters that it cannot reach, replication carries to the old one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_at_a_demoted_master_is_not_told_of_a_lock_that_others_get() {
    for _ in 0..3 {
        let all = declared_with(1, "failover=fast").await;
        let (master, replica) = (&all[0], &all[1]);
        let locks = connect(&all).await;
        let held = locks.lock("a").ttl(ms(60_000)).without_renewal().acquire().await.unwrap();
        let held = held.detach().await.unwrap();
        let waiter = tokio::spawn({
            let lock = locks.lock("a").ttl(ms(60_000));
            async move { lock.acquire().await }
        });
        until("it stands in the queue", async || master.cli(&["LLEN", "{lock:a}:waiting"]) == "1").await;
        all.sentinels().iter().for_each(Sentinel::pause);
        in_sync(master, replica).await;
        change_places(master, replica).await;
        let third = Locks::connect(&replica.url()).await.unwrap();
        third.release(&held).await.unwrap();
        // Else the waiter has looked, and is at the new master already.
        if let Some(guard) = third.lock("a").ttl(ms(60_000)).try_acquire().await.unwrap() {
            if let Ok(Ok(Ok(stray))) = tokio::time::timeout(ms(500), waiter).await {
                panic!("two hold it: {} and {}", stray.token(), guard.token());
            }
            guard.check().unwrap();
        }
    }
}
