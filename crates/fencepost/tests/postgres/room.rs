//! A server has a table of locks for all its sessions. Whoever fills it keeps everybody from connecting.

use fencepost::{Error, Locks};
use fencepost_testkit::postgres::Server;

use crate::harness::{LONG, calm, ms, take, until};

/// Ten locks for each of twenty connections: two hundred, and what the server has to spare.
fn small() -> Server {
    Server::config().line("max_locks_per_transaction = 10").line("max_connections = 20").start()
}

const QUOTA: usize = 50;
const MORE: usize = 2_000;

const ADVISORY: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_locks_than_the_server_has_room_for_keep_nobody_out() {
    let server = small();
    let database = server.create_database();
    let url = calm(&server.url(&database));
    let (locks, rival) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    let mut guards = Vec::new();
    for number in 0..MORE {
        guards.push(locks.lock(format!("{number}")).ttl(LONG).acquire().await.unwrap());
    }
    assert_eq!(server.psql(&database, ADVISORY), QUOTA.to_string());
    let third = Locks::connect(&url).await.unwrap();
    // Those with an advisory lock and those without exclude alike, also a client that has room, and a
    // transaction.
    for number in [0, QUOTA - 1, QUOTA, MORE - 1] {
        let name = number.to_string();
        for locks in [&locks, &rival, &third] {
            assert!(locks.lock(&*name).try_acquire().await.unwrap().is_none(), "{name}");
        }
        let taken = format!("SELECT fencepost.try_lock_in_transaction('{name}') IS NULL");
        assert_eq!(server.psql(&database, &taken), "t", "{name}");
    }
    let other = take(&rival, "other").await;
    assert!(locks.lock("other").try_acquire().await.unwrap().is_none());
    // What other code has to see cannot be a lease alone.
    let error = locks.lock("pg:7").try_acquire().await.unwrap_err();
    assert!(matches!(&error, Error::Config { .. }), "{error:?}");
    assert!(error.to_string().contains("`max_locks_per_transaction`"), "{error}");
    let key = take(&rival, "pg:7").await;
    assert_eq!(server.psql(&database, "SELECT pg_try_advisory_lock(7)"), "f");
    for guard in guards {
        guard.extend().await.unwrap();
        guard.release().await.unwrap();
    }
    take(&locks, "pg:8").await.release().await.unwrap();
    drop((other, key));
    until("all are given back", async || server.psql(&database, ADVISORY) == "0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_others_fill_the_table_nothing_is_added_to_it() {
    let server = small();
    let database = server.create_database();
    let locks = Locks::connect(&calm(&server.url(&database))).await.unwrap();
    let (client, connection) =
        tokio_postgres::connect(&server.url(&database), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let held = locks.lock("held").ttl(LONG).renew_every(ms(50)).acquire().await.unwrap();
    client.batch_execute("SELECT pg_advisory_lock(1, n) FROM generate_series(1, 120) n").await.unwrap();
    let alone = async || {
        let guard = take(&locks, "a").await;
        let alone = server.psql(&database, "SELECT session IS NULL FROM fencepost.locks WHERE name = 'a'");
        guard.release().await.unwrap();
        alone
    };
    until("it has seen that", async || alone().await == "t").await;
    client.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    until("it has seen that", async || alone().await == "f").await;
    held.release().await.unwrap();
}
