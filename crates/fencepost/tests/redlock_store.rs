//! What is particular to locks on several Redis servers, on real ones.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use fencepost::{Error, Locks, Verdict};
use fencepost_testkit::eventually;
use fencepost_testkit::redis::Fleet;

/// Short leases, and the shortest quarantine that goes with them.
const QUICK: &str = "max_ttl=1s&quarantine=3s";

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

#[tokio::test]
async fn new_nodes_vote_after_their_quarantine_and_waiters_are_told() {
    let fleet = Fleet::start(3);
    let locks = Locks::connect(&fleet.url_with(QUICK)).await.unwrap();
    let lock = locks.lock("a").ttl(ms(500));
    let error = lock.clone().wait(ms(200)).acquire().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert_eq!(error.nodes().len(), 3);
    for node in error.nodes() {
        assert!(matches!(&node.verdict, Verdict::Quarantined { why, .. } if why.contains("new")), "{error}");
    }
    let error = lock.try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("does not vote for another"), "{error}");
    lock.acquire().await.unwrap().release().await.unwrap();
}

#[test]
fn a_blocking_caller_waits_for_a_quarantine_to_end() {
    let fleet = Fleet::start(3);
    let locks = fencepost::blocking::Locks::connect(&fleet.url_with(QUICK)).unwrap();
    locks.lock("a").ttl(ms(500)).acquire().unwrap().release().unwrap();
}

/// How many nodes have somebody in a queue.
fn queues(fleet: &Fleet) -> usize {
    fleet.iter().filter(|node| !node.keys_like("*:waiters").is_empty()).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_leaves_the_queues_of_the_nodes_that_denied_the_attempt_that_won() {
    let fleet = Fleet::start(5);
    Locks::init(&fleet.url(), false).await.unwrap();
    let locks = Locks::connect(&fleet.url()).await.unwrap();
    for node in [3, 4] {
        fleet[node].cli(&["SET", "lock:a", "somebody else's"]);
    }
    let guard = locks.lock("a").acquire().await.unwrap();
    eventually("both have queued it", || queues(&fleet) == 2);
    guard.release().await.unwrap();
    eventually("both have forgotten it", || queues(&fleet) == 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_leaves_all_queues_when_a_later_attempt_wins() {
    let fleet = Fleet::start(5);
    Locks::init(&fleet.url(), false).await.unwrap();
    let locks = Locks::connect(&fleet.url()).await.unwrap();
    for node in fleet.iter() {
        node.cli(&["SET", "lock:a", "somebody else's"]);
    }
    let lock = locks.lock("a");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    eventually("all have queued it", || queues(&fleet) == 5);
    for node in fleet.iter() {
        node.cli(&["DEL", "lock:a"]);
    }
    let guard = waiting.await.unwrap().unwrap();
    eventually("all have forgotten it", || queues(&fleet) == 0);
    guard.release().await.unwrap();
}
