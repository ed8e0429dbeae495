//! A lock's ttl is the timeout of its session: what the server does not grant is refused.

use std::time::Duration;

use fencepost::SupervisorExt as _;
use fencepost::{Error, Locks, Loss};
use fencepost_testkit::zookeeper::Server;

use crate::harness::{LONG, Part, bounded, contenders, ms, patient, take, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ttl_that_the_server_does_not_grant_is_refused_with_the_one_it_does() {
    let part = Part::new();
    let locks = part.locks().await;
    for (ttl, limit, setting) in
        [(ms(100), "200ms", "minSessionTimeout"), (Duration::from_secs(3600), "20m", "maxSessionTimeout")]
    {
        let error = locks.lock("a").ttl(ttl).acquire().await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        assert!(error.to_string().contains(limit) && error.to_string().contains(setting), "{error}");
    }
    part.is_clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_other_limits_can_still_be_looked_at() {
    let server = Server::start_with("maxSessionTimeout=5000");
    let locks = Locks::connect(&server.url()).await.unwrap();
    assert_eq!(locks.list("").await.unwrap().holders, []);
    assert!(matches!(locks.lock("a").try_acquire().await, Err(Error::Invalid { .. })));
    locks.lock("a").ttl(Duration::from_secs(5)).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_not_extended_beyond_its_session() {
    let part = Part::new();
    let locks = part.locks().await;
    let guard = locks.lock("a").ttl(Duration::from_secs(20)).without_renewal().acquire().await.unwrap();
    let end = guard.valid_until_boottime();
    let error = guard.extend_to(LONG).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("20s"), "{error}");
    assert_eq!(guard.valid_until_boottime(), end);
    // And a shorter extension does not shorten.
    guard.extend_to(Duration::from_secs(1)).await.unwrap();
    assert!(guard.valid_until_boottime() >= end);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_does_not_outlive_a_session_that_another_server_shortens() {
    let mut server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let guard = patient(&locks, "a").without_renewal().acquire().await.unwrap();
    // Heartbeats are frequent enough to keep the shorter session, so that nothing but its length can end the
    // guard.
    server.restart_with("maxSessionTimeout=30000");
    assert_eq!(bounded("it is lost", guard.lost()).await, Loss::SessionEnded);
    assert_eq!(contenders(&server, "").len(), 1, "the server has not ended the session yet");
    let error = locks.lock("a").ttl(LONG).acquire().await.unwrap_err();
    assert!(error.to_string().contains("maxSessionTimeout"), "{error}");
}

/// How many sessions a server has.
fn sessions(server: &Server) -> usize {
    server.ask("cons").unwrap().lines().filter(|line| line.contains("sid=")).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_different_ttls_exclude_each_other_on_few_sessions() {
    let server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let guard = take(&locks).await;
    for seconds in 1..30 {
        let ttl = Duration::from_secs(seconds);
        assert!(locks.lock("a").ttl(ttl).try_acquire().await.unwrap().is_none());
    }
    until("idle sessions are closed", async || sessions(&server) <= 12).await;
    guard.extend().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_leaves_no_session_behind() {
    let server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let guard = take(&locks).await;
    locks.clone().close().await;
    // A lock that is held stays held, and its session with it.
    guard.check().unwrap();
    guard.extend().await.unwrap();
    assert!(sessions(&server) > 0);
    guard.release().await.unwrap();
    drop(locks);
    until("the session of the last lock is closed with it", async || sessions(&server) == 0).await;
}
