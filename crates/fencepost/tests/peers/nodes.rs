//! redlock-py on the same keys of the same servers.

use std::time::Duration;

use fencepost::{Error, Locks, Loss};
use fencepost_testkit::LIMIT;
use fencepost_testkit::redis::Nodes;

use super::{LONG, Peer};

const PARAMETERS: &str = "max_ttl=20m";

async fn set_up(ttl: Duration) -> (Nodes, Locks, Peer) {
    let nodes = Nodes::start(5);
    let url = nodes.url_with(PARAMETERS);
    Locks::init(&url).await.unwrap();
    let ports: Vec<_> = nodes.iter().map(|node| node.addr().port().to_string()).collect();
    let peer = Peer::start_on("redlock", &ports.join(","), "a", ttl);
    (nodes, Locks::connect(&url).await.unwrap(), peer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_cannot_have_what_we_hold() {
    let (_nodes, locks, mut peer) = set_up(LONG).await;
    let guard = locks.lock("a").ttl(LONG).acquire().await.unwrap();
    assert_eq!(peer.ask("try"), "busy");
    guard.extend().await.unwrap();
    assert_eq!(peer.ask("try"), "busy");
    guard.release().await.unwrap();
    peer.tell("wait");
    assert_eq!(peer.answer(), "held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn we_cannot_have_what_a_peer_holds() {
    let (_nodes, locks, mut peer) = set_up(LONG).await;
    assert_eq!(peer.ask("try"), "held");
    assert!(locks.lock("a").ttl(LONG).try_acquire().await.unwrap().is_none());
    let error = locks.lock("a").ttl(LONG).wait(Duration::from_secs(2)).acquire().await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    assert!(error.to_string().contains("foreign client"), "{error}");
    let holder = locks.show("a").await.unwrap().unwrap();
    assert!(holder.owner.is_none() && holder.nodes.iter().all(|node| node.holds), "{holder:?}");
    let refused = locks.force_release("a", "x").await.unwrap_err();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused:?}");
    assert_eq!(peer.ask("release"), "released");
    locks.lock("a").ttl(LONG).wait(LIMIT).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_of_ours_gets_the_lock_when_a_peers_lease_ends() {
    let (_nodes, locks, mut peer) = set_up(Duration::from_secs(2)).await;
    assert_eq!(peer.ask("try"), "held");
    let guard = locks.lock("a").ttl(LONG).wait(LIMIT).acquire().await.unwrap();
    // Its late release does not touch ours.
    assert_eq!(peer.ask("release"), "released");
    guard.extend().await.unwrap();
    assert_eq!(peer.ask("try"), "busy");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_and_we_take_turns() {
    let (_nodes, locks, mut peer) = set_up(LONG).await;
    let mut last = 0;
    for _ in 0..10 {
        let guard = locks.lock("a").ttl(LONG).wait(LIMIT).acquire().await.unwrap();
        assert!(guard.token().get() > last);
        last = guard.token().get();
        peer.tell("wait");
        guard.release().await.unwrap();
        assert_eq!(peer.answer(), "held");
        assert!(locks.lock("a").ttl(LONG).try_acquire().await.unwrap().is_none());
        assert_eq!(peer.ask("release"), "released");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn we_lose_to_a_peer_when_our_keys_are_deleted_on_a_majority() {
    let (nodes, locks, mut peer) = set_up(LONG).await;
    let guard = locks.lock("a").ttl(LONG).acquire().await.unwrap();
    while nodes.iter().any(|node| node.keys_like("lock:a").is_empty()) {
        tokio::task::yield_now().await;
    }
    for node in 0..3 {
        nodes[node].cli(&["DEL", "lock:a"]);
    }
    assert_eq!(peer.ask("try"), "held");
    let error = guard.extend().await.unwrap_err();
    assert!(matches!(error, Error::Lost { why: Loss::Taken, .. }), "{error:?}");
    drop(guard);
    assert!(locks.lock("a").ttl(LONG).try_acquire().await.unwrap().is_none());
}
