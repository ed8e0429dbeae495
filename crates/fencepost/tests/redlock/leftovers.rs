//! Attempts that failed or were dropped, and releases that some node did not answer: no key and no waiter stays behind.
//!
//! Leases are long here: what is gone was given back.

use std::pin::pin;
use std::task::Poll;

use fencepost::{Error, Locks};
use fencepost_testkit::Proxy;
use fencepost_testkit::redis::Fleet;

use crate::stage::{
    CALM, LONG, bounded, connect, declared, holds, is_clear, ms, patient, take, until, use_once,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_at_a_held_lock_leave_nothing() {
    let fleet = declared(5, CALM).await;
    let (locks, others) = (connect(&fleet, CALM).await, connect(&fleet, CALM).await);
    let guard = take(&locks).await;
    for _ in 0..10 {
        assert!(others.lock("a").ttl(LONG).try_acquire().await.unwrap().is_none());
        let error = others.lock("a").ttl(LONG).wait(ms(20)).acquire().await.unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    }
    let queues = || fleet.iter().map(|node| node.keys_like("*:waiters").len()).sum::<usize>();
    until("no waiter is left in a queue", async || queues() == 0).await;
    guard.release().await.unwrap();
    is_clear(&fleet).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_got_a_minority_leaves_nothing() {
    let fleet = declared(5, CALM).await;
    let locks = connect(&fleet, CALM).await;
    for node in [0, 2, 4] {
        fleet[node].cli(&["SET", "lock:a", "foreign", "PX", "600000"]);
    }
    for _ in 0..10 {
        assert!(locks.lock("a").ttl(LONG).try_acquire().await.unwrap().is_none());
    }
    until("its keys are given back", async || !holds(&fleet[1], "a") && !holds(&fleet[3], "a")).await;
    for node in [0, 2, 4] {
        assert_eq!(fleet[node].cli(&["GET", "lock:a"]), "foreign");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_without_a_majority_of_nodes_leaves_nothing() {
    let mut fleet = declared(5, CALM).await;
    let locks = connect(&fleet, CALM).await;
    use_once(&locks).await;
    for dead in 2..5 {
        fleet[dead].kill();
    }
    for _ in 0..10 {
        locks.lock("a").ttl(LONG).try_acquire().await.unwrap_err();
    }
    until("its keys are given back", async || !holds(&fleet[0], "a") && !holds(&fleet[1], "a")).await;
}

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
    tokio::time::timeout(ms(300), polled).await.unwrap_or(true)
}

/// More polls than an acquire needs that is not in anybody's way.
const MOST: usize = 40;

/// Drops an acquire at every await, in a place prepared for each.
async fn at_every_await(fleet: &Fleet, locks: &Locks, prepare: impl AsyncFn()) {
    for count in 1..MOST {
        prepare().await;
        let completed = poll_and_drop(patient(locks, "a").acquire(), count).await;
        is_clear(fleet).await;
        if completed {
            return;
        }
    }
    panic!("not done after {MOST} polls");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_dropped_at_any_await_leaves_nothing_on_any_node() {
    let fleet = declared(5, CALM).await;
    at_every_await(&fleet, &connect(&fleet, CALM).await, async || {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_dropped_at_any_await_leaves_nothing_where_scripts_are_forgotten() {
    let fleet = declared(5, CALM).await;
    let forget = async || fleet.iter().for_each(|node| drop(node.cli(&["SCRIPT", "FLUSH"])));
    at_every_await(&fleet, &connect(&fleet, CALM).await, forget).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_dropped_at_any_await_leaves_nothing_where_counters_disagree() {
    let fleet = declared(3, CALM).await;
    let locks = connect(&fleet, CALM).await;
    let disagree = async || {
        let ahead = crate::stage::clock(&fleet[1]).max(crate::stage::counter(&fleet[1])) + 30_000_000;
        fleet[1].cli(&["SET", "{lock:a}:fence", &ahead.to_string()]);
    };
    at_every_await(&fleet, &locks, disagree).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_dropped_at_any_await_leaves_no_queue() {
    let fleet = declared(3, CALM).await;
    let (locks, others) = (connect(&fleet, CALM).await, connect(&fleet, CALM).await);
    for count in 1..12 {
        let guard = take(&locks).await;
        poll_and_drop(patient(&others, "a").acquire(), count).await;
        let queues = || fleet.iter().all(|node| node.keys_like("*:waiters").is_empty());
        until("no waiter is left", async || queues()).await;
        guard.release().await.unwrap();
        is_clear(&fleet).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_frozen_during_an_acquire_and_the_release_keeps_nothing() {
    let fleet = declared(3, CALM).await;
    let locks = connect(&fleet, CALM).await;
    use_once(&locks).await;
    for frozen in 0..3 {
        fleet[frozen].pause();
        use_once(&locks).await;
        drop(take(&locks).await);
        fleet[frozen].resume();
        is_clear(&fleet).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_a_majority_heard_late_is_undone_there() {
    let fleet = declared(3, CALM).await;
    let locks = connect(&fleet, CALM).await;
    use_once(&locks).await;
    fleet[0].pause();
    fleet[1].pause();
    let error = locks.lock("a").ttl(LONG).try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    fleet[0].resume();
    fleet[1].resume();
    // Its own requests reach the nodes behind the late ones.
    use_once(&locks).await;
    is_clear(&fleet).await;
}

/// Servers, a link to each, and a client by way of these.
async fn through_links() -> (Fleet, Vec<Proxy>, Locks) {
    let fleet = Fleet::start(3);
    let links = fleet.proxies();
    let url = fleet.url_through(&links, CALM);
    Locks::init(&url, false).await.unwrap();
    let locks = Locks::connect(&url).await.unwrap();
    use_once(&locks).await;
    (fleet, links, locks)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_is_lost_with_the_connection_is_made_up_for() {
    let (fleet, links, locks) = through_links().await;
    for lost in 0..3 {
        // A node that is being connected to again is not waited for.
        let guard = bounded("all nodes have it", async {
            loop {
                let guard = take(&locks).await;
                if fleet.iter().all(|node| holds(node, "a")) {
                    return guard;
                }
                guard.release().await.unwrap();
            }
        })
        .await;
        links[lost].stall();
        guard.release().await.unwrap();
        assert!(holds(&fleet[lost], "a"));
        links[lost].reset();
        is_clear(&fleet).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_whose_answers_are_lost_with_the_connections_is_undone() {
    let (fleet, links, locks) = through_links().await;
    links[1].hold_answers();
    links[2].hold_answers();
    let attempt = tokio::spawn({
        let lock = locks.lock("a").ttl(LONG);
        async move { lock.try_acquire().await }
    });
    until("the nodes have granted it", async || fleet.iter().all(|node| holds(node, "a"))).await;
    links[1].reset();
    links[2].reset();
    // The attempt fails, or is repeated over new connections.
    drop(attempt.await.unwrap());
    is_clear(&fleet).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_connection_was_reset_leaves_no_queue() {
    let (fleet, links, others) = through_links().await;
    let locks = Locks::connect(&fleet.url_through(&links, CALM)).await.unwrap();
    let guard = take(&locks).await;
    let queues = || fleet.iter().filter(|node| !node.keys_like("*:waiters").is_empty()).count();
    let waiter = tokio::spawn({
        let lock = patient(&others, "a");
        async move { lock.acquire().await }
    });
    until("it waits", async || queues() == 3).await;
    links[2].reset();
    waiter.abort();
    guard.extend().await.unwrap();
    guard.release().await.unwrap();
    is_clear(&fleet).await;
}
