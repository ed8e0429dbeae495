//! What a session counts on, by a clock that leaps as it does for a process that was stopped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fencepost_testkit::LIMIT;
use fencepost_testkit::zookeeper::{Operation, Relay, Server};

use super::super::config::Config;
use super::super::sessions::Sessions;
use super::connection::Connection;
use super::session_driver::Status;
use super::{Cause, OpenSession, requests};
use crate::runtime::clock::ManualClock;
use crate::url::StoreUrl;

const TTL: Duration = Duration::from_secs(60);

async fn session(addr: SocketAddr, clock: &ManualClock) -> Arc<OpenSession> {
    let url = StoreUrl::parse(&format!("zookeeper://{addr}")).unwrap();
    let config = Config::from_url(url).unwrap();
    Sessions::new(config, clock.clock()).of(TTL, TTL).await.unwrap()
}

async fn connection(session: &OpenSession) -> Arc<Connection> {
    session.connected(session.patience()).await.unwrap();
    match &*session.status.borrow() {
        Status::Connected(connection) => connection.clone(),
        status => panic!("{status:?}"),
    }
}

/// Waits until something that was sent now or later confirms the session.
async fn confirmed(session: &OpenSession) {
    let now = session.clock.now();
    let wait = async {
        while session.confirmed() < now {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, wait).await.unwrap();
}

#[tokio::test]
async fn after_a_long_silence_only_a_new_connection_confirms_a_session() {
    let (server, clock) = (Server::start(), ManualClock::new());
    let session = session(server.addr(), &clock).await;
    for _ in 0..3 {
        let before = connection(&session).await;
        clock.leap(TTL * 6 / 10);
        confirmed(&session).await;
        assert!(
            !Arc::ptr_eq(&before, &connection(&session).await),
            "confirmed by an answer over the old connection"
        );
        assert!(!session.has_ended());
    }
}

#[tokio::test]
async fn a_short_silence_costs_no_connection() {
    let (server, clock) = (Server::start(), ManualClock::new());
    let session = session(server.addr(), &clock).await;
    let before = connection(&session).await;
    for _ in 0..3 {
        clock.leap(TTL * 4 / 10);
        confirmed(&session).await;
    }
    assert!(Arc::ptr_eq(&before, &connection(&session).await));
}

#[tokio::test]
async fn a_refusal_that_the_leader_has_no_part_in_confirms_nothing() {
    const THROTTLED: i32 = -127;
    let (server, clock) = (Server::start(), ManualClock::new());
    let relay = Relay::start(server.addr());
    let session = session(relay.addr(), &clock).await;
    let before = session.confirmed();
    // Too short for a heartbeat to fall due.
    clock.leap(TTL / 60);
    relay.answer_with(Operation::Sync, THROTTLED);
    let refused = session.call(&requests::sync(), session.patience()).await;
    assert!(matches!(refused.unwrap_err().cause, Cause::Refused(_)));
    assert_eq!(session.confirmed(), before);
    session.heartbeat().await.unwrap();
    assert_eq!(session.confirmed(), clock.now());
}
