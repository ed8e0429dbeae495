//! A release gives the lock to the first who waits, without being asked: a lease alone, that ends with
//! its session all the same.

use std::future::poll_fn;
use std::task::Poll;

use fencepost::{Error, Guard, Locks, Loss, State};
use fencepost_testkit::Proxy;
use tokio::task::JoinHandle;

use crate::harness::{Database, LONG, Psql, bounded, ms, patient, take, until};

/// Somebody who waits for `name`, known to the server and to itself.
async fn waiter(database: &Database, locks: &Locks, name: &str) -> JoinHandle<Guard> {
    let lock = patient(locks, name);
    let waits = tokio::spawn(async move { lock.acquire().await.unwrap() });
    until("it is on the list", async || database.psql("SELECT count(*) FROM fencepost.waiters") != "0").await;
    // Answers come in order on one connection: with this one it has its own.
    locks.check().await.unwrap();
    waits
}

/// A lock that was handed over from one client to another, both of which are given.
async fn handed_over(database: &Database, from: &Locks, to: &Locks) -> Guard {
    let held = take(from, "a").await;
    let waits = waiter(database, to, "a").await;
    let token = held.token();
    held.release().await.unwrap();
    let guard = bounded("the waiter gets it", waits).await.unwrap();
    assert!(guard.token() > token);
    guard
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_handed_over_is_a_lease_that_is_renewed_and_given_back() {
    let database = Database::new();
    let (one, two) = (database.locks().await, database.locks().await);
    let guard = handed_over(&database, &one, &two).await;
    assert_eq!(database.psql("SELECT session IS NULL FROM fencepost.locks"), "t", "it was not asked for");
    assert_eq!(database.advisory_locks(), "0");
    assert!(one.lock("a").try_acquire().await.unwrap().is_none());
    // The grant itself lasts as long as the waiter was on the list; the first renewal gives it the ttl.
    until("it has its ttl", async || guard.valid_for() > Some(LONG / 2)).await;
    let holder = one.show("a").await.unwrap().unwrap();
    assert_eq!((holder.owner, holder.token), (Some(guard.owner()), Some(guard.token())));
    guard.release().await.unwrap();
    database.is_clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_handed_over_can_be_extended_at_once() {
    let database = Database::new();
    let (one, two) = (database.locks().await, database.locks().await);
    for max_hold in [None, Some(LONG / 2)] {
        let held = take(&one, "a").await;
        let mut lock = patient(&two, "a");
        if let Some(hold) = max_hold {
            lock = lock.max_hold(hold);
        }
        let waits = tokio::spawn(async move { lock.acquire().await.unwrap() });
        until("it is on the list", async || database.psql("SELECT count(*) FROM fencepost.waiters") != "0")
            .await;
        held.release().await.unwrap();
        let guard = bounded("the waiter gets it", waits).await.unwrap();
        assert!(guard.extend().await.unwrap() > Some(LONG / 4), "{:?}", guard.state());
        assert_eq!(
            database.psql("SELECT ends > clock_timestamp() + interval '2 minutes' FROM fencepost.locks"),
            "t",
            "the server knows it, too"
        );
        guard.release().await.unwrap();
    }
    database.is_clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_handed_over_ends_with_its_session() {
    let database = Database::new();
    let (one, two) = (database.locks().await, database.locks().await);
    let guard = handed_over(&database, &one, &two).await;
    database.psql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid()",
    );
    assert_eq!(bounded("the guard learns it", guard.lost()).await, Loss::SessionEnded);
    assert!(one.lock("a").try_acquire().await.unwrap().is_none(), "its lease has not ended");
    drop(guard);
    take(&one, "a").await.release().await.unwrap();
    database.is_clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_handed_over_can_be_detached_and_nobody_frees_it_behind() {
    let database = Database::new();
    let (one, two) = (database.locks().await, database.locks().await);
    let guard = handed_over(&database, &one, &two).await;
    let handle = guard.detach().await.unwrap();
    let attached = one.lock("a").ttl(LONG).attach(&handle).await.unwrap();
    two.close().await;
    attached.extend().await.unwrap();
    assert_eq!(attached.token(), handle.token());
    attached.release().await.unwrap();
    database.is_clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_other_code_is_never_a_lease_alone() {
    let database = Database::new();
    let (one, two) = (database.locks().await, database.locks().await);
    let held = take(&one, "pg:12345").await;
    let waits = waiter(&database, &two, "pg:12345").await;
    held.release().await.unwrap();
    let guard = bounded("the waiter gets it", waits).await.unwrap();
    assert_eq!(database.psql("SELECT pg_try_advisory_lock(12345)"), "f");
    guard.release().await.unwrap();
    database.is_clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_handed_over_that_has_to_be_on_disk_or_to_end_at_once() {
    let database = Database::new();
    let one = database.locks().await;
    for parameters in ["durable=yes", "lock_delay=0"] {
        let two = database.locks_with(parameters).await;
        let held = take(&one, "a").await;
        let waits = waiter(&database, &two, "a").await;
        held.release().await.unwrap();
        let guard = bounded("the waiter gets it", waits).await.unwrap();
        assert_eq!(database.psql("SELECT session IS NULL FROM fencepost.locks"), "f", "{parameters}");
        guard.release().await.unwrap();
    }
    database.is_clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_cannot_be_reached_keeps_the_lock_for_seconds_and_no_more() {
    let database = Database::new();
    let proxy = Proxy::start(database.server.addr());
    let dead = Locks::connect(&database.url_over(proxy.addr())).await.unwrap();
    let (one, two) = (database.locks().await, database.locks().await);
    let held = take(&one, "a").await;
    let waits = waiter(&database, &dead, "a").await;
    let next = tokio::spawn({
        let lock = patient(&two, "a");
        async move { lock.acquire().await.unwrap() }
    });
    proxy.stall();
    held.release().await.unwrap();
    // Its ttl is ten minutes.
    let next = bounded("the next one gets it", next).await.unwrap();
    waits.abort();
    proxy.reset();
    next.extend().await.unwrap();
    next.release().await.unwrap();
    database.is_clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_not_polled_keeps_others_of_its_process_waiting_for_seconds_and_no_more() {
    let database = Database::new();
    let (one, two) = (database.locks().await, database.locks().await);
    let held = take(&one, "a").await;
    let lock = patient(&two, "a");
    let mut unpolled = Box::pin(lock.acquire());
    let waiters = || database.psql("SELECT count(*) FROM fencepost.waiters");
    until("it is on the list", async || {
        poll_fn(|context| {
            assert!(unpolled.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        waiters() == "1"
    })
    .await;
    let next = tokio::spawn({
        let lock = patient(&two, "a");
        async move { lock.acquire().await.unwrap() }
    });
    until("the next one is, too", async || waiters() == "2").await;
    held.release().await.unwrap();
    // Its ttl is ten minutes.
    let next = bounded("the next one gets it", next).await.unwrap();
    drop(unpolled);
    next.release().await.unwrap();
    database.is_clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_comes_late_is_asked_for() {
    let database = Database::new();
    let proxy = Proxy::start(database.server.addr());
    let late = Locks::connect(&database.url_over(proxy.addr())).await.unwrap();
    let one = database.locks().await;
    let held = take(&one, "a").await;
    let waits = waiter(&database, &late, "a").await;
    proxy.hold_answers();
    held.release().await.unwrap();
    // It goes on asking, and the server says that the lock is its own.
    until("it has asked again", async || {
        database.psql("SELECT ends > clock_timestamp() + interval '1 minute' FROM fencepost.locks") == "t"
    })
    .await;
    proxy.pass();
    let guard = bounded("the waiter gets it", waits).await.unwrap();
    assert!(matches!(guard.state(), State::Held { .. }), "{:?}", guard.state());
    guard.release().await.unwrap();
    database.is_clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_stops_waiting_gives_back_what_it_was_handed() {
    let database = Database::new();
    let proxy = Proxy::start(database.server.addr());
    let (one, two) =
        (database.locks().await, Locks::connect(&database.url_over(proxy.addr())).await.unwrap());
    for _ in 0..5 {
        let held = take(&one, "a").await;
        let waits = waiter(&database, &two, "a").await;
        // It stops when the lock is its own at the server, and it does not know.
        proxy.hold_answers();
        held.release().await.unwrap();
        until("it is handed over", async || {
            database.psql("SELECT session IS NULL FROM fencepost.locks") == "t"
        })
        .await;
        waits.abort();
        assert!(waits.await.unwrap_err().is_cancelled());
        proxy.pass();
        database.is_clear().await;
    }
    assert_eq!(database.psql("SELECT count(*) FROM fencepost.waiters"), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_waits_is_not_passed_over() {
    let database = Database::new();
    let (one, two) = (database.locks().await, database.locks().await);
    let held = take(&one, "a").await;
    let waits = waiter(&database, &two, "a").await;
    let mut psql = Psql::start(&database);
    psql.tell("BEGIN");
    psql.tell("SELECT fencepost.lock_in_transaction('a')");
    until("the transaction waits", async || database.waits_for_an_advisory_lock()).await;
    let token = held.token().get();
    held.release().await.unwrap();
    assert!(psql.answer().parse::<u64>().unwrap() > token);
    assert!(!waits.is_finished());
    psql.tell("COMMIT");
    bounded("the waiter gets it", waits).await.unwrap().release().await.unwrap();
    database.is_clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_nobody_made_is_not_believed() {
    let database = Database::new();
    let (one, two) = (database.locks().await, database.locks().await);
    let held = take(&one, "a").await;
    let waits = waiter(&database, &two, "a").await;
    // For an entry that there was before the one of now, and for one of another waiter.
    let entry = "SELECT pg_notify(channel, format('granted 0 %s %s 9 %s', key, owner, \
                 (extract(epoch FROM until) * 1000000)::bigint - 1)), \
                 pg_notify(channel, format('granted 0 %s %s 9 %s', key, gen_random_uuid(), \
                 (extract(epoch FROM until) * 1000000)::bigint)) FROM fencepost.waiters";
    database.psql(entry);
    two.check().await.unwrap();
    until("it has asked", async || two.show("a").await.unwrap().unwrap().owner == Some(held.owner())).await;
    assert!(!waits.is_finished());
    let token = held.token();
    held.release().await.unwrap();
    assert!(bounded("the waiter gets it", waits).await.unwrap().token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_was_handed_over_can_be_forced_back() {
    let database = Database::new();
    let (one, two) = (database.locks().await, database.locks().await);
    for now in [false, true] {
        let guard = handed_over(&database, &one, &two).await;
        // A renewal under way would find out by itself, and could not say why.
        until("it was renewed", async || guard.valid_for() > Some(LONG / 2)).await;
        let revoked = if now {
            one.force_release("a", fencepost::ForceRelease::now("because")).await.unwrap().unwrap()
        } else {
            one.force_release("a", "because").await.unwrap().unwrap()
        };
        assert!(revoked.token > guard.token());
        let why = bounded("it is told", guard.lost()).await;
        assert_eq!(why, Loss::force_released("because"));
        drop(guard);
        database.is_clear().await;
    }
    // And one with a short ttl lasts no longer than that.
    let held = take(&one, "b").await;
    let short = two.lock("b").ttl(ms(1_500)).without_renewal().wait(LONG);
    let waits = tokio::spawn(async move { short.acquire().await.unwrap() });
    until("it is on the list", async || database.psql("SELECT count(*) FROM fencepost.waiters") != "0").await;
    held.release().await.unwrap();
    let guard = bounded("the waiter gets it", waits).await.unwrap();
    assert!(guard.valid_for() <= Some(ms(1_500)));
    take(&one, "b").await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_has_the_lock_holds_up_nobody_who_waits_or_stops_waiting() {
    let database = Database::new();
    // Less than the transaction takes: whoever was behind it would fail.
    let url = format!("{}?timeout=2s", database.server.url(&database.name));
    database.locks().await.close().await;
    let locks = Locks::connect(&url).await.unwrap();
    let other = locks.lock("other").ttl(ms(3_000)).acquire().await.unwrap();
    take(&locks, "a").await.release().await.unwrap();
    let held = take(&locks, "a").await;
    let one = database.locks().await;
    let waits = waiter(&database, &one, "a").await;
    let mut psql = Psql::start(&database);
    psql.tell("BEGIN");
    psql.tell("SELECT fencepost.lock_in_transaction('a')");
    until("the transaction waits", async || database.waits_for_an_advisory_lock()).await;
    held.release().await.unwrap();
    psql.answer();
    // The one who waits goes on to ask, and several stop.
    for _ in 0..5 {
        let error = locks.lock("a").wait(ms(1_000)).acquire().await.unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    }
    let asked = one.lock("a").wait(ms(1_000)).acquire().await.unwrap_err();
    assert!(matches!(asked, Error::Timeout { .. }), "{asked:?}");
    assert!(!waits.is_finished());
    other.extend().await.unwrap();
    psql.tell("COMMIT");
    bounded("the waiter gets it", waits).await.unwrap().release().await.unwrap();
    other.release().await.unwrap();
    database.is_clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_who_stops_waiting_leaves_the_others_of_its_process_on_the_list() {
    let database = Database::new();
    for parameters in ["durable=yes", "durable=no"] {
        let (one, two) = (database.locks().await, database.locks_with(parameters).await);
        let held = take(&one, "a").await;
        let waits = waiter(&database, &two, "a").await;
        let behind = tokio::spawn({
            let lock = patient(&two, "a");
            async move { lock.acquire().await.unwrap() }
        });
        until("both wait", async || two.stats().waiting_now == 2).await;
        let first = database.psql("SELECT owner FROM fencepost.waiters");
        waits.abort();
        assert!(waits.await.unwrap_err().is_cancelled());
        until("the next one is on the list", async || {
            let owner = database.psql("SELECT owner FROM fencepost.waiters");
            !owner.is_empty() && owner != first
        })
        .await;
        // What the first one has sent behind itself has arrived.
        two.check().await.unwrap();
        assert_eq!(database.psql("SELECT count(*) FROM fencepost.waiters"), "1", "{parameters}");
        held.release().await.unwrap();
        bounded("it gets the lock", behind).await.unwrap().release().await.unwrap();
        database.is_clear().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_who_asks_while_it_is_handed_over_is_not_entered_again() {
    let database = Database::new();
    let locks = database.locks().await;
    take(&locks, "a").await.release().await.unwrap();
    // The steps of the functions, in the order in which they can meet.
    let key = database.psql("SELECT key FROM fencepost.locks WHERE name = 'a'");
    let ask = |owner: &str, wait: &str| {
        format!(
            "SELECT coalesce(o_state, 'granted') FROM fencepost.acquire(pg_backend_pid(), false, {key}, \
             'a', '{owner}', 60000, 'h', 1, '', \
             's' || pg_backend_pid(), 'c', true, NULL, {wait}, false, true, true)"
        )
    };
    let mut holder = Psql::start(&database);
    assert_eq!(holder.ask(&ask("one", "NULL")), "granted");
    let mut waiter = Psql::start(&database);
    assert_eq!(waiter.ask(&ask("two", "'c'")), "held");
    holder.tell("BEGIN");
    let release = format!(
        "SELECT o_found FROM fencepost.release(pg_backend_pid(), false, {key}, 'one', true, false, NULL)"
    );
    assert_eq!(holder.ask(&release), "t");
    // It meets the release, which has not ended, and enters itself behind it.
    waiter.tell(&ask("two", "'c'"));
    until("it waits for the release", async || {
        database.psql(
            "SELECT count(*) FROM pg_stat_activity \
             WHERE datname = current_database() AND wait_event_type = 'Lock'",
        ) == "1"
    })
    .await;
    holder.tell("COMMIT");
    assert_eq!(waiter.answer(), "moving");
    assert_eq!(waiter.ask(&ask("two", "'c'")), "pushed");
    assert_eq!(
        database.psql("SELECT count(*) FROM fencepost.waiters"),
        "0",
        "or the next release grants it to nobody"
    );
}
