//! Slots that move to another master while their locks are used.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fencepost_testkit::redis::{Cluster, Server, programs};

use crate::harness::{bounded, connect, elsewhere, listeners, ms, secs, slot_of, until, use_once};

/// Before that version, every node hears everything.
const SHARD_CHANNELS: (u32, u32) = (7, 0);

#[tokio::test]
async fn a_lock_is_held_and_renewed_while_its_slot_moves_key_by_key() {
    for program in programs() {
        let cluster = Cluster::start_with(2, 0, |config| config.program(&program));
        let locks = connect(&cluster).await;
        let guard = locks.lock("a").ttl(secs(6)).renew_every(ms(100)).acquire().await.unwrap();
        let first = guard.token().get();
        let renewed = async |more: u64| {
            let before = locks.stats().renewed;
            until("renewals go on", async || locks.stats().renewed >= before + more).await;
        };
        let to = elsewhere(&cluster, "a");
        let on_its_way = cluster.begin_move(slot_of("a"), to);
        renewed(3).await;
        // The lock and its fence: one of them is still there, then none.
        for _ in 0..2 {
            assert_eq!(cluster.move_keys(&on_its_way, 1), 1);
            renewed(3).await;
        }
        cluster.end_move(on_its_way);
        renewed(3).await;
        guard.check().unwrap();
        guard.release().await.unwrap();
        assert!(use_once(&locks, "a").await > first);
        assert!(cluster.keys_like("lock:*").is_empty());
    }
}

#[tokio::test]
async fn a_lock_is_granted_and_given_back_in_a_slot_that_is_on_its_way() {
    for program in programs() {
        let cluster = Cluster::start_with(2, 0, |config| config.program(&program));
        let locks = connect(&cluster).await;
        let (held, new) = (locks.lock("{x}held").acquire().await.unwrap(), locks.lock("{x}new"));
        let to = elsewhere(&cluster, "{x}held");
        let on_its_way = cluster.begin_move(slot_of("{x}held"), to);
        assert_eq!(cluster.move_keys(&on_its_way, 1), 1);
        let token = held.token().get();
        let both = async move {
            let (released, granted) = tokio::join!(held.release(), new.acquire());
            released.unwrap();
            granted.unwrap()
        };
        let both = tokio::spawn(both);
        until("they are told to try again", async || tries_again(&cluster) > 2).await;
        cluster.end_move(on_its_way);
        let guard = bounded("both have come through", both).await.unwrap();
        assert_eq!(cluster.keys_like("lock:*"), ["lock:{x}new"]);
        guard.release().await.unwrap();
        assert!(use_once(&locks, "{x}held").await > token);
    }
}

/// How many calls the nodes have refused because only some of the keys were there.
fn tries_again(cluster: &Cluster) -> u64 {
    let errors = |node: &Server| {
        let stats = node.cli(&["INFO", "errorstats"]);
        let line = stats.lines().find(|line| line.starts_with("errorstat_TRYAGAIN"));
        line.and_then(|line| line.rsplit('=').next()?.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    cluster.iter().map(errors).sum()
}

/// A waiter listens in the shard of its lock, and goes with it. Nothing but the push serves it here: it
/// looks again only after a quarter of a second, and its place tells that it did not.
#[tokio::test]
async fn a_waiter_listens_in_the_shard_of_its_lock_and_goes_with_it() {
    let cluster = Cluster::start(2, 0);
    if cluster[0].version() < SHARD_CHANNELS {
        return;
    }
    let (locks, other) = (connect(&cluster).await, connect(&cluster).await);
    let from = cluster.master_of(slot_of("a"));
    let to = elsewhere(&cluster, "a");
    let held = other.lock("a").acquire().await.unwrap();
    let waiters: Vec<_> = (0..2)
        .map(|_| {
            let lock = locks.lock("a");
            tokio::spawn(async move { lock.acquire().await })
        })
        .collect();
    until("they listen, over one connection", async || listeners(&cluster, from, "a") == 1).await;
    cluster.reshard([slot_of("a")], to, ms(0));
    until("they listen at the new master", async || listeners(&cluster, to, "a") == 1).await;
    assert_eq!(listeners(&cluster, from, "a"), 0);
    until("both are in the queue there", async || {
        cluster[to].cli(&["LLEN", "{lock:a}:waiting"]).trim() == "2"
    })
    .await;
    let mut last = held.token();
    held.release().await.unwrap();
    let mut left: Vec<_> = waiters;
    while !left.is_empty() {
        let (guard, index) = bounded("one is served", async {
            loop {
                if let Some(index) = left.iter().position(tokio::task::JoinHandle::is_finished) {
                    break ((&mut left[index]).await.unwrap().unwrap(), index);
                }
                tokio::time::sleep(ms(1)).await;
            }
        })
        .await;
        left.swap_remove(index);
        assert!(guard.token() > last);
        last = guard.token();
        guard.release().await.unwrap();
    }
    // What nobody waits for is left when somebody waits for something else a second later.
    let held = other.lock("{a}b").acquire().await.unwrap();
    until("nobody listens any more", async || {
        locks.lock("{a}b").wait(ms(1)).acquire().await.unwrap_err();
        listeners(&cluster, to, "a") == 0
    })
    .await;
    drop(held);
}

/// While a slot is on its way its new master refuses to be listened to. It is listened to from then on.
#[tokio::test]
async fn a_waiter_that_may_not_listen_yet_listens_later() {
    let cluster = Cluster::start(2, 0);
    if cluster[0].version() < SHARD_CHANNELS {
        return;
    }
    let (locks, other) = (connect(&cluster).await, connect(&cluster).await);
    let held = other.lock("a").ttl(secs(60)).acquire().await.unwrap();
    let (from, to) = (cluster.master_of(slot_of("a")), elsewhere(&cluster, "a"));
    let waiters: Vec<_> = (0..4)
        .map(|_| {
            let lock = locks.lock("a");
            tokio::spawn(async move { lock.acquire().await.unwrap().release().await })
        })
        .collect();
    let waiting = async |at: usize| cluster[at].cli(&["LLEN", "{lock:a}:waiting"]);
    until("all wait", async || waiting(from).await.trim() == "4").await;
    let on_its_way = cluster.begin_move(slot_of("a"), to);
    assert_eq!(cluster.move_keys(&on_its_way, 10), 3);
    let count = |command: &str, what: &str| {
        let stats = cluster[to].cli(&["INFO", "commandstats"]);
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:")));
        let count = line.and_then(|line| line.split_once(what)?.1.split(',').next()?.parse::<u32>().ok());
        count.unwrap_or(0)
    };
    until("all have been there", async || count("asking", "calls=") >= 8).await;
    assert!(count("ssubscribe", "rejected_calls=") > 0, "they may not listen there");
    cluster.end_move(on_its_way);
    // Others of the slot tell where it is.
    use_once(&locks, "{a}b").await;
    until("they listen there", async || listeners(&cluster, to, "a") == 1).await;
    held.release().await.unwrap();
    for waiter in waiters {
        bounded("it is served", waiter).await.unwrap().unwrap();
    }
}

/// Only the first of many waiters may be told, and only over the shard.
#[tokio::test]
async fn a_release_tells_the_next_waiter_in_the_shard_alone() {
    let cluster = Cluster::start(3, 0);
    if cluster[0].version() < SHARD_CHANNELS {
        return;
    }
    let (locks, other) = (connect(&cluster).await, connect(&cluster).await);
    let at = cluster.master_of(slot_of("a"));
    for _ in 0..20 {
        let held = other.lock("a").acquire().await.unwrap();
        let waiter = tokio::spawn({
            let lock = locks.lock("a");
            async move { lock.acquire().await.unwrap().release().await }
        });
        until("it listens", async || listeners(&cluster, at, "a") == 1).await;
        until("it waits", async || cluster[at].cli(&["LLEN", "{lock:a}:waiting"]).trim() == "1").await;
        held.release().await.unwrap();
        bounded("it is served", waiter).await.unwrap().unwrap();
    }
    let told = cluster[at].cli(&["INFO", "commandstats"]);
    let told = told.lines().find(|line| line.starts_with("cmdstat_spublish:calls=2"));
    assert!(told.is_some(), "it was pushed the lock");
}

#[tokio::test]
async fn slots_that_move_at_one_moment_take_their_locks_along() {
    let Some(program) = fencepost_testkit::redis::valkey() else { return };
    let cluster = Cluster::start_with(2, 0, |config| config.program(&program));
    let locks = connect(&cluster).await;
    let guard = locks.lock("a").ttl(secs(6)).renew_every(ms(100)).acquire().await.unwrap();
    let waiter = tokio::spawn({
        let lock = locks.lock("a");
        async move { lock.acquire().await }
    });
    let to = elsewhere(&cluster, "a");
    cluster.move_at_once([slot_of("a")], to);
    until("the waiter has come along", async || listeners(&cluster, to, "a") == 1).await;
    guard.check().unwrap();
    let token = guard.token();
    guard.release().await.unwrap();
    let next = bounded("the waiter is served", waiter).await.unwrap().unwrap();
    assert!(next.token() > token);
}

/// Attempts that are given up at any moment, of locks whose slot goes to and fro, also half of the way.
#[tokio::test(flavor = "multi_thread")]
async fn given_up_attempts_leave_nothing_behind_while_slots_move() {
    for program in programs() {
        let cluster = Cluster::start_with(2, 0, |config| config.program(&program));
        let locks = connect(&cluster).await;
        let stop = Arc::<AtomicBool>::default();
        let attempts: Vec<_> = (0..8_u64)
            .map(|number| {
                let (lock, stop) = (locks.lock(format!("{{x}}{}", number % 3)).ttl(secs(600)), stop.clone());
                tokio::spawn(async move {
                    for round in 0_u64.. {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        let patience = Duration::from_micros((round * 797 + number * 131) % 40_000);
                        let _ = tokio::time::timeout(patience, lock.acquire()).await;
                    }
                })
            })
            .collect();
        let slot = slot_of("{x}0");
        tokio::task::block_in_place(|| {
            for round in 0..12 {
                let to = elsewhere(&cluster, "{x}0");
                let moving = cluster.begin_move(slot, to);
                thread::sleep(ms(100));
                for _ in 0..round % 4 {
                    cluster.move_keys(&moving, 1);
                    thread::sleep(ms(30));
                }
                cluster.end_move(moving);
                thread::sleep(ms(100));
            }
        });
        stop.store(true, Ordering::Relaxed);
        for attempt in attempts {
            bounded("it ends", attempt).await.unwrap();
        }
        until("no lock is left", async || cluster.keys_like("lock:*").is_empty()).await;
        let ours = |node: &Server| {
            node.cli(&["CLIENT", "LIST"]).lines().filter(|line| line.contains("name=fencepost")).count()
        };
        until("a process has two connections to each", async || cluster.iter().all(|node| ours(node) <= 2))
            .await;
        locks.close().await;
        until("no connection is left", async || cluster.iter().all(|node| ours(node) == 0)).await;
    }
}
