//! Answers that are lost, late or cut off.

use std::sync::Arc;

use fencepost::SupervisorExt as _;
use fencepost::{Error, Locks, State};
use fencepost_testkit::Proxy;

use crate::harness::{Database, LONG, bounded, ms, patient, take, until};

/// A client over a link that has an acquire under way: granted at the server, and its answer held back.
async fn unanswered(
    database: &Database,
    proxy: &Proxy,
) -> (Locks, tokio::task::JoinHandle<fencepost::Result<()>>) {
    let locks = Locks::connect(&database.url_over(proxy.addr())).await.unwrap();
    proxy.hold_answers();
    let acquire = tokio::spawn({
        let lock = patient(&locks, "a");
        async move { lock.acquire().await.map(drop) }
    });
    until("the server has granted it", async || database.rows() == "1").await;
    (locks, acquire)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_dropped_before_its_answer_is_undone() {
    let database = Database::new();
    let proxy = Proxy::start(database.server.addr());
    let (_locks, acquire) = unanswered(&database, &proxy).await;
    acquire.abort();
    assert!(acquire.await.unwrap_err().is_cancelled());
    proxy.pass();
    database.is_clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_dropped_before_its_answer_is_undone_over_a_new_connection() {
    let database = Database::new();
    let proxy = Proxy::start(database.server.addr());
    let (_locks, acquire) = unanswered(&database, &proxy).await;
    acquire.abort();
    assert!(acquire.await.unwrap_err().is_cancelled());
    proxy.reset();
    database.is_clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_undoes_an_acquire_after_the_end_leaves_no_connection() {
    let database = Database::new();
    let proxy = Proxy::start(database.server.addr());
    let (locks, acquire) = unanswered(&database, &proxy).await;
    // What still has a handle keeps the store.
    let other = locks.clone();
    acquire.abort();
    assert!(acquire.await.unwrap_err().is_cancelled());
    locks.close().await;
    proxy.pass();
    database.is_clear().await;
    until("no connection is left", async || {
        let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE datname = '{}'", database.name);
        database.server.psql("postgres", &sql) == "0"
    })
    .await;
    drop(other);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_whose_answer_is_lost_holds_nothing() {
    let database = Database::new();
    let proxy = Proxy::start(database.server.addr());
    let (_locks, acquire) = unanswered(&database, &proxy).await;
    proxy.reset();
    // Whether it failed or was tried again: the first grant must not stay.
    drop(bounded("the caller is told", acquire).await.unwrap());
    database.is_clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_slow_link_validity_counts_from_the_send() {
    let database = Database::new();
    let proxy = Proxy::start(database.server.addr());
    let locks = Locks::connect(&database.url_over(proxy.addr())).await.unwrap();
    proxy.delay(ms(150));
    let guard = locks.lock("a").ttl(ms(30_000)).acquire().await.unwrap();
    assert!(guard.valid_for().unwrap() <= ms(29_700));
    assert!(guard.extend().await.unwrap().unwrap() <= ms(29_700));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_dropped_while_the_server_is_out_of_reach_releases_later() {
    let database = Database::new();
    let proxy = Proxy::start(database.server.addr());
    let locks = Locks::connect(&database.url_over(proxy.addr())).await.unwrap();
    let guard = take(&locks, "a").await;
    proxy.cut();
    drop(guard);
    until("the store is out of reach", async || locks.lock("b").try_acquire().await.is_err()).await;
    proxy.pass();
    database.is_clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_sits_out_a_short_outage() {
    let database = Database::new();
    let proxy = Proxy::start(database.server.addr());
    let locks = Locks::connect(&database.url_over(proxy.addr())).await.unwrap();
    let held = take(&database.locks().await, "a").await;
    let waiter = tokio::spawn({
        let lock = patient(&locks, "a");
        async move { lock.acquire().await }
    });
    until("the server knows that it waits", async || {
        database.psql("SELECT count(*) FROM fencepost.waiters") == "1"
    })
    .await;
    // Answers come in order on one connection: with this one it has its own.
    locks.check().await.unwrap();
    proxy.reset();
    held.release().await.unwrap();
    bounded("the waiter gets the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_survives_the_loss_of_its_session_and_a_holder_that_of_the_other_connection() {
    let database = Database::new();
    let (locks, rival) = (database.locks().await, database.locks().await);
    let held = take(&locks, "a").await;
    let waiter = tokio::spawn({
        let lock = patient(&rival, "a");
        async move { lock.acquire().await.unwrap() }
    });
    until("it waits", async || rival.stats().waiting_now == 1).await;
    // All sessions but the one that has the lock.
    database.psql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid() \
           AND pid <> (SELECT split_part(session, ' ', 1)::int FROM fencepost.locks)",
    );
    assert!(matches!(held.state(), State::Held { .. }), "no lock depends on it");
    held.extend().await.unwrap();
    held.release().await.unwrap();
    bounded("the waiter gets the lock", waiter).await.unwrap().release().await.unwrap();
    assert!(rival.show("a").await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_while_the_server_ends_its_session_is_answered_over_another_one() {
    let database = Arc::new(Database::new());
    let (locks, rival) = (database.locks().await, database.locks().await);
    let held = take(&locks, "a").await;
    let others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() \
                  AND pid <> (SELECT split_part(session, ' ', 1)::int FROM fencepost.locks)";
    let is_busy = async || assert!(rival.lock("a").try_acquire().await.unwrap().is_none());
    for _ in 0..10 {
        let database = database.clone();
        let ends = tokio::task::spawn_blocking(move || {
            drop(database.psql(&format!("SELECT pg_terminate_backend(pid) {others}")));
        });
        while !ends.is_finished() {
            is_busy().await;
        }
        // It is asked again once, and that over a session which nobody ends.
        is_busy().await;
    }
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_survives_spare_messages() {
    let database = Database::new();
    let (locks, rival) = (database.locks().await, database.locks().await);
    let held = take(&locks, "a").await;
    let waiter = tokio::spawn({
        let lock = patient(&rival, "a");
        async move { lock.acquire().await.unwrap() }
    });
    let channel = "SELECT channel FROM fencepost.waiters";
    until("it waits", async || !database.psql(channel).is_empty()).await;
    let channel = database.psql(channel);
    for message in [
        "",
        "free",
        "free 0 x",
        "free 0 1",
        "granted 0 1",
        "granted 0 1 x 2 3",
        "revoked x y",
        "garbage \u{1} and more",
    ] {
        database.psql(&format!("SELECT pg_notify('{channel}', '{message}')"));
    }
    assert_eq!(rival.show("a").await.unwrap().unwrap().owner, Some(held.owner()));
    assert!(!waiter.is_finished());
    held.release().await.unwrap();
    bounded("the waiter gets the lock", waiter).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extension_whose_answer_is_lost_lengthens_nothing() {
    let database = Database::new();
    let proxy = Proxy::start(database.server.addr());
    let locks = Locks::connect(&database.url_over(proxy.addr())).await.unwrap();
    let guard = locks.lock("a").ttl(ms(30_000)).without_renewal().acquire().await.unwrap();
    let before = guard.valid_until_boottime();
    proxy.hold_answers();
    let cut = async {
        let left =
            || database.psql("SELECT ends > clock_timestamp() + interval '1 minute' FROM fencepost.locks");
        until("the server has extended it", async || left() == "t").await;
        proxy.cut();
    };
    let (extended, ()) =
        bounded("the caller is told", async { tokio::join!(guard.extend_to(LONG), cut) }).await;
    assert!(matches!(extended, Err(Error::Uncertain { .. } | Error::Lost { .. })), "{extended:?}");
    assert_eq!(guard.valid_until_boottime(), before);
}
