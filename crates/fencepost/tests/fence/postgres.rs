//! The functions of `fence.sql`, in transactions of the caller's own and typed into psql.

use fencepost::fence::postgres::{MIGRATION, activate, activate_once, stale_token};
use fencepost::fence::{Error, Fence, StaleToken};
use tokio_postgres::IsolationLevel;

use crate::harness::{Database, bounded, token, until};

fn is_transient(error: &Error) -> bool {
    matches!(error, Error::Failed(fencepost::Error::Unavailable { .. }))
}

#[test]
fn the_migration_can_be_run_again_and_by_several_at_once() {
    let database = Database::prepared();
    database.psql("SELECT fencepost_fence.activate('a', 7)");
    database.install();
    assert!(database.refused("SELECT fencepost_fence.activate('a', 6)").contains("FP010"));
    let database = Database::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let connects: Vec<_> = (0..6)
            .map(|_| {
                let url = database.url();
                tokio::spawn(async move { Fence::connect(&url).await.map(drop) })
            })
            .collect();
        for connect in connects {
            bounded("all connect", connect).await.unwrap().unwrap();
        }
    });
}

#[test]
fn psql_is_refused_with_a_code_and_machine_readable_tokens() {
    let database = Database::prepared();
    assert_eq!(database.psql("SELECT fencepost_fence.activate('account:7', 42) IS NULL"), "t");
    database.psql("SELECT fencepost_fence.activate('account:7', 42)");
    let text = database.refused("SELECT fencepost_fence.activate('account:7', 41)");
    for part in [
        "FP010: token 41 is refused at resource \"account:7\", which has seen 42",
        r#"DETAIL:  {"resource" : "account:7", "presented" : 41, "highest" : 42}"#,
        "HINT:",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(database.refused("SELECT fencepost_fence.activate_once('account:7', 42)").contains("FP010"));
    database.psql("SELECT fencepost_fence.activate_once('account:7', 43)");
    database.psql("SELECT fencepost_fence.write('account:7', 43, 'abc')");
    assert!(database.refused("SELECT fencepost_fence.write('account:7', 42, 'x')").contains("FP010"));
    assert!(database.refused("SELECT fencepost_fence.write_once('account:7', 43, 'x')").contains("FP010"));
    assert_eq!(database.psql("SELECT fencepost_fence.activate('account:7', 43)"), "\\x616263");
    // A resource that is known, and one that is not.
    for resource in ["account:7", "a"] {
        for number in ["NULL", "0", "-1", "9007199254740992"] {
            let text = database.refused(&format!("SELECT fencepost_fence.activate('{resource}', {number})"));
            assert!(text.contains("22023"), "{text}");
        }
    }
    for resource in ["NULL", "''", "repeat('x', 513)"] {
        let text = database.refused(&format!("SELECT fencepost_fence.activate({resource}, 44)"));
        assert!(text.contains("22023"), "{text}");
    }
}

#[test]
fn a_user_who_may_only_use_the_schema_cannot_lower_a_token() {
    let database = Database::prepared();
    let role = format!("worker_{}", database.name);
    database.psql(&format!("CREATE ROLE {role}; GRANT USAGE ON SCHEMA fencepost_fence TO {role}"));
    database.psql(&format!("SET ROLE {role}; SELECT fencepost_fence.activate('a', 7)"));
    for sql in ["UPDATE fencepost_fence.guards SET token = 1", "DELETE FROM fencepost_fence.guards"] {
        let text = database.refused(&format!("SET ROLE {role}; {sql}"));
        assert!(text.contains("42501"), "{text}");
    }
    assert!(
        database
            .refused(&format!("SET ROLE {role}; SELECT fencepost_fence.activate('a', 6)"))
            .contains("FP010")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_in_a_transaction_has_its_tokens() {
    let database = Database::new();
    let mut client = database.client().await;
    let transaction = client.transaction().await.unwrap();
    let missing = activate(&transaction, "a", token(8)).await.unwrap_err();
    assert!(missing.to_string().contains("fence.sql"), "{missing}");
    drop(transaction);
    client.batch_execute(MIGRATION).await.unwrap();
    let transaction = client.transaction().await.unwrap();
    activate(&transaction, "a", token(8)).await.unwrap();
    transaction.commit().await.unwrap();
    let stale = StaleToken::new("a", token(7), token(8));
    for once in [false, true] {
        let transaction = client.transaction().await.unwrap();
        let said = if once {
            activate_once(&transaction, "a", token(7)).await
        } else {
            activate(&transaction, "a", token(7)).await
        };
        assert_eq!(said.unwrap_err().stale(), Some(&stale));
    }
    let error = client.batch_execute("SELECT fencepost_fence.activate('a', 7)").await.unwrap_err();
    assert_eq!(stale_token(&error), Some(stale));
    let transaction = client.transaction().await.unwrap();
    let invalid = activate(&transaction, "", token(9)).await.unwrap_err();
    assert!(matches!(invalid, Error::Failed(fencepost::Error::Invalid { .. })), "{invalid:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_holder_waits_for_the_older_ones_transaction_and_sees_what_it_wrote() {
    let database = Database::prepared();
    database.psql("CREATE TABLE account (n bigint); INSERT INTO account VALUES (0)");
    let (mut older, mut newer) = (database.client().await, database.client().await);
    let first = older.transaction().await.unwrap();
    activate(&first, "account", token(7)).await.unwrap();
    first.execute("UPDATE account SET n = n + 1", &[]).await.unwrap();
    let second = tokio::spawn(async move {
        let transaction = newer.transaction().await.unwrap();
        activate(&transaction, "account", token(8)).await.unwrap();
        let row = transaction.query_one("SELECT n FROM account", &[]).await.unwrap();
        transaction.commit().await.unwrap();
        row.get::<_, i64>(0)
    });
    until("the newer one waits", async || {
        database.psql("SELECT count(*) FROM pg_locks WHERE NOT granted") != "0"
    })
    .await;
    first.commit().await.unwrap();
    assert_eq!(bounded("it gets in", second).await.unwrap(), 1);
    let late = older.transaction().await.unwrap();
    assert!(activate(&late, "account", token(7)).await.unwrap_err().stale().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollback_takes_the_token_back() {
    let database = Database::prepared();
    let mut client = database.client().await;
    let transaction = client.transaction().await.unwrap();
    activate(&transaction, "a", token(8)).await.unwrap();
    transaction.rollback().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    activate(&transaction, "a", token(7)).await.unwrap();
}

/// The older holder has activated before, so the guard has its token already when it comes again. The newer
/// one's snapshot is older than what it writes then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_snapshot_is_refused_at_every_isolation_level() {
    let database = Database::prepared();
    database.psql("CREATE TABLE account (n bigint); INSERT INTO account VALUES (0)");
    let (mut older, mut newer) = (database.client().await, database.client().await);
    for (round, level) in
        [IsolationLevel::RepeatableRead, IsolationLevel::Serializable].into_iter().enumerate()
    {
        let (low, high) = (token(10 * round as u64 + 7), token(10 * round as u64 + 8));
        let first = older.transaction().await.unwrap();
        activate(&first, "account", low).await.unwrap();
        first.commit().await.unwrap();

        let second = newer.build_transaction().isolation_level(level).start().await.unwrap();
        second.query_one("SELECT n FROM account", &[]).await.unwrap();
        let first = older.transaction().await.unwrap();
        activate(&first, "account", low).await.unwrap();
        first.execute("UPDATE account SET n = n + 1", &[]).await.unwrap();
        first.commit().await.unwrap();
        let error = activate(&second, "account", high).await.unwrap_err();
        assert!(is_transient(&error) && error.to_string().contains("try the transaction again"), "{error}");
        drop(second);
        let second = newer.build_transaction().isolation_level(level).start().await.unwrap();
        activate(&second, "account", high).await.unwrap();
        second.commit().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_sits_in_its_transaction_is_waited_for_in_bounds() {
    let database = Database::prepared();
    let mut client = database.client().await;
    let open = client.transaction().await.unwrap();
    activate(&open, "a", token(7)).await.unwrap();
    let url = format!("{}?timeout=3s", database.server.url(&database.name));
    let fence = Fence::connect(&url).await.unwrap();
    let error = fence.resource("a").activate(token(8)).await.unwrap_err();
    assert!(is_transient(&error) && error.to_string().contains("another holder"), "{error}");
    fence.resource("b").activate(token(8)).await.unwrap();
    open.commit().await.unwrap();
    fence.resource("a").activate(token(8)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_outlive_a_killed_session_and_a_write_without_an_answer_is_uncertain() {
    let database = Database::prepared();
    let fence = Fence::connect(&database.url()).await.unwrap();
    let active = fence.resource("a").activate(token(7)).await.unwrap();
    active.write("one").await.unwrap();
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
               WHERE datname = current_database() AND pid <> pg_backend_pid()";
    assert_eq!(database.psql(end), "1");
    // Depending on when the end of the connection is noticed, it is known not to be sent, or not known; never
    // taken for done.
    match active.write("two").await {
        Ok(()) => {}
        Err(Error::Uncertain { resource, .. }) => assert_eq!(resource.as_str(), "a"),
        Err(error) => assert!(is_transient(&error), "{error}"),
    }
    assert!(active.read().await.unwrap().is_some());

    // A write that waits for a row when its session ends.
    let mut client = database.client().await;
    let open = client.transaction().await.unwrap();
    activate(&open, "a", token(7)).await.unwrap();
    let write = tokio::spawn({
        let active = active.clone();
        async move { active.write("three").await }
    });
    let waiting = "FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    until("it waits", async || database.psql(&format!("SELECT count(*) {waiting}")) == "1").await;
    assert_eq!(database.psql(&format!("SELECT pg_terminate_backend(pid) {waiting}")), "t");
    let error = bounded("it is told", write).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Uncertain { .. }), "{error:?}");
}
