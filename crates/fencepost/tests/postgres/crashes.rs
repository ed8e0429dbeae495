//! Who waits while a server crashes, and a server that stands still as a whole.

use fencepost::{Error, Locks};
use fencepost_testkit::postgres::Server;

use crate::harness::{LONG, bounded, calm, take, until};

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
    Locks::init(&calm(&server.url(&database))).await.unwrap();
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_detached_renewed_or_attached_by_handle_outlives_a_crash() {
    // Nothing is written to disk unless somebody waits for it.
    let mut server = Server::config().fsync().line("wal_writer_delay = 10s").start();
    let database = server.create_database();
    let url = calm(&server.url(&database));
    let locks = Locks::connect(&url).await.unwrap();
    let handle = locks.lock("a").ttl(LONG).acquire().await.unwrap().detach().await.unwrap();
    server.restart();
    let locks = Locks::connect(&url).await.unwrap();
    assert_eq!(locks.show("a").await.unwrap().unwrap().owner, Some(handle.owner()));
    locks.extend(&handle, LONG * 4).await.unwrap();
    server.restart();
    let locks = Locks::connect(&url).await.unwrap();
    assert!(locks.show("a").await.unwrap().unwrap().expires_in > Some(LONG * 2));
    let guard = locks.lock("a").ttl(LONG).attach(&handle).await.unwrap();
    server.restart();
    let locks = Locks::connect(&url).await.unwrap();
    let holder = locks.show("a").await.unwrap().unwrap();
    assert_eq!((holder.owner, holder.token), (Some(guard.owner()), Some(handle.token())));
}

/// Its guard is of no session that the crash would end: what it was told must be true after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_attached_guard_was_told_outlives_a_crash() {
    let mut server = Server::config().fsync().line("wal_writer_delay = 10s").start();
    let database = server.create_database();
    let url = calm(&server.url(&database));
    let locks = Locks::connect(&url).await.unwrap();
    let handle = locks.lock("a").ttl(LONG).acquire().await.unwrap().detach().await.unwrap();
    let guard = locks.lock("a").ttl(LONG).attach(&handle).await.unwrap();
    let ends = "SELECT ends FROM fencepost.locks";
    let before = server.psql(&database, ends);
    guard.extend().await.unwrap();
    let renewed = server.psql(&database, ends);
    assert_ne!(renewed, before);
    server.restart();
    let kept = format!("SELECT ends >= '{renewed}' FROM fencepost.locks");
    assert_eq!(server.psql(&database, &kept), "t");
    let handle = guard.detach().await.unwrap();
    locks.release(&handle).await.unwrap();
    server.restart();
    let locks = Locks::connect(&url).await.unwrap();
    assert!(matches!(locks.extend(&handle, LONG).await, Err(Error::Lost { .. })), "it was given back");
}

/// A job queue that delivers twice attaches what another process still holds. That process may end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attached_lock_does_not_end_with_the_session_of_the_guard_before_it() {
    let server = Server::start();
    let database = server.create_database();
    let url = format!("{}?lock_delay=0", server.url(&database));
    Locks::init(&url).await.unwrap();
    let [first, second, third] =
        [Locks::connect(&url).await, Locks::connect(&url).await, Locks::connect(&url).await]
            .map(Result::unwrap);
    let guard = take(&first, "a").await;
    let handle = guard.handle();
    let attached = second.lock("a").ttl(LONG).attach(&handle).await.unwrap();
    server.psql(
        &database,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() \
         AND application_name LIKE 'fencepost%'",
    );
    bounded("the guard before learns it", guard.lost()).await;
    drop(guard);
    assert!(third.lock("a").ttl(LONG).try_acquire().await.unwrap().is_none(), "it is attached");
    until("it has a session again", async || second.check().await.is_ok()).await;
    attached.release().await.unwrap();
    until("it is free", async || third.lock("a").ttl(LONG).try_acquire().await.unwrap().is_some()).await;
}
