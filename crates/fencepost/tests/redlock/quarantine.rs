//! New nodes, which cannot know that they are: callers wait until their quarantine is over, and are told so.

use fencepost::{Error, Locks};
use fencepost_testkit::redis::{Nodes, Server};
use fencepost_testkit::{LIMIT, Proxy};

use crate::harness::{NODE, QUICK, bounded, clock, connect, declared, ms, quarantined, ready, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_nodes_vote_after_their_quarantine_and_waiters_are_told() {
    let nodes = Nodes::start(3);
    let locks = connect(&nodes, QUICK).await;
    let lock = locks.lock("a").ttl(ms(1000));
    // A node that answers late is not waited for.
    until("all say that they are new", async || {
        let error = lock.clone().wait(ms(200)).acquire().await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        error.nodes().len() == 3 && error.nodes().iter().all(|node| quarantined(&node.verdict, "new"))
    })
    .await;
    let error = lock.try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("does not vote for another"), "{error}");
    assert!(error.to_string().contains("declare them with `fencepost init`"), "{error}");
    lock.acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_have_voted_are_not_to_be_declared_new() {
    let mut nodes = declared(3, QUICK).await;
    nodes[0].restart();
    nodes[1].restart();
    let locks = connect(&nodes, QUICK).await;
    let error = locks.lock("a").ttl(ms(500)).try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("does not vote for another"), "{error}");
    assert!(!error.to_string().contains("init"), "{error}");
}

/// It has been up for longer than any lock lasts, and was never used: but it is asked in the place of one
/// that was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spare_in_the_place_of_a_lost_node_waits() {
    let nodes = Nodes::start(4);
    let proxies: Vec<_> = (0..3).map(|node| Proxy::start(nodes[node].addr())).collect();
    let addrs: Vec<_> = proxies.iter().map(|proxy| proxy.addr().to_string()).collect();
    let url = format!("redlock://{}?{QUICK}", addrs.join(","));
    Locks::init(&url).await.unwrap();
    let spare = &nodes[3];
    let uptime = || {
        let info = spare.cli(&["INFO", "server"]);
        let uptime = info.lines().find_map(|line| line.strip_prefix("uptime_in_seconds:"));
        uptime.unwrap().trim().parse::<u64>().unwrap()
    };
    until("it is up for longer than a quarantine", async || uptime() >= 5).await;
    proxies[1].redirect(spare.addr());
    proxies[1].reset();
    let locks = Locks::connect(&url).await.unwrap();
    // The other two vote.
    locks.lock("a").ttl(ms(1000)).wait(LIMIT).acquire().await.unwrap().release().await.unwrap();
    until("it is met", async || !spare.keys_like(NODE).is_empty()).await;
    assert!(ready(spare).is_some_and(|ready| ready > clock(spare)), "it votes");
}

#[test]
fn a_blocking_caller_waits_for_a_quarantine_to_end() {
    let nodes = Nodes::start(3);
    let locks = fencepost::blocking::Locks::connect(&nodes.url_with(QUICK)).unwrap();
    locks.lock("a").ttl(ms(500)).acquire().unwrap().release().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_a_quarantine_sits_out_a_short_outage() {
    let nodes = Nodes::start(3);
    let proxies = nodes.proxies();
    let locks = Locks::connect(&nodes.url_through(&proxies, QUICK)).await.unwrap();
    let calls: Vec<u64> = nodes.iter().map(Server::evalsha_calls).collect();
    let waiter = tokio::spawn({
        let lock = locks.lock("a").ttl(ms(1000)).wait(LIMIT);
        async move { lock.acquire().await }
    });
    // Until it has heard of the quarantine, an outage is an error.
    until("it asks again", async || {
        nodes.iter().zip(&calls).all(|(node, calls)| node.evalsha_calls() > calls + 2)
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
