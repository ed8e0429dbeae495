//! Connections that end, and servers that come back.

use fencepost::{Error, Locks, Loss, State};
use fencepost_testkit::zookeeper::{Mode, Server};

use crate::harness::{
    LONG, Part, SHORT, bounded, contenders, ms, patient, start_waiting, take, until, use_once,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_survives_a_reset_connection() {
    let part = Part::new();
    let locks = part.behind_link().await;
    let guard = patient(&locks, "a").renew_every(ms(50)).acquire().await.unwrap();
    let node = part.contenders();
    for _ in 0..3 {
        part.link.reset();
        let before = locks.stats().renewed;
        until("it is renewed over a new connection", async || locks.stats().renewed > before + 1).await;
    }
    assert!(matches!(guard.state(), State::Held { .. }));
    assert_eq!(part.contenders(), node, "the same node of the same session");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_keeps_its_place_through_a_reset_connection() {
    let part = Part::new();
    let (locks, far) = (part.locks().await, part.behind_link().await);
    let held = take(&locks).await;
    let waiter = start_waiting(&far);
    until("it stands in line", async || part.contenders().len() == 2).await;
    let line = part.contenders();
    // Its watch is lost with the connection, and the release falls into the gap.
    part.link.cut();
    held.release().await.unwrap();
    part.link.pass();
    let guard = bounded("it gets the lock", waiter).await.unwrap().unwrap();
    let now = part.contenders();
    assert!(now.len() == 1 && line.contains(&now[0]), "{now:?} of {line:?}");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_is_out_of_reach_and_back_with_all_locks() {
    let mut server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let guard = patient(&locks, "a").renew_every(ms(50)).acquire().await.unwrap();
    server.kill();
    let error = bounded("the try ends", locks.lock("b").ttl(LONG).try_acquire()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(bounded("show ends", locks.show("a")).await.is_err());
    until("the guard is at risk", async || matches!(guard.state(), State::AtRisk { .. })).await;
    server.restart();
    until("it is held again", async || matches!(guard.state(), State::Held { .. })).await;
    let rival = Locks::connect(&server.url()).await.unwrap();
    assert!(rival.lock("a").ttl(LONG).try_acquire().await.unwrap().is_none());
    let token = guard.token().get();
    guard.release().await.unwrap();
    assert!(use_once(&rival).await > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_lost_its_data_ends_all_locks_in_time() {
    let mut server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let guard = locks.lock("a").ttl(SHORT).acquire().await.unwrap();
    server.restart_empty();
    let why = bounded("it is lost", guard.lost()).await;
    assert!(matches!(why, Loss::SessionEnded | Loss::Unreachable | Loss::Paused), "{why:?}");
    assert!(contenders(&server, "").is_empty());
    // The store goes on with a new session.
    use_once(&locks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_the_server_does_not_know_ends_all_its_locks_at_once() {
    let mut server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let guard = patient(&locks, "a").without_renewal().acquire().await.unwrap();
    server.restart_empty();
    // A server that has seen fewer transactions than we have refuses us; one that has seen more knows better.
    let mut client = server.client();
    for number in 0..200 {
        client.create(&format!("/filler-{number}"), b"", Mode::Persistent).unwrap();
    }
    // Its ttl is far from over, and nobody renews it.
    assert_eq!(bounded("it is lost", guard.lost()).await, Loss::SessionEnded);
    assert!(matches!(guard.release().await, Err(Error::Lost { why: Loss::SessionEnded, .. })));
    use_once(&locks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_at_its_deadline_though_the_server_stands_still() {
    let server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let held = take(&locks).await;
    let waiter = start_waiting(&locks);
    until("it stands in line", async || contenders(&server, "").len() == 2).await;
    server.pause();
    let outcome = bounded("the wait ends", locks.lock("a").ttl(LONG).wait(ms(100)).acquire()).await;
    server.resume();
    assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}");
    held.release().await.unwrap();
    bounded("the other is served", waiter).await.unwrap().unwrap().release().await.unwrap();
    until("nothing is left", async || contenders(&server, "").is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_locks_with_long_names_survive_a_reset_connection() {
    let part = Part::new();
    let locks = part.behind_link().await;
    let mut guards = Vec::new();
    for number in 0..1000 {
        // Each byte is three in the path: what is watched has more than a megabyte of names.
        let name = format!("{number}{}", "%".repeat(450));
        let guard = locks.lock(name).ttl(LONG).without_renewal().acquire().await.unwrap();
        // With this answer its node is watched.
        guard.extend().await.unwrap();
        guards.push(guard);
    }
    part.link.reset();
    until("requests are answered again", async || guards[0].extend().await.is_ok()).await;
    for guard in guards {
        guard.extend().await.unwrap();
    }
}

/// Locks over the link that give a request little time.
async fn hasty(part: &Part) -> Locks {
    let url = format!("zookeeper://{}{}?timeout=200ms", part.link.addr(), part.chroot);
    // On a busy machine that may be too little to connect.
    let mut locks = None;
    until("it connects", async || {
        locks = Locks::connect(&url).await.ok();
        locks.is_some()
    })
    .await;
    locks.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_waits_outlives_a_lost_connection_though_nobody_held_the_lock() {
    let part = Part::new();
    let locks = hasty(&part).await;
    drop(take(&locks).await);
    part.is_clear().await;
    // More tries to reconnect than fit into the time of one request.
    part.link.cut();
    let harm = part.link.harm();
    let acquire = start_waiting(&locks);
    until("it was in vain for a while", async || part.link.harm() > harm + 10).await;
    assert!(!acquire.is_finished(), "{:?}", acquire.await);
    part.link.pass();
    drop(bounded("it is acquired", acquire).await.unwrap().unwrap());
    part.is_clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_waits_has_time_to_open_a_session() {
    let part = Part::new();
    let locks = hasty(&part).await;
    drop(take(&locks).await);
    part.is_clear().await;
    part.link.cut();
    let harm = part.link.harm();
    // A ttl that has no session yet.
    let lock = locks.lock("a").ttl(LONG / 2).wait(fencepost_testkit::LIMIT);
    let acquire = tokio::spawn(async move { lock.acquire().await });
    until("it was in vain for a while", async || part.link.harm() > harm + 10).await;
    assert!(!acquire.is_finished(), "{:?}", acquire.await);
    part.link.pass();
    drop(bounded("it is acquired", acquire).await.unwrap().unwrap());
    part.is_clear().await;
}
