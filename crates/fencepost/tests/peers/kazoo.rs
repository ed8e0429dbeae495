//! kazoo's `Lock` in the same line, told to count nodes of Curator's make as contenders.

use std::time::Duration;

use fencepost::{Error, Locks};
use fencepost_testkit::LIMIT;
use fencepost_testkit::zookeeper::Server;

use super::{LONG, Peer};

fn peer(server: &Server, ttl: Duration) -> Peer {
    Peer::start_on("kazoo", &server.addr().port().to_string(), "a", ttl)
}

async fn set_up() -> (Server, Locks, Peer) {
    let server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let peer = peer(&server, LONG);
    (server, locks, peer)
}

fn line(server: &Server) -> usize {
    server.client().children("/fencepost/a").unwrap().len()
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, wait).await.unwrap_or_else(|_| panic!("in vain: {what}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_cannot_have_what_we_hold() {
    let (_server, locks, mut peer) = set_up().await;
    let guard = locks.lock("a").ttl(LONG).acquire().await.unwrap();
    assert_eq!(peer.ask("try"), "busy");
    guard.extend().await.unwrap();
    assert_eq!(peer.ask("try"), "busy");
    guard.release().await.unwrap();
    assert_eq!(peer.ask("try"), "held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn we_cannot_have_what_a_peer_holds() {
    let (_server, locks, mut peer) = set_up().await;
    assert_eq!(peer.ask("try"), "held");
    assert!(locks.lock("a").ttl(LONG).try_acquire().await.unwrap().is_none());
    let error = locks.lock("a").ttl(LONG).wait(Duration::from_secs(2)).acquire().await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    assert!(error.to_string().contains("foreign client"), "{error}");
    let holder = locks.show("a").await.unwrap().unwrap();
    assert!(holder.owner.is_none() && holder.token.is_some() && holder.age().is_some(), "{holder:?}");
    assert_eq!(locks.list("").await.unwrap().holders.len(), 1);
    assert_eq!(peer.ask("release"), "released");
    let guard = locks.lock("a").ttl(LONG).wait(LIMIT).acquire().await.unwrap();
    assert!(Some(guard.token()) > holder.token, "tokens are in order across clients of any make");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_waits_for_the_other_in_turn() {
    let (server, locks, mut peer) = set_up().await;
    for _ in 0..5 {
        let guard = locks.lock("a").ttl(LONG).wait(LIMIT).acquire().await.unwrap();
        peer.tell("wait");
        until("the peer stands in line", || line(&server) == 2).await;
        let waiter = tokio::spawn({
            let lock = locks.lock("a").ttl(LONG).wait(LIMIT);
            async move { lock.acquire().await.unwrap() }
        });
        until("and we behind it", || line(&server) == 3).await;
        guard.release().await.unwrap();
        assert_eq!(peer.answer(), "held");
        assert!(!waiter.is_finished());
        assert_eq!(peer.ask("release"), "released");
        waiter.await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_of_ours_gets_the_lock_when_a_peer_dies() {
    let server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let mut dying = peer(&server, Duration::from_secs(5));
    assert_eq!(dying.ask("try"), "held");
    let waiter = tokio::spawn({
        let lock = locks.lock("a").ttl(LONG).wait(LIMIT);
        async move { lock.acquire().await.unwrap() }
    });
    until("we stand in line", || line(&server) == 2).await;
    // Killed: only the end of its session frees the lock.
    drop(dying);
    waiter.await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_both_in_a_crowd_of_either_make() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    let server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let inside = Arc::new(AtomicUsize::new(0));
    // Long enough that a second holder would be seen.
    let stay = Duration::from_millis(2);
    let enter = |inside: &AtomicUsize| assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
    let leave = |inside: &AtomicUsize| inside.fetch_sub(1, Ordering::SeqCst);
    let peers: Vec<_> = (0..3)
        .map(|_| {
            let (mut peer, inside) = (peer(&server, LONG), inside.clone());
            std::thread::spawn(move || {
                for _ in 0..15 {
                    assert_eq!(peer.ask("wait"), "held");
                    enter(&inside);
                    std::thread::sleep(stay);
                    leave(&inside);
                    assert_eq!(peer.ask("release"), "released");
                }
            })
        })
        .collect();
    let ours: Vec<_> = (0..3)
        .map(|_| {
            let (lock, inside) = (locks.lock("a").ttl(LONG).wait(LIMIT), inside.clone());
            tokio::spawn(async move {
                for _ in 0..15 {
                    let guard = lock.acquire().await.unwrap();
                    enter(&inside);
                    tokio::time::sleep(stay).await;
                    leave(&inside);
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in ours {
        task.await.unwrap();
    }
    for peer in peers {
        tokio::task::spawn_blocking(|| peer.join()).await.unwrap().unwrap();
    }
}
