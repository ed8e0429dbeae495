//! A session that ends, is killed or stands still takes its advisory locks with it, and not its leases.

use std::future::poll_fn;
use std::task::Poll;

use fencepost::{Error, Loss};
use fencepost_testkit::Proxy;

use crate::harness::{Database, LONG, Psql, SHORT, bounded, ms, patient, take, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_that_lost_its_session_gives_the_lease_back_when_it_goes() {
    let database = Database::new();
    let (locks, rival) = (database.locks().await, database.locks().await);
    let guard = take(&locks, "a").await;
    database.terminate_holder("a");
    bounded("the guard learns it", guard.lost()).await;
    assert!(rival.lock("a").try_acquire().await.unwrap().is_none());
    drop(guard);
    take(&rival, "a").await.release().await.unwrap();
    database.is_clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_ended_frees_the_advisory_lock_though_the_guard_lives() {
    let database = Database::new();
    let locks = database.locks().await;
    let guard = locks.lock("a").ttl(SHORT).without_renewal().acquire().await.unwrap();
    bounded("the lease ends", guard.lost()).await;
    database.is_clear().await;
    assert!(matches!(guard.release().await, Err(Error::Lost { why: Loss::Expired, .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_after_the_advisory_lock_was_granted_leaves_nothing() {
    // In the statement, and at its commit, which comes after the session has taken the lock.
    for when in ["IMMEDIATE", "DEFERRED"] {
        let database = Database::new();
        let locks = database.locks().await;
        database.psql(&format!(
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no \
             room'; END $$; \
             CREATE CONSTRAINT TRIGGER fail AFTER INSERT OR UPDATE ON fencepost.locks DEFERRABLE INITIALLY \
             {when} \
             FOR EACH ROW EXECUTE FUNCTION fail()"
        ));
        let error = locks.lock("a").try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::Backend { .. }), "{when}: {error:?}");
        assert!(error.to_string().contains("no room"), "{when}: {error}");
        database.is_clear().await;
        database.psql("DROP TRIGGER fail ON fencepost.locks");
        take(&locks, "a").await.release().await.unwrap();
        database.is_clear().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_advisory_lock_is_given_back_though_somebody_has_locked_the_row() {
    let database = Database::new();
    database.locks().await.close().await;
    let url = format!("{}?timeout=3s", database.server.url(&database.name));
    let locks = fencepost::Locks::connect(&url).await.unwrap();
    let other = take(&locks, "other").await;
    let guard = locks.lock("a").ttl(SHORT).without_renewal().acquire().await.unwrap();
    let mut psql = Psql::start(&database);
    psql.tell("BEGIN");
    assert_eq!(psql.ask("SELECT 1 FROM fencepost.locks WHERE name = 'a' FOR UPDATE"), "1");
    drop(guard);
    until("it is given back", async || database.advisory_locks() == "1").await;
    assert!(!other.state().is_lost(), "{:?}", other.state());
    psql.tell("ROLLBACK");
    take(&locks, "a").await.release().await.unwrap();
    other.release().await.unwrap();
    database.is_clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn force_release_ends_the_session_of_a_victim_that_does_not_react() {
    let database = Database::new();
    let proxy = Proxy::start(database.server.addr());
    let locks = fencepost::Locks::connect(&database.url_over(proxy.addr())).await.unwrap();
    let operator = database.locks().await;
    let victim = take(&locks, "a").await;
    proxy.stall();
    let revoked = operator.force_release("a", fencepost::ForceRelease::now("stuck")).await.unwrap().unwrap();
    assert!(revoked.freed && revoked.token > victim.token());
    let next = operator.lock("a").ttl(LONG).try_acquire().await.unwrap().unwrap();
    assert!(next.token() > revoked.token);
    proxy.pass();
    bounded("the victim learns it", victim.lost()).await;
    drop(victim);
    next.extend().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_who_may_not_end_a_session_is_told_that_it_goes_on() {
    let database = Database::new();
    let proxy = Proxy::start(database.server.addr());
    database.locks().await.close().await;
    let users = ["victim", "operator"].map(|role| format!("{role}_{}", database.name));
    for user in &users {
        database.psql(&format!(
            "CREATE ROLE {user} LOGIN PASSWORD 'x'; GRANT USAGE ON SCHEMA fencepost TO {user}; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA fencepost TO {user}"
        ));
    }
    let [victim, operator] = &users;
    database.psql(&format!("GRANT pg_signal_backend TO {operator}"));
    let url = |user, addr| format!("postgres://{user}:x@{addr}/{}?timeout=20s", database.name);
    let locks = fencepost::Locks::connect(&url(victim, proxy.addr())).await.unwrap();
    let guard = take(&locks, "a").await;
    let operators = fencepost::Locks::connect(&url(operator, database.server.addr())).await.unwrap();
    proxy.stall();
    // Another user's session is ours to end only if we can tell that it is the one. The second time it
    // has no lease left.
    for _ in 0..2 {
        let error = operators.force_release("a", fencepost::ForceRelease::now("stuck")).await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        let text = error.to_string();
        let sql = text.split_once("a superuser: ").unwrap_or_else(|| panic!("{text}")).1;
        assert_eq!(sql, format!("GRANT pg_signal_backend, pg_read_all_stats TO \"{operator}\""));
        assert_eq!(database.advisory_locks(), "1");
    }
    database.psql(&format!("GRANT pg_read_all_stats TO {operator}"));
    assert!(
        operators.force_release("a", fencepost::ForceRelease::now("stuck")).await.unwrap().unwrap().freed
    );
    assert_eq!(database.advisory_locks(), "0");
    drop(guard);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attached_lock_is_told_of_a_force_release() {
    let database = Database::new();
    let (one, two, operator) = (database.locks().await, database.locks().await, database.locks().await);
    let handle = take(&one, "a").await.detach().await.unwrap();
    let guard = two.lock("a").ttl(LONG).attach(&handle).await.unwrap();
    operator.force_release("a", "because").await.unwrap().unwrap();
    assert_eq!(bounded("it is told", guard.lost()).await, Loss::force_released("because"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_somebody_has_locked_costs_no_other_lock() {
    let database = Database::new();
    let locks = database.locks().await;
    let mut guards = Vec::new();
    for name in ["a", "b", "c"] {
        guards.push(locks.lock(name).ttl(ms(6_000)).renew_every(ms(200)).acquire().await.unwrap());
    }
    let mut psql = Psql::start(&database);
    psql.tell("BEGIN");
    assert_eq!(psql.ask("SELECT 1 FROM fencepost.locks WHERE name = 'b' FOR UPDATE"), "1");
    // Somebody who waits for it holds nobody up either.
    let waits = tokio::spawn({
        let lock = patient(&locks, "b");
        async move { lock.acquire().await.unwrap() }
    });
    assert_eq!(bounded("its lease ends", guards[1].lost()).await, Loss::Unreachable);
    for guard in [&guards[0], &guards[2]] {
        guard.extend().await.unwrap();
    }
    psql.tell("ROLLBACK");
    drop(guards.remove(1));
    bounded("the waiter gets it", waits).await.unwrap().release().await.unwrap();
    for guard in guards {
        guard.release().await.unwrap();
    }
    database.is_clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_was_locked_for_a_while_is_renewed_when_it_is_not() {
    let database = Database::new();
    let locks = database.locks().await;
    let guard = locks.lock("a").ttl(LONG).renew_every(ms(50)).acquire().await.unwrap();
    let mut psql = Psql::start(&database);
    psql.tell("BEGIN");
    assert_eq!(psql.ask("SELECT 1 FROM fencepost.locks WHERE name = 'a' FOR UPDATE"), "1");
    let before = locks.stats().renewed;
    psql.tell("ROLLBACK");
    until("it is renewed", async || locks.stats().renewed > before + 1).await;
    assert_eq!(locks.stats().renewals_failed, 0, "it waits for the row, and not in vain");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_force_release_takes_nothing_from_the_next_holder() {
    let database = Database::new();
    let (locks, operator) = (database.locks().await, database.locks().await);
    let guard = take(&locks, "a").await;
    let mut psql = Psql::start(&database);
    psql.tell("BEGIN");
    assert_eq!(psql.ask("SELECT 1 FROM fencepost.locks FOR UPDATE"), "1");
    let forced = tokio::spawn({
        let operator = operator.clone();
        async move { operator.force_release("a", fencepost::ForceRelease::now("stuck")).await }
    });
    let waiting = "SELECT count(*) FROM pg_stat_activity \
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
    until("it has seen the holder", async || database.psql(waiting) != "0").await;
    // Another holder comes before it is its turn.
    psql.tell("UPDATE fencepost.locks SET owner = gen_random_uuid(), token = token + 1");
    psql.tell("COMMIT");
    let error = bounded("it ends", forced).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Changed { .. }), "{error}");
    assert!(error.holder().unwrap().token > Some(guard.token()), "{error}");
    assert_eq!(database.psql("SELECT owner IS NOT NULL AND revoked IS NULL FROM fencepost.locks"), "t");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_token_of_a_holder_that_was_asked_to_let_go_still_names_it() {
    let database = Database::new();
    let (locks, operator) = (database.locks().await, database.locks().await);
    let guard = locks.lock("a").ttl(LONG).without_renewal().acquire().await.unwrap();
    let asked = operator.force_release("a", "please").await.unwrap().unwrap();
    let seen = operator.show("a").await.unwrap().unwrap();
    assert_eq!((seen.token, seen.revoked.as_deref()), (Some(guard.token()), Some("please")));
    let how = fencepost::ForceRelease::now("now").if_token(guard.token());
    assert!(operator.force_release("a", how).await.unwrap().unwrap().token > asked.token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_odd_row_hides_no_other() {
    let database = Database::new();
    let locks = database.locks().await;
    let guard = take(&locks, "good").await;
    database.psql(
        "INSERT INTO fencepost.locks (two_part, key, name, token, owner, ends, since, delay, process) \
         VALUES (false, 1, '', 1, 'x', 'infinity', now(), true, 1), \
                (false, 2, repeat('n', 600), 1, 'x', 'infinity', now(), true, 1), \
                (false, 3, 'odd', -4, 'x', 'infinity', '-infinity', true, -1), \
                (false, 4, 'times', 7, gen_random_uuid(), 'infinity', '-infinity', true, -1), \
                (false, 5, 'years', 7, gen_random_uuid(), '290000-01-01', '290000-01-01', true, 1)",
    );
    let listing = locks.list("").await.unwrap();
    assert_eq!(listing.unreadable.len(), 2, "{:?}", listing.unreadable);
    let listed = listing.holders;
    let names: Vec<_> = listed.iter().map(|holder| holder.name.as_str()).collect();
    assert_eq!(names, ["good", "odd", "times", "years"]);
    assert_eq!(listed[0].owner, Some(guard.owner()));
    assert_eq!((listed[1].owner, listed[1].token, listed[1].pid), (None, None, None));
    assert_eq!((listed[2].since, listed[2].expires_in, listed[2].pid), (None, None, None));
    // Who asks for such a lock is told that it is held.
    let key = "(SELECT key FROM fencepost.key_of('times'))";
    database.psql(&format!("UPDATE fencepost.locks SET key = {key} WHERE name = 'times'"));
    assert!(locks.show("times").await.unwrap().is_some());
    assert!(locks.lock("times").try_acquire().await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_look_at_the_locks_alone_is_still_shown_the_holder() {
    let database = Database::new();
    let locks = database.locks().await;
    let guard = take(&locks, "a").await;
    let viewer = format!("viewer_{}", database.name);
    database.psql(&format!(
        "CREATE ROLE {viewer} LOGIN PASSWORD 'x'; GRANT USAGE ON SCHEMA fencepost TO {viewer}; \
         GRANT SELECT ON fencepost.locks TO {viewer}"
    ));
    let url = format!("postgres://{viewer}:x@{}/{}?timeout=20s", database.server.addr(), database.name);
    let viewers = fencepost::Locks::connect(&url).await.unwrap();
    let holder = viewers.show("a").await.unwrap().unwrap();
    assert_eq!((holder.owner, holder.queue), (Some(guard.owner()), Vec::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_rows_of_waiters_hide_nobody_and_those_that_are_over_are_not_shown() {
    let database = Database::new();
    let locks = database.locks().await;
    let _guard = take(&locks, "a").await;
    database.psql(
        "INSERT INTO fencepost.waiters \
         SELECT two_part, key, channel, since, until, owner, true, 1, host, process, 'note' \
         FROM fencepost.key_of('a'), (VALUES \
             ('over', now(), now() - interval '1 second', 'x', 'h', 1), \
             ('odd', '-infinity', 'infinity', 'x', 'h', -1), \
             ('times', 'infinity', 'infinity', gen_random_uuid()::text, repeat('h', 5000), -1), \
             ('years', '290000-01-01', 'infinity', gen_random_uuid()::text, 'h', 1)) \
         AS w (channel, since, until, owner, host, process)",
    );
    let queue = locks.show("a").await.unwrap().unwrap().queue;
    let known: Vec<_> = queue.iter().map(|waiter| (waiter.owner.is_some(), waiter.pid)).collect();
    assert_eq!(known, [(false, None), (true, Some(1)), (true, None)]);
    assert_eq!((queue[0].since, queue[2].since), (None, None));
    assert_eq!(queue[2].host.as_ref().map(String::len), Some(1024));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_detached_is_not_given_back_though_the_answer_is_late() {
    let database = Database::new();
    let proxy = Proxy::start(database.server.addr());
    let locks = fencepost::Locks::connect(&database.url_over(proxy.addr())).await.unwrap();
    let guard = locks.lock("a").ttl(SHORT).without_renewal().acquire().await.unwrap();
    proxy.hold_answers();
    let detached = tokio::spawn(guard.detach());
    // By our clock the lease has ended, and the session has been looked after since.
    tokio::time::sleep(SHORT + ms(1500)).await;
    assert_eq!(database.psql("SELECT owner IS NOT NULL AND session IS NULL FROM fencepost.locks"), "t");
    proxy.pass();
    let handle = bounded("the answer comes", detached).await.unwrap().unwrap();
    assert_eq!(handle.name().as_str(), "a");
    database.is_clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_not_polled_does_not_cost_the_session() {
    let database = Database::new();
    let (locks, rival) = (database.locks().await, database.locks().await);
    let other = take(&locks, "other").await;
    let lock = patient(&locks, "a").ttl(SHORT);
    let mut waits = Box::pin(lock.acquire());
    let pending = poll_fn(|context| Poll::Ready(waits.as_mut().poll(context).is_pending())).await;
    assert!(pending);
    until("it is granted", async || database.advisory_locks() == "2").await;
    until("it is given back", async || database.advisory_locks() == "1").await;
    tokio::time::sleep(ms(2500)).await;
    take(&rival, "a").await.release().await.unwrap();
    assert!(!other.state().is_lost(), "{:?}", other.state());
    bounded("it asks again", waits).await.unwrap().release().await.unwrap();
    other.release().await.unwrap();
    database.is_clear().await;
}
