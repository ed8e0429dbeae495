//! New nodes, which cannot know that they are: callers wait until their quarantine is over, and are told so.

use fencepost::{Error, Locks};
use fencepost_testkit::redis::{Fleet, Server};
use fencepost_testkit::{LIMIT, Proxy};

use crate::stage::{QUICK, bounded, connect, ms, quarantined, until};

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_a_quarantine_sits_out_a_short_outage() {
    let fleet = Fleet::start(3);
    let proxies = fleet.proxies();
    let locks = Locks::connect(&fleet.url_through(&proxies, QUICK)).await.unwrap();
    let calls: Vec<u64> = fleet.iter().map(Server::evalsha_calls).collect();
    let waiter = tokio::spawn({
        let lock = locks.lock("a").ttl(ms(1000)).wait(LIMIT);
        async move { lock.acquire().await }
    });
    // Until it has heard of the quarantine, an outage is an error.
    until("it asks again", async || {
        fleet.iter().zip(&calls).all(|(node, calls)| node.evalsha_calls() > calls + 2)
    })
    .await;
    proxies.iter().for_each(Proxy::cut);
    let harm: Vec<u64> = proxies.iter().map(Proxy::harm).collect();
    until("it finds no node", async || {
        proxies.iter().zip(&harm).all(|(proxy, harm)| proxy.harm() > harm + 2)
    })
    .await;
    proxies.iter().for_each(Proxy::pass);
    bounded("it gets the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
}
