//! Promise 7: each kind of trouble has an error of its own, that names the holder and never a password.

use super::{Harness, bounded, take};
use fencepost::{Error, Locks};
use fencepost_testkit::redis::Server;
use std::error::Error as _;

on_redis!(a_killed_server_is_out_of_reach, a_server_that_became_a_replica_is_a_configuration_error,);

const PASSWORD: &str = "correct-horse-battery";

/// All an error says: to people, to developers, and in its sources.
fn everything(error: &Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(inner) = source {
        text += &format!(" {inner} {inner:?}");
        source = inner.source();
    }
    text
}

#[tokio::test]
async fn a_wrong_password_is_a_configuration_error() {
    let server = Server::config().password(PASSWORD).start();
    let right = server.url();
    let none = format!("redis://{}", server.addr());
    let wrong = right.replace(PASSWORD, "wrong-horse-battery");
    for url in [none, wrong] {
        let error = Locks::connect(&url).await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }) && !error.is_transient(), "{error}");
        assert!(error.to_string().contains("password"), "{error}");
        assert!(!everything(&error).contains("horse"), "{error:?}");
    }
    Locks::connect(&right).await.unwrap();
}

#[tokio::test]
async fn a_password_is_in_no_message() {
    let server = Server::config().user("alice", PASSWORD).start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let guard = take(&locks, "a").await;
    let shown = format!(
        "{locks:?} {:?} {guard:?} {:?} {:?}",
        locks.capabilities(),
        locks.lock("a"),
        locks.show("a").await.unwrap()
    );
    assert!(!shown.contains(PASSWORD), "{shown}");
    drop(server);
    let error = locks.lock("b").try_acquire().await.unwrap_err();
    assert!(!everything(&error).contains(PASSWORD), "{error:?}");
    for url in [
        format!("redis://alice:{PASSWORD}@127.0.0.1:1"),
        format!("redis://alice:{PASSWORD}@127.0.0.1:x"),
        format!("redis://alice:{PASSWORD}@127.0.0.1?nope=1"),
        format!("redis://alice:{PASSWORD}@127.0.0.1/not-a-number"),
        format!("nope://alice:{PASSWORD}@127.0.0.1"),
        format!("alice:{PASSWORD}@127.0.0.1"),
    ] {
        let error = Locks::connect(&url).await.unwrap_err();
        assert!(!everything(&error).contains(PASSWORD), "{error:?}");
    }
}

#[tokio::test]
async fn a_refused_connection_is_unavailable() {
    let server = Server::start();
    let url = server.url();
    drop(server);
    let error = bounded("connecting ends", Locks::connect(&url)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }) && error.is_transient(), "{error}");
    let Error::Unavailable { source, .. } = &error else { unreachable!() };
    assert!(source.to_string().contains("refused") || source.source().is_some(), "{source}");
}

#[tokio::test]
async fn a_replica_is_refused_with_the_alternative() {
    let primary = Server::start();
    let replica = Server::config().replica_of(&primary).start();
    let error = Locks::connect(&replica.url()).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error}");
    assert!(error.to_string().contains("replica"), "{error}");
}

#[tokio::test]
async fn an_evicting_server_is_refused_with_the_alternative() {
    for policy in ["allkeys-lru", "volatile-ttl", "allkeys-random"] {
        let server = Server::config().maxmemory_policy(policy).start();
        let error = Locks::connect(&server.url()).await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error}");
        assert!(error.to_string().contains(policy) && error.to_string().contains("noeviction"), "{error}");
    }
    let server = Server::config().maxmemory_policy("noeviction").start();
    Locks::connect(&server.url()).await.unwrap();
}

async fn a_killed_server_is_out_of_reach(mut harness: Harness) {
    let locks = harness.locks().await;
    harness.server_mut().kill();
    let error = bounded("the try ends", locks.lock("a").try_acquire()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(bounded("show ends", locks.show("a")).await.is_err());
    harness.server_mut().restart();
    take(&locks, "a").await.release().await.unwrap();
}

async fn a_server_that_became_a_replica_is_a_configuration_error(harness: Harness) {
    let locks = harness.locks().await;
    let primary = Server::start();
    harness.server().cli(&["REPLICAOF", "127.0.0.1", &primary.addr().port().to_string()]);
    let error = bounded("the try ends", locks.lock("a").try_acquire()).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
}
