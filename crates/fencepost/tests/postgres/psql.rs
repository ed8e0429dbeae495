//! `psql` on the same advisory locks: it excludes us, and we it.

use fencepost::postgres::Key;
use fencepost::{Error, Locks};

use crate::harness::{Database, LONG, Psql, bounded, ms, patient, take, until};

/// A key as a name, and as psql writes it.
fn keys() -> [(String, &'static str); 3] {
    [
        (Key::from(12345).into(), "12345"),
        (Key::from((1, 42)).into(), "1, 42"),
        (Key::from((-7, i32::MIN)).into(), "-7, -2147483648"),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn psql_cannot_have_what_we_hold() {
    let database = Database::new();
    let locks = database.locks().await;
    let mut psql = Psql::start(&database);
    for (name, key) in keys() {
        let guard = take(&locks, &name).await;
        assert_eq!(psql.ask(&format!("SELECT pg_try_advisory_lock({key})")), "f");
        guard.extend().await.unwrap();
        assert_eq!(psql.ask(&format!("SELECT pg_try_advisory_lock_shared({key})")), "f");
        guard.release().await.unwrap();
        assert_eq!(psql.ask(&format!("SELECT pg_try_advisory_lock({key})")), "t");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn we_cannot_have_what_psql_holds() {
    let database = Database::new();
    let locks = database.locks().await;
    let mut psql = Psql::start(&database);
    for (name, key) in keys() {
        assert_eq!(psql.ask(&format!("SELECT pg_advisory_lock({key}), 1")), "|1");
        assert!(locks.lock(&name).try_acquire().await.unwrap().is_none());
        let error = locks.lock(&name).wait(ms(2_000)).acquire().await.unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(error.to_string().contains("foreign client"), "{error}");
        let holder = locks.show(&name).await.unwrap().unwrap();
        assert!(holder.owner.is_none() && holder.note.as_deref().unwrap().contains("psql"), "{holder:?}");
        assert!(matches!(locks.force_release(&name, "x").await, Err(Error::Unsupported { .. })));
        let waiter = tokio::spawn({
            let lock = patient(&locks, &name);
            async move { lock.acquire().await.unwrap() }
        });
        until("it waits", async || locks.stats().waiting_now == 1).await;
        assert_eq!(psql.ask(&format!("SELECT pg_advisory_unlock({key})")), "t");
        bounded("the waiter gets the lock", waiter).await.unwrap().release().await.unwrap();
    }
    assert_eq!(database.advisory_locks(), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_psql_gets_the_lock_when_we_release() {
    let database = Database::new();
    let locks = database.locks().await;
    let mut psql = Psql::start(&database);
    for (name, key) in keys() {
        let guard = take(&locks, &name).await;
        psql.tell(&format!("SELECT pg_advisory_lock({key}), 1"));
        until("psql waits", async || database.waits_for_an_advisory_lock()).await;
        guard.release().await.unwrap();
        assert_eq!(psql.answer(), "|1");
        assert!(locks.lock(&name).try_acquire().await.unwrap().is_none());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_session_of_a_foreign_holder_can_be_ended() {
    let database = Database::new();
    let locks = database.locks().await;
    let mut psql = Psql::start(&database);
    assert_eq!(psql.ask("SELECT pg_advisory_lock(12345), 1"), "|1");
    let before = take(&locks, "other").await.token();
    let revoked =
        locks.force_release("pg:12345", fencepost::ForceRelease::now("stuck")).await.unwrap().unwrap();
    assert!(revoked.freed && revoked.token > before);
    let guard = locks.lock("pg:12345").ttl(LONG).try_acquire().await.unwrap().unwrap();
    assert!(guard.token() > revoked.token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sql_functions_exclude_our_locks_and_have_larger_tokens() {
    let database = Database::new();
    let locks = database.locks().await;
    let mut psql = Psql::start(&database);
    let guard = take(&locks, "a").await;
    let first = guard.token().get();
    assert_eq!(psql.ask("SELECT fencepost.try_lock_in_transaction('a') IS NULL"), "t");
    let handle = guard.detach().await.unwrap();
    assert_eq!(psql.ask("SELECT fencepost.try_lock_in_transaction('a') IS NULL"), "t", "a lease counts, too");
    locks.release(&handle).await.unwrap();
    psql.tell("BEGIN");
    let second: u64 = psql.ask("SELECT fencepost.lock_in_transaction('a')").parse().unwrap();
    assert!(second > first);
    let waiter = tokio::spawn({
        let lock = patient(&locks, "a");
        async move { lock.acquire().await.unwrap() }
    });
    until("it waits", async || locks.stats().waiting_now == 1).await;
    psql.tell("COMMIT");
    assert!(bounded("the waiter gets it", waiter).await.unwrap().token().get() > second);
    assert!(Locks::connect(&database.url()).await.unwrap().show("a").await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_psql_is_shown_before_our_waiters_and_one_of_another_database_is_not() {
    let (database, elsewhere) = (Database::new(), Database::new());
    let (locks, others) = (database.locks().await, elsewhere.locks().await);
    for (name, key) in keys() {
        let _apart = take(&others, &name).await;
        let mut stranger = Psql::start(&elsewhere);
        stranger.tell(&format!("SELECT pg_advisory_lock({key}), 1"));
        until("the stranger waits", async || elsewhere.waits_for_an_advisory_lock()).await;

        let guard = take(&locks, &name).await;
        assert_eq!(locks.show(&name).await.unwrap().unwrap().queue, []);
        let lock = patient(&locks, &name).note("ours");
        let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
        let queue = async || locks.show(&name).await.unwrap().unwrap().queue;
        until("ours is shown", async || queue().await.len() == 1).await;
        let mut psql = Psql::start(&database);
        let before = std::time::SystemTime::now();
        psql.tell(&format!("SELECT pg_advisory_lock({key}), 1"));
        until("both are shown", async || queue().await.len() == 2).await;
        let queue = queue().await;
        assert_eq!((queue[0].owner, queue[0].pid, &queue[0].host), (None, None, &None));
        assert!(queue[0].note.as_deref().unwrap().contains("application psql"), "{queue:?}");
        assert!(queue[0].since.unwrap() >= before - ms(1), "{queue:?}");
        assert_eq!((queue[1].note.as_deref(), queue[1].pid), (Some("ours"), Some(std::process::id())));

        guard.release().await.unwrap();
        assert_eq!(psql.answer(), "|1");
        drop(psql);
        bounded("ours is next", waiter).await.unwrap().release().await.unwrap();
    }
}
