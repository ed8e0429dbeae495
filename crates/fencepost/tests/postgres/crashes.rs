//! A server that crashes, or stands still as a whole.

use fencepost::{Error, Locks, Loss};
use fencepost_testkit::postgres::Server;

use crate::stage::{LONG, bounded, calm, take, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_ends_sessions_and_keeps_what_was_durable() {
    let mut server = Server::config().fsync().start();
    let database = server.create_database();
    let url = format!("{}&durable=yes", calm(&server.url(&database)));
    let locks = Locks::connect(&url).await.unwrap();
    let mut last = None;
    for _ in 0..3 {
        let guard = take(&locks, "a").await;
        assert!(Some(guard.token()) > last);
        server.kill();
        assert_eq!(bounded("the guard learns it", guard.lost()).await, Loss::SessionEnded);
        let error = bounded("the try ends", locks.lock("b").try_acquire()).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        server.restart();
        // Its last grant was on disk before it was told.
        let rival = Locks::connect(&url).await.unwrap();
        assert!(rival.lock("a").try_acquire().await.unwrap().is_none());
        let holder = rival.show("a").await.unwrap().unwrap();
        assert_eq!((holder.owner, holder.token), (Some(guard.owner()), Some(guard.token())));
        last = Some(guard.token());
        drop(guard);
    }
    take(&locks, "a").await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_may_lose_a_grant_that_was_not_durable_and_still_no_token_repeats() {
    let mut server = Server::start();
    let database = server.create_database();
    let url = calm(&server.url(&database));
    let mut last = None;
    for _ in 0..3 {
        let locks = Locks::connect(&url).await.unwrap();
        for _ in 0..20 {
            let guard = bounded("it is acquired", take(&locks, "a")).await;
            assert!(Some(guard.token()) > last, "{:?} after {last:?}", guard.token());
            last = Some(guard.token());
            guard.release().await.unwrap();
        }
        server.restart();
        // A crash may also lose releases.
        server.psql(&database, "UPDATE fencepost.locks SET ends = clock_timestamp()");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_takes_no_number_of_a_sequence_back() {
    // It logs a number ahead only every 32 times, and not before somebody waits for the log.
    let mut server = Server::config().fsync().line("wal_writer_delay = 10s").start();
    let database = server.create_database();
    server.psql(&database, "CREATE SEQUENCE public.fence");
    let url = format!("{}&sequence=public.fence", calm(&server.url(&database)));
    let mut last = None;
    for _ in 0..3 {
        let locks = Locks::connect(&url).await.unwrap();
        for number in 0..40 {
            // Locks of their own, whose rows are as young as the numbers.
            let guard = bounded("it is acquired", take(&locks, &format!("{last:?} {number}"))).await;
            assert!(Some(guard.token()) > last, "{:?} after {last:?}", guard.token());
            last = Some(guard.token());
            drop(guard);
        }
        server.restart();
    }
}

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
