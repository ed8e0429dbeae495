//! New nodes, which cannot know that they are: callers wait until their quarantine is over, and are told so.

use fencepost::Error;
use fencepost_testkit::redis::Fleet;

use crate::stage::{QUICK, connect, ms, quarantined};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_nodes_vote_after_their_quarantine_and_waiters_are_told() {
    let fleet = Fleet::start(3);
    let locks = connect(&fleet, QUICK).await;
    let lock = locks.lock("a").ttl(ms(500));
    let error = lock.clone().wait(ms(200)).acquire().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert_eq!(error.nodes().len(), 3);
    assert!(error.nodes().iter().all(|node| quarantined(&node.verdict, "new")), "{error}");
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
