//! Who waits while a server crashes, and a server that stands still as a whole.

use fencepost::{Error, Locks};
use fencepost_testkit::postgres::Server;

use crate::stage::{LONG, bounded, calm, take, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_sits_out_a_crash() {
    let mut server = Server::start();
    let database = server.create_database();
    let (locks, rival) = (
        Locks::connect(&calm(&server.url(&database))).await.unwrap(),
        Locks::connect(&calm(&server.url(&database))).await.unwrap(),
    );
    let held = take(&locks, "a").await;
    let waiter = tokio::spawn({
        let lock = rival.lock("a").ttl(LONG);
        async move { lock.acquire().await.unwrap() }
    });
    until("the server knows that it waits", async || {
        server.psql(&database, "SELECT count(*) FROM fencepost.waiters") == "1"
    })
    .await;
    server.restart();
    bounded("the guard learns it", held.lost()).await;
    drop(held);
    bounded("the waiter gets the lock", waiter).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_stopped_server_does_when_it_wakes_up_is_undone() {
    let server = Server::start();
    let database = server.create_database();
    Locks::init(&calm(&server.url(&database)), false).await.unwrap();
    let url = format!("{}?timeout=2s", server.url(&database));
    let locks = Locks::connect(&url).await.unwrap();
    server.pause();
    let error = bounded("the try ends", locks.lock("a").ttl(LONG).try_acquire()).await.unwrap_err();
    let connecting = bounded("connecting ends", Locks::connect(&url)).await.unwrap_err();
    server.resume();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(matches!(connecting, Error::Unavailable { .. }), "{connecting}");
    until("it is free", async || matches!(locks.lock("a").ttl(LONG).try_acquire().await, Ok(Some(_)))).await;
}
