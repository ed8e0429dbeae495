//! Links that are slow, lose, repeat, hold back and cut: what arrives late or twice takes nobody's lock.

use fencepost::{Error, Locks};
use fencepost_testkit::Proxy;
use fencepost_testkit::redis::Fleet;

use crate::fleet::{CALM, LONG, connect, declared, holds, is_clear, patient, take, until, use_once};

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
async fn s17_an_acquire_that_a_majority_heard_late_is_undone_there() {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s20_a_release_that_is_lost_with_the_connection_is_made_up_for() {
    let (fleet, links, locks) = through_links().await;
    for lost in 0..3 {
        let guard = take(&locks).await;
        until("all nodes have it", async || {
            guard.extend().await.unwrap();
            fleet.iter().all(|node| holds(node, "a"))
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
async fn s20_an_acquire_whose_answers_are_lost_with_the_connections_is_undone() {
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
async fn s33_a_waiter_whose_connection_was_reset_leaves_no_queue() {
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
