//! Pools that share connections between clients: refused where they would lose locks, used where they cannot.

use fencepost::postgres::lock_in_transaction;
use fencepost::{Error, Locks};
use fencepost_testkit::postgres::{Bouncer, Pooling};

use crate::stage::{Database, calm, take};

fn url(bouncer: &Bouncer, database: &Database) -> String {
    calm(&plain_url(bouncer, database))
}

/// The same for the driver itself.
fn plain_url(bouncer: &Bouncer, database: &Database) -> String {
    database.server.url_at(bouncer.addr(), &database.name)
}

#[tokio::test]
async fn a_transaction_pool_is_refused_and_the_fix_is_named() {
    let database = Database::new();
    for pooling in [Pooling::Transaction, Pooling::Statement] {
        let bouncer = Bouncer::start(database.server, pooling);
        for _ in 0..3 {
            let error = Locks::connect(&url(&bouncer, &database)).await.unwrap_err();
            assert!(matches!(error, Error::Config { .. }), "{pooling:?}: {error:?}");
            let text = error.to_string();
            assert!(text.contains("session mode") && text.contains("lock_in_transaction"), "{text}");
        }
    }
}

#[tokio::test]
async fn a_busy_transaction_pool_is_refused_too() {
    let database = Database::new();
    let bouncer = Bouncer::start(database.server, Pooling::Transaction);
    let mut others = Vec::new();
    for _ in 0..3 {
        let (client, connection) =
            tokio_postgres::connect(&plain_url(&bouncer, &database), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.simple_query("SELECT 1").await.unwrap();
        others.push(client);
    }
    others[0].simple_query("BEGIN").await.unwrap();
    let error = Locks::connect(&url(&bouncer, &database)).await.unwrap_err();
    assert!(error.to_string().contains("session mode"), "{error}");
}

#[tokio::test]
async fn a_session_pool_is_as_good_as_the_server() {
    let database = Database::new();
    let bouncer = Bouncer::start(database.server, Pooling::Session);
    let (locks, direct) = (Locks::connect(&url(&bouncer, &database)).await.unwrap(), database.locks().await);
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
    Locks::init(&url(&bouncer, &database), false).await.unwrap();
    let locks = database.locks().await;
    let (mut client, connection) =
        tokio_postgres::connect(&plain_url(&bouncer, &database), tokio_postgres::NoTls).await.unwrap();
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
