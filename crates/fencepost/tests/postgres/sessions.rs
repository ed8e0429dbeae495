//! A session that ends, is killed or stands still takes its advisory locks with it, and not its leases.

use fencepost::{Error, Loss};
use fencepost_testkit::Proxy;

use crate::stage::{Database, LONG, Psql, SHORT, bounded, take, until};

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
    let guard = locks.lock("a").ttl(SHORT).renew(false).acquire().await.unwrap();
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
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no room'; END $$; \
             CREATE CONSTRAINT TRIGGER fail AFTER INSERT OR UPDATE ON fencepost.locks DEFERRABLE INITIALLY {when} \
             FOR EACH ROW EXECUTE FUNCTION fail()"
        ));
        let error = locks.lock("a").try_acquire().await.unwrap_err();
        assert!(
            error.to_string().contains("no room") || matches!(error, Error::Backend { .. }),
            "{when}: {error}"
        );
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
    let guard = locks.lock("a").ttl(SHORT).renew(false).acquire().await.unwrap();
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
    let revoked = operator.force_release_now("a", "stuck").await.unwrap().unwrap();
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
    // Another user's session is ours to end only if we can tell that it is the one. The second time it has no lease left.
    for _ in 0..2 {
        let error = operators.force_release_now("a", "stuck").await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        let text = error.to_string();
        let sql = text.split_once("a superuser: ").unwrap_or_else(|| panic!("{text}")).1;
        assert_eq!(sql, format!("GRANT pg_signal_backend, pg_read_all_stats TO \"{operator}\""));
        assert_eq!(database.advisory_locks(), "1");
    }
    database.psql(&format!("GRANT pg_read_all_stats TO {operator}"));
    assert!(operators.force_release_now("a", "stuck").await.unwrap().unwrap().freed);
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
    assert_eq!(
        bounded("it is told", guard.lost()).await,
        Loss::ForceReleased { reason: "because".to_owned() }
    );
}
