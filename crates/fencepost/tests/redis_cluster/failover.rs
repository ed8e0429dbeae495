//! Masters that change: on purpose, and because one is gone.

use fencepost::{Error, Locks};
use fencepost_testkit::redis::Cluster;

use crate::harness::{bounded, connect, ms, secs, slot_of, until, use_once};

#[tokio::test]
async fn a_planned_failover_breaks_no_lock_and_tokens_grow() {
    let cluster = Cluster::start(3, 1);
    let (locks, other) = (connect(&cluster).await, connect(&cluster).await);
    let guard = locks.lock("a").ttl(secs(20)).renew_every(ms(200)).acquire().await.unwrap();
    let waiter = tokio::spawn({
        let lock = other.lock("a").ttl(secs(20));
        async move { lock.acquire().await }
    });
    let first = use_once(&other, "{a}b").await;
    let before = cluster.master_of(slot_of("a"));
    let after = cluster.failover(before);
    assert_ne!(before, after);
    let renewed = locks.stats().renewed;
    until("renewals go on", async || locks.stats().renewed >= renewed + 3).await;
    guard.check().unwrap();
    assert!(use_once(&other, "{a}b").await > first);
    let token = guard.token();
    guard.release().await.unwrap();
    let next = bounded("the waiter is served", waiter).await.unwrap().unwrap();
    assert!(next.token() > token);
    // And back, once it has its whole lease: a master may stand still for seconds until it is relieved.
    until("it is renewed", async || other.stats().renewed > 0).await;
    cluster.failover(after);
    let token = next.token();
    next.release().await.unwrap();
    assert!(use_once(&locks, "a").await > token.get());
}

#[tokio::test]
async fn a_killed_master_costs_the_time_until_its_replica_takes_over() {
    let mut cluster = Cluster::start(3, 1);
    let (locks, other) = (connect(&cluster).await, connect(&cluster).await);
    let guard = locks.lock("a").ttl(secs(60)).renew_every(ms(500)).acquire().await.unwrap();
    let waiter = tokio::spawn({
        let lock = other.lock("a");
        async move { lock.acquire().await }
    });
    let at = cluster.master_of(slot_of("a"));
    until("it waits", async || cluster[at].cli(&["LLEN", "{lock:a}:waiting"]).trim() == "1").await;
    until("the replica has it all", async || cluster[at].cli(&["WAIT", "1", "100"]).trim() == "1").await;
    let replicas = cluster.replicas_of(at);
    cluster[at].kill();
    cluster.promoted(&replicas);
    let renewed = locks.stats().renewed;
    until("renewals go on", async || locks.stats().renewed > renewed).await;
    guard.check().unwrap();
    let token = guard.token();
    guard.release().await.unwrap();
    let next = bounded("the waiter has waited it out", waiter).await.unwrap().unwrap();
    assert!(next.token() > token);
    // The old one comes back with what it knew.
    cluster[at].restart();
    cluster.settle();
    next.check().unwrap();
    let token = next.token().get();
    next.release().await.unwrap();
    assert!(use_once(&other, "a").await > token);
}

/// Nodes hear of a new master one after the other. Who asks in that moment is not sent away.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_in_the_moment_of_a_planned_failover_is_done() {
    let cluster = Cluster::start(3, 1);
    let locks = connect(&cluster).await;
    for round in 0..6 {
        let handle = locks.lock("a").ttl(secs(60)).acquire().await.unwrap().detach().await.unwrap();
        let (fresh, url) = (round % 2 == 0, format!("{}?timeout=20s", cluster.url()));
        let master = cluster.master_of(slot_of("a"));
        tokio::task::block_in_place(|| cluster.failover(master));
        // A program that starts now may be told of the old master by the first node that it asks.
        let other = if fresh { Locks::connect(&url).await.unwrap() } else { locks.clone() };
        other.release(&handle).await.unwrap();
        assert!(cluster.keys_like("lock:*").is_empty());
        cluster.settle();
    }
}

/// What was asked of a shard without a master is told after a while, and works again by itself.
#[tokio::test]
async fn a_shard_without_a_master_is_unavailable_and_the_others_are_not() {
    let mut cluster = Cluster::start(3, 0);
    let locks = connect(&cluster).await;
    let at = cluster.master_of(slot_of("a"));
    let other = (0..).map(|n| format!("n{n}")).find(|name| cluster.master_of(slot_of(name)) != at).unwrap();
    cluster[at].kill();
    let error = locks.lock("a").try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    use_once(&locks, &other).await;
    cluster[at].restart();
    cluster.settle();
    use_once(&locks, "a").await;
}
