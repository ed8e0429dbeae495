//! What is particular to locks on several Redis servers, on real ones.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use fencepost::{Error, Locks, Verdict};
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
