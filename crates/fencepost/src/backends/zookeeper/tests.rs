//! What a session counts on, by a clock that leaps as it does for a process that was stopped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fencepost_testkit::LIMIT;
use fencepost_testkit::zookeeper::{Operation, Relay, Server};

use super::config::Config;
use super::connection::Connection;
use super::session::Session;
use super::sessions::Sessions;
use crate::runtime::clock::ManualClock;
use crate::url::StoreUrl;

const TTL: Duration = Duration::from_secs(60);

async fn session(addr: SocketAddr, clock: &ManualClock) -> Arc<Session> {
    let url = StoreUrl::parse(&format!("zookeeper://{addr}")).unwrap();
    let config = Config::from_url(url).unwrap();
    Sessions::new(config, clock.clock()).of(TTL, TTL).await.unwrap()
}

async fn link(session: &Session) -> Arc<Connection> {
    session.link(session.patience()).await.unwrap()
}

/// Waits until something that was sent now or later confirms the session.
async fn confirmed(session: &Session) {
    let now = session.clock().now();
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
        let before = link(&session).await;
        clock.leap(TTL * 6 / 10);
        confirmed(&session).await;
        assert!(
            !Arc::ptr_eq(&before, &link(&session).await),
            "confirmed by an answer over the old connection"
        );
        assert!(!session.has_ended());
    }
}

#[tokio::test]
async fn a_short_silence_costs_no_connection() {
    let (server, clock) = (Server::start(), ManualClock::new());
    let session = session(server.addr(), &clock).await;
    let before = link(&session).await;
    for _ in 0..3 {
        clock.leap(TTL * 4 / 10);
        confirmed(&session).await;
    }
    assert!(Arc::ptr_eq(&before, &link(&session).await));
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
    assert!(session.beat().await.is_err());
    assert_eq!(session.confirmed(), before);
    session.beat().await.unwrap();
    assert_eq!(session.confirmed(), clock.now());
}
