//! The functions in the schema, called in an order that the library has to be unlucky for.

use crate::harness::{Database, Psql, until};

/// A database with the schema, and a session in it that is told to do what the library's does.
async fn session() -> (Database, Psql) {
    let database = Database::new();
    database.locks().await.close().await;
    let psql = Psql::start(&database);
    (database, psql)
}

/// Acquires the lock 7 for an owner and returns whether it was granted.
fn acquire(psql: &mut Psql, owner: &str) -> bool {
    psql.ask(&format!(
        "SELECT o_token IS NOT NULL FROM fencepost.acquire(pg_backend_pid(), false, 7, 'pg:7', '{owner}', \
         60000, 'host', 1, '', \
         fencepost.own_session(), 'channel', true, NULL, NULL, false, false, true)"
    )) == "t"
}

fn release(psql: &mut Psql, owner: &str) -> bool {
    psql.ask(&format!(
        "SELECT o_found FROM fencepost.release(pg_backend_pid(), false, 7, '{owner}', true, false, NULL)"
    )) == "t"
}

/// Renews the lock 7, and returns how it was lost.
fn renew(psql: &mut Psql, owner: &str) -> String {
    psql.ask(&format!(
        "SELECT coalesce((SELECT o_found FROM fencepost.renew(pg_backend_pid(), '{{f}}', '{{7}}', \
         '{{{owner}}}', \
         '{{60000}}', '{{t}}') WHERE o_place > 0), 'renewed')"
    ))
}

/// Whether a session of this database waits for something.
fn waits_for(database: &Database, event: &str) -> bool {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event";
    database.psql(&format!("{sql} = '{event}'")) != "0"
}

#[tokio::test]
async fn who_lost_a_lock_does_not_take_the_next_grant_of_its_session_along() {
    let (database, mut psql) = session().await;
    assert!(acquire(&mut psql, "one"));
    database.psql("UPDATE fencepost.locks SET ends = clock_timestamp()");
    assert_eq!(renew(&mut psql, "one"), "ended");
    assert!(acquire(&mut psql, "two"));
    // A renewal that is tried again, and whoever gives an ended lock back, come late.
    assert_eq!(renew(&mut psql, "one"), "gone");
    assert_eq!(database.advisory_locks(), "1");
    for _ in 0..2 {
        assert!(!release(&mut psql, "one"));
        assert_eq!(database.advisory_locks(), "1");
    }
    assert_eq!(renew(&mut psql, "two"), "renewed");
    assert!(release(&mut psql, "two"));
    assert_eq!(database.advisory_locks(), "0");
}

#[tokio::test]
async fn a_transaction_does_not_overwrite_a_lease_that_is_renewed_just_in_time() {
    let (database, mut psql) = session().await;
    let mut holder = Psql::start(&database);
    // Detached: a lease alone, so that the advisory lock is free.
    assert!(acquire(&mut holder, "one"));
    let detach =
        "SELECT o_found IS NULL FROM fencepost.detach(pg_backend_pid(), false, 7, 'one', 60000, true, 'on')";
    assert_eq!(holder.ask(detach), "t");
    for what in ["try_lock_in_transaction", "lock_in_transaction"] {
        database.psql("UPDATE fencepost.locks SET ends = clock_timestamp()");
        holder.tell("BEGIN; UPDATE fencepost.locks SET ends = clock_timestamp() + interval '1 minute'");
        assert_eq!(holder.ask("SELECT 1"), "1");
        psql.tell("BEGIN");
        psql.tell(&format!("SELECT fencepost.{what}('pg:7') IS NULL"));
        until("it waits for the row", async || waits_for(&database, "transactionid")).await;
        holder.tell("COMMIT");
        if what == "try_lock_in_transaction" {
            assert_eq!(psql.answer(), "t");
            let unlocked = "SELECT count(*) FROM (SELECT FROM fencepost.locks FOR UPDATE SKIP LOCKED) AS l";
            assert_eq!(database.psql(unlocked), "1", "the holder can renew it again");
        } else {
            until("it waits for the lease", async || waits_for(&database, "PgSleep")).await;
            database.psql("UPDATE fencepost.locks SET ends = clock_timestamp()");
            assert_eq!(psql.answer(), "f");
        }
        psql.tell("ROLLBACK");
        assert_eq!(database.psql("SELECT owner FROM fencepost.locks"), "one");
    }
}

#[tokio::test]
async fn one_row_that_somebody_has_locked_is_left_out_of_a_renewal() {
    let (database, mut psql) = session().await;
    assert!(acquire(&mut psql, "one"));
    psql.tell(
        "SELECT o_token FROM fencepost.acquire(pg_backend_pid(), false, 8, 'pg:8', 'one', 60000, \
               'host', 1, '', \
               fencepost.own_session(), 'channel', true, NULL, NULL, false, false, true)",
    );
    psql.answer();
    let mut other = Psql::start(&database);
    other.tell("BEGIN");
    assert_eq!(other.ask("SELECT 1 FROM fencepost.locks WHERE key = 7 FOR UPDATE"), "1");
    // It would wait for ever otherwise.
    psql.tell("SET lock_timeout = '5s'");
    let renew = "SELECT string_agg(o_place || ' ' || o_found, ',') FROM fencepost.renew(pg_backend_pid(), \
                 '{f,f}', '{7,8}', \
                 '{one,one}', '{600000,600000}', '{t,t}') WHERE o_place > 0";
    assert_eq!(psql.ask(renew), "1 locked");
    let renewed = "SELECT string_agg(key::text, ',') FROM fencepost.locks WHERE ends > clock_timestamp() + \
                   interval '5 minutes'";
    assert_eq!(database.psql(renewed), "8");
    other.tell("ROLLBACK");
    assert_eq!(other.ask("SELECT 1"), "1");
    assert_eq!(psql.ask(&format!("SELECT coalesce(({renew}), 'both')")), "both");
}

#[tokio::test]
async fn a_session_that_was_moved_to_another_backend_is_refused() {
    let (database, _psql) = session().await;
    let client = database.client().await;
    for call in [
        "acquire(1, false, 7, 'pg:7', 'one', 60000, 'host', 1, '', '1 1', 'channel', true, NULL, NULL, \
         false, false, true)",
        "release(1, false, 7, 'one', true, false, NULL)",
        "detach(1, false, 7, 'one', 60000, true, 'on')",
        "renew(1, '{f}', '{7}', '{one}', '{60000}', '{t}')",
        "attach(1, false, 7, 'one', 5, 'two', 60000, 'host', 1, '', 'channel', 'on')",
        "renew_detached(1, false, 7, 'one', 5, 60000, 'on')",
    ] {
        let error = client.simple_query(&format!("SELECT FROM fencepost.{call}")).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "FP001", "{call}: {error}");
    }
    assert_eq!((database.rows().as_str(), database.advisory_locks().as_str()), ("0", "0"));
}
