//! Pools that share connections between clients, where they cannot lose locks. Others are refused: row
//! 39 of the scenarios.

use fencepost::Locks;
use fencepost::postgres::lock_in_transaction;
use fencepost_testkit::postgres::{Bouncer, Pooling};

use crate::harness::{Database, take};

#[tokio::test]
async fn a_session_pool_is_as_good_as_the_server() {
    let database = Database::new();
    let bouncer = Bouncer::start(database.server, Pooling::Session);
    let (locks, direct) =
        (Locks::connect(&database.url_over(bouncer.addr())).await.unwrap(), database.locks().await);
    let guard = take(&locks, "a").await;
    assert!(direct.lock("a").try_acquire().await.unwrap().is_none());
    guard.extend().await.unwrap();
    guard.release().await.unwrap();
    take(&direct, "a").await.release().await.unwrap();
}

#[tokio::test]
async fn a_lock_in_a_transaction_works_through_a_transaction_pool() {
    let database = Database::new();
    let bouncer = Bouncer::start(database.server, Pooling::Transaction);
    Locks::init(&database.url_over(bouncer.addr())).await.unwrap();
    let locks = database.locks().await;
    let (mut client, connection) =
        tokio_postgres::connect(&database.driver_url_over(bouncer.addr()), tokio_postgres::NoTls)
            .await
            .unwrap();
    tokio::spawn(connection);
    let mut last = None;
    for _ in 0..3 {
        let transaction = client.transaction().await.unwrap();
        let token = lock_in_transaction(&transaction, "a").await.unwrap();
        assert!(Some(token) > last);
        assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
        transaction.commit().await.unwrap();
        let guard = take(&locks, "a").await;
        assert!(guard.token() > token);
        last = Some(guard.token());
        guard.release().await.unwrap();
    }
}
