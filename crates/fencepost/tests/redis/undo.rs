//! Attempts that are given up, and answers that do not come, leave nothing behind.

use std::time::Duration;

use fencepost::{Error, Handle, Locks, Loss};
use fencepost_testkit::Proxy;
use fencepost_testkit::redis::Server;

use crate::harness::{bounded, connect, ms, poll_once, queue_length, queues, secs, until};

/// The server has granted the first request, whose answer was lost: that is not somebody else who holds the
/// lock.
#[tokio::test]
async fn a_try_whose_answer_was_lost_is_not_in_its_own_way() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let locks = Locks::connect(&server.url_at(proxy.addr())).await.unwrap();
    for round in 0..25 {
        let name = format!("a{round}");
        proxy.cut_next_answer();
        let guard = locks.lock(&name).ttl(secs(60)).try_acquire().await.unwrap();
        let guard = guard.unwrap_or_else(|| panic!("round {round}: busy, and nobody else is there"));
        assert!(locks.show(&name).await.unwrap().unwrap().owner == Some(guard.owner()));
        guard.release().await.unwrap();
        assert!(server.keys_like("lock:*").is_empty());
    }
}

#[tokio::test]
async fn a_wait_whose_answer_was_lost_is_not_in_its_own_way() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let locks = Locks::connect(&server.url_at(proxy.addr())).await.unwrap();
    for round in 0..10 {
        proxy.cut_next_answer();
        let lock = locks.lock(format!("a{round}")).ttl(secs(60)).wait(secs(20));
        lock.acquire().await.unwrap().release().await.unwrap();
        assert!(server.keys_like("lock:*").is_empty());
    }
}

/// A waiter whose connection ends while nothing is under way keeps its place.
#[tokio::test]
async fn a_waiter_keeps_its_place_when_its_connection_is_replaced() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let locks = Locks::connect(&server.url_at(proxy.addr())).await.unwrap();
    let (holder, other) = (connect(&server).await, connect(&server).await);
    let held = holder.lock("a").ttl(secs(60)).acquire().await.unwrap();
    let first = tokio::spawn({
        let lock = locks.lock("a").note("first");
        async move { lock.acquire().await }
    });
    queues(&server, "a", 1).await;
    let second = tokio::spawn({
        let lock = other.lock("a").note("second");
        async move { lock.acquire().await }
    });
    queues(&server, "a", 2).await;
    // Its answer has come when a later one on the same connection has.
    locks.show("a").await.unwrap();
    let channel = server.cli(&["LINDEX", "{lock:a}:waiting", "0"])[37..53].to_owned();
    let newest = || {
        let clients = server.cli(&["CLIENT", "LIST", "TYPE", "pubsub"]);
        clients
            .lines()
            .filter_map(|line| line.strip_prefix("id=")?.split(' ').next()?.parse::<u64>().ok())
            .max()
    };
    let before = newest();
    proxy.reset();
    until("it listens over a new connection, and the old one is gone", async || {
        newest() > before && server.cli(&["PUBSUB", "NUMSUB", &channel]).ends_with("\n1")
    })
    .await;
    held.release().await.unwrap();
    let guard = bounded("the first is served first", first).await.unwrap().unwrap();
    assert!(!second.is_finished());
    guard.release().await.unwrap();
    drop(bounded("then the second", second).await.unwrap().unwrap());
}

/// Longer than any test: what is left behind does not go by itself.
const LONG: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn an_attempt_that_is_dropped_at_any_moment_leaves_neither_lock_nor_place() {
    let server = Server::start();
    let (holder, locks) = (connect(&server).await, connect(&server).await);
    for round in 0..40u64 {
        let lock = locks.lock("a").ttl(LONG);
        let give_up = async || {
            let mut attempt = Box::pin(lock.acquire());
            poll_once(&mut attempt).await;
            drop(tokio::time::timeout(Duration::from_micros(round * 50), attempt).await);
        };
        give_up().await;
        until("nobody has it", async || server.keys_like("lock:*").is_empty()).await;
        let held = holder.lock("a").ttl(LONG).acquire().await.unwrap();
        give_up().await;
        until("nobody waits", async || queue_length(&server, "a") == 0).await;
        held.release().await.unwrap();
    }
}

/// What was sent over a connection that has ended may arrive later than the request that undoes it.
#[tokio::test]
async fn a_request_that_arrives_late_is_undone() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let url = format!("{}?timeout=2s", server.url_at(proxy.addr()));
    let locks = Locks::connect(&url).await.unwrap();
    locks.show("a").await.unwrap();
    // Stuck on its way; the attempt gives up.
    proxy.strand();
    let lock = locks.lock("a").ttl(LONG);
    let mut waiting = Box::pin(lock.acquire());
    poll_once(&mut waiting).await;
    bounded("it gives up", waiting).await.unwrap_err();
    proxy.pass();
    until("it has arrived", async || !server.keys_like("{lock:a}:fence").is_empty()).await;
    until("it is undone", async || server.keys_like("lock:*").is_empty()).await;
}

/// A handle whose attachment was given up is still good.
#[tokio::test]
async fn an_attachment_that_is_given_up_leaves_the_handle_good() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let locks = Locks::connect(&server.url_at(proxy.addr())).await.unwrap();
    let handle = locks.lock("a").ttl(secs(60)).acquire().await.unwrap().detach().await.unwrap();
    proxy.hold_answers();
    let calls = server.evalsha_calls();
    let mut attaching = Box::pin(locks.attach(&handle));
    while server.evalsha_calls() == calls {
        poll_once(&mut attaching).await;
        tokio::time::sleep(ms(1)).await;
    }
    drop(attaching);
    proxy.pass();
    until("it is the handle's again", async || {
        locks.show("a").await.unwrap().unwrap().owner == Some(handle.owner())
    })
    .await;
    locks.attach(&handle).await.unwrap().release().await.unwrap();
}

/// The request that undoes it is refused: that is no answer to it.
#[tokio::test]
async fn an_attachment_is_undone_though_the_server_has_forgotten_the_script_meanwhile() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let locks = Locks::connect(&server.url_at(proxy.addr())).await.unwrap();
    let handle = locks.lock("a").ttl(secs(60)).acquire().await.unwrap().detach().await.unwrap();
    proxy.hold_answers();
    let calls = server.evalsha_calls();
    let mut attaching = Box::pin(locks.attach(&handle));
    while server.evalsha_calls() == calls {
        poll_once(&mut attaching).await;
        tokio::time::sleep(ms(1)).await;
    }
    server.cli(&["SCRIPT", "FLUSH"]);
    drop(attaching);
    proxy.pass();
    until("it is the handle's again", async || {
        locks.show("a").await.unwrap().unwrap().owner == Some(handle.owner())
    })
    .await;
    locks.attach(&handle).await.unwrap().release().await.unwrap();
}

/// The first request may have done it, or the handle was good for nothing: only what is there now can tell.
#[tokio::test]
async fn a_release_by_handle_whose_answer_was_lost_says_no_more_than_is_known() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (locks, others) =
        (Locks::connect(&server.url_at(proxy.addr())).await.unwrap(), connect(&server).await);
    let lock = others.lock("a").ttl(secs(60)).wait(secs(20));
    let unknown = |result| matches!(result, Err(Error::Uncertain { .. }));
    let lost = |result| matches!(result, Err(Error::Lost { why: Loss::Taken, .. }));
    let handle = lock.acquire().await.unwrap().detach().await.unwrap();
    let (token, rest) = (handle.token().get(), handle.to_string());
    let forged: Handle = format!("{}.{}", token + 1, rest.split_once('.').unwrap().1).parse().unwrap();
    proxy.cut_next_answer();
    assert!(lost(locks.release(&forged).await), "it is there, under another token");
    proxy.cut_next_answer();
    assert!(unknown(locks.release(&handle).await), "it was given back, which nobody can know");
    assert!(lost(locks.release(&handle).await));
    proxy.cut_next_answer();
    assert!(unknown(locks.release(&handle).await), "it was given back before");

    let handle = lock.acquire().await.unwrap().detach().await.unwrap();
    let guard = others.attach(&handle).await.unwrap();
    proxy.cut_next_answer();
    assert!(lost(locks.release(&handle).await), "it was attached");
    guard.release().await.unwrap();
    let _next = lock.acquire().await.unwrap();
    proxy.cut_next_answer();
    assert!(unknown(locks.release(&handle).await), "somebody may have come after the release");
}
