//! Futures that are dropped at every await, and renewals that race with releases: nothing stays behind,
//! nothing comes back.
//!
//! Leases are long here: what is gone was given back.

use std::pin::pin;
use std::task::Poll;

use fencepost::Locks;
use fencepost::SupervisorExt as _;
use fencepost_testkit::redis::{Nodes, Server};

use crate::redis_nodes::{
    CALM, bounded, connect, connect_to_all, declared, holds, is_clear, ms, patient, take, until,
};

/// Polls a future up to `count` times and drops it; whether it has completed.
async fn poll_and_drop<T>(future: impl Future<Output = T>, count: usize) -> bool {
    let mut future = pin!(future);
    let mut polls = 0;
    let polled = std::future::poll_fn(|context| {
        polls += 1;
        match future.as_mut().poll(context) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending if polls == count => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    });
    bounded("it is polled", polled).await
}

/// More polls than an acquire needs that is not in anybody's way.
const MOST: usize = 40;

/// Drops an acquire at every await, in a place prepared for each.
async fn at_every_await(nodes: &Nodes, locks: &Locks, prepare: impl AsyncFn()) {
    for count in 1..MOST {
        prepare().await;
        let completed = poll_and_drop(patient(locks, "a").acquire(), count).await;
        is_clear(nodes).await;
        if completed {
            return;
        }
    }
    panic!("not done after {MOST} polls");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s34_an_acquire_dropped_at_any_await_leaves_nothing_on_any_node() {
    let nodes = declared(5, CALM).await;
    at_every_await(&nodes, &connect_to_all(&nodes, CALM).await, async || {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s34_an_acquire_dropped_at_any_await_leaves_nothing_where_scripts_are_forgotten() {
    let nodes = declared(5, CALM).await;
    let forget = async || nodes.iter().for_each(|node| drop(node.cli(&["SCRIPT", "FLUSH"])));
    at_every_await(&nodes, &connect_to_all(&nodes, CALM).await, forget).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s34_an_acquire_dropped_at_any_await_leaves_nothing_where_counters_disagree() {
    let nodes = declared(3, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    let disagree = async || {
        let ahead =
            crate::redis_nodes::clock(&nodes[1]).max(crate::redis_nodes::counter(&nodes[1])) + 30_000_000;
        nodes[1].cli(&["SET", "{lock:a}:fence", &ahead.to_string()]);
    };
    at_every_await(&nodes, &locks, disagree).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s34_a_waiter_dropped_at_any_await_leaves_no_queue() {
    let nodes = declared(3, CALM).await;
    let (locks, others) = (connect_to_all(&nodes, CALM).await, connect_to_all(&nodes, CALM).await);
    let queues = || nodes.iter().filter(|node| !node.keys_like("*:waiters").is_empty()).count();
    let lock = patient(&others, "a");
    for count in 1..MOST {
        let guard = take(&locks).await;
        let stands = tokio::select! {
            completed = poll_and_drop(lock.acquire(), count) => {
                assert!(!completed, "somebody else has it");
                false
            }
            () = until("it stands in line", async || queues() == 3) => true,
        };
        until("no waiter is left", async || queues() == 0).await;
        guard.release().await.unwrap();
        is_clear(&nodes).await;
        if stands {
            return;
        }
    }
    panic!("not in line after {MOST} polls");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s36_an_extension_that_a_frozen_node_hears_after_the_release_makes_nothing_anew() {
    let nodes = declared(3, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    for _ in 0..3 {
        let guard = take(&locks).await;
        guard.extend().await.unwrap();
        nodes[0].pause();
        guard.extend().await.unwrap();
        guard.release().await.unwrap();
        nodes[0].resume();
        is_clear(&nodes).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s36_an_extension_that_reaches_a_node_after_the_validity_makes_nothing_anew() {
    let nodes = declared(3, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    let guard = locks.lock("a").ttl(ms(3000)).acquire().await.unwrap();
    guard.extend().await.unwrap();
    nodes[0].pause();
    guard.extend().await.unwrap();
    let until_then = guard.valid_until_boottime().unwrap();
    guard.release().await.unwrap();
    until("the validity ends", async || crate::redis_nodes::boottime() > until_then + ms(200)).await;
    nodes[0].resume();
    // An answer over the same connection: what was sent over it before has been acted on, and what followed
    // from it.
    assert!(locks.show("a").await.unwrap().is_none());
    for _ in 0..20 {
        assert!(!holds(&nodes[0], "a"), "made anew");
        tokio::time::sleep(ms(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s36_an_extension_that_waits_for_a_connection_does_not_outlive_the_release() {
    let parameters = &format!("{CALM}&timeout=20s");
    let nodes = declared(3, parameters).await;
    nodes[0].pause();
    let locks = connect(&nodes, parameters).await;
    let guard = take(&locks).await;
    guard.extend().await.unwrap();
    guard.release().await.unwrap();
    let next = patient(&locks, "b").acquire().await.unwrap();
    next.extend().await.unwrap();
    nodes[0].resume();
    // It goes the same way as the other one would, behind it.
    until("an extension is heard there", async || holds(&nodes[0], "b")).await;
    next.release().await.unwrap();
    is_clear(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s34_a_release_dropped_at_any_await_takes_nobody_elses_lock() {
    let nodes = declared(3, CALM).await;
    let (locks, rival) = (connect_to_all(&nodes, CALM).await, connect_to_all(&nodes, CALM).await);
    for count in 1..MOST {
        let guard = take(&locks).await;
        guard.extend().await.unwrap();
        let completed = poll_and_drop(guard.release(), count).await;
        let next = take(&rival).await;
        next.extend().await.unwrap();
        // What is still under way of the release comes before this.
        assert!(locks.lock("b").try_acquire().await.unwrap().is_some());
        next.extend().await.unwrap();
        assert!(nodes.iter().filter(|node| holds(node, "a")).count() >= 2);
        next.release().await.unwrap();
        if completed {
            return is_clear(&nodes).await;
        }
    }
    panic!("not done after {MOST} polls");
}

/// Ends the connections that carry wake-ups, for as long as a task waits, and takes the lock away without any
/// message.
async fn is_woken_by_time(locks: &Locks, nodes: &[&Server], queue: &str) {
    let waiter = tokio::spawn({
        let lock = patient(locks, "a");
        async move { lock.acquire().await }
    });
    let stands = |node: &&Server| node.cli(&["LLEN", queue]) == "1";
    until("it stands in the queue", async || nodes.iter().all(stands)).await;
    for node in nodes {
        node.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        node.cli(&["DEL", "lock:a"]);
    }
    bounded("it gets the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
}

/// Takes the lock away from its holder. The waiter's connection lives, and it is not beside foreign clients,
/// who tell nobody: it has no other reason to look.
async fn looks_though_nothing_was_said(locks: &Locks, nodes: &[&Server], queue: &str) {
    let _holder = patient(locks, "a").acquire().await.unwrap();
    let lock = patient(locks, "a");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    let stands = |node: &&Server| node.cli(&["LLEN", queue]) == "1";
    until("it stands in the queue", async || nodes.iter().all(stands)).await;
    nodes.iter().for_each(|node| drop(node.cli(&["DEL", "lock:a"])));
    bounded("it gets the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s33_a_waiter_whose_messages_are_lost_looks_by_itself() {
    let (nodes, server) = (declared(3, CALM).await, Server::start());
    let servers: Vec<_> = nodes.iter().collect();
    for _ in 0..3 {
        servers.iter().for_each(|node| drop(node.cli(&["SET", "lock:a", "foreign", "PX", "600000"])));
        is_woken_by_time(&connect(&nodes, CALM).await, &servers, "{lock:a}:waiters").await;
        server.cli(&["SET", "lock:a", "foreign", "PX", "600000"]);
        is_woken_by_time(&Locks::connect(&server.url()).await.unwrap(), &[&server], "{lock:a}:waiting").await;
        let one = Locks::connect(&server.url()).await.unwrap();
        looks_though_nothing_was_said(&one, &[&server], "{lock:a}:waiting").await;
        let several = connect(&nodes, CALM).await;
        looks_though_nothing_was_said(&several, &servers, "{lock:a}:waiters").await;
    }
    is_clear(&nodes).await;
}
