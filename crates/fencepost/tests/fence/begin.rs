//! Transactions that begin with their token, and who may not replace what that is compared with.

use std::pin::pin;
use std::sync::Arc;

use fencepost::fence::postgres::{MIGRATION, activate, begin};
use fencepost::fence::{Error, StaleToken};

use crate::harness::{Database, bounded, token, until};

async fn waits(database: &Database) {
    let waiting = async || database.psql("SELECT count(*) FROM pg_locks WHERE NOT granted") != "0";
    until("somebody waits", waiting).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_begins_with_its_token_or_not_at_all() {
    let database = Database::new();
    database.psql("CREATE TABLE account (n bigint); INSERT INTO account VALUES (0)");
    let mut client = database.client().await;
    let missing = begin(&mut client, "a", token(8)).await.unwrap_err();
    assert!(missing.to_string().contains("fence.sql"), "{missing}");
    client.batch_execute(MIGRATION).await.unwrap();

    let transaction = begin(&mut client, "a", token(8)).await.unwrap();
    transaction.execute("UPDATE account SET n = 1", &[]).await.unwrap();
    assert_eq!(database.psql("SELECT n FROM account"), "0", "it is a transaction");
    transaction.commit().await.unwrap();
    assert_eq!(database.psql("SELECT n FROM account"), "1");

    let stale = begin(&mut client, "a", token(7)).await.unwrap_err();
    assert_eq!(stale.stale(), Some(&StaleToken::new("a", token(7), token(8))));
    // Nothing is left open by it.
    client.execute("UPDATE account SET n = 2", &[]).await.unwrap();
    assert_eq!(database.psql("SELECT n FROM account"), "2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_name_of_a_resource_is_a_name_and_no_code() {
    let database = Database::prepared();
    let mut client = database.client().await;
    let names = ["it's", r"C:\x'; DROP SCHEMA fencepost_fence CASCADE; --", r"\", "'", r"\'", "$1 %s {} \n"];
    for setting in ["on", "off"] {
        client.batch_execute(&format!("SET standard_conforming_strings = {setting}")).await.unwrap();
        for name in names {
            begin(&mut client, name, token(8)).await.unwrap().commit().await.unwrap();
            let stale = begin(&mut client, name, token(7)).await.unwrap_err();
            assert_eq!(stale.stale(), Some(&StaleToken::new(name, token(7), token(8))));
        }
    }
    let rows = client.query("SELECT resource FROM fencepost_fence.guards", &[]).await.unwrap();
    assert_eq!(rows.len(), names.len());
    for name in ["", "a\0b", &"x".repeat(513)] {
        let invalid = begin(&mut client, name, token(9)).await.unwrap_err();
        assert!(matches!(invalid, Error::Failed(fencepost::Error::Invalid { .. })), "{invalid:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_was_rolled_back_or_dropped_leaves_nothing() {
    let database = Database::prepared();
    database.psql("CREATE TABLE account (n bigint); INSERT INTO account VALUES (0)");
    let mut client = database.client().await;
    for dropped in [false, true] {
        let transaction = begin(&mut client, "a", token(8)).await.unwrap();
        transaction.execute("UPDATE account SET n = 1", &[]).await.unwrap();
        if dropped {
            drop(transaction);
        } else {
            transaction.rollback().await.unwrap();
        }
        // The statement is behind the rollback on this connection, and not in the transaction.
        client.execute("UPDATE account SET n = n + 10", &[]).await.unwrap();
    }
    assert_eq!(database.psql("SELECT n FROM account"), "20");
    begin(&mut client, "a", token(7)).await.unwrap().commit().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_holder_waits_and_sees_what_the_older_one_wrote() {
    let database = Database::prepared();
    database.psql("CREATE TABLE account (n bigint); INSERT INTO account VALUES (0)");
    let (mut older, mut newer) = (database.client().await, database.client().await);
    let first = begin(&mut older, "account", token(7)).await.unwrap();
    first.execute("UPDATE account SET n = n + 1", &[]).await.unwrap();
    let second = tokio::spawn(async move {
        let transaction = begin(&mut newer, "account", token(8)).await.unwrap();
        let row = transaction.query_one("SELECT n FROM account", &[]).await.unwrap();
        transaction.commit().await.unwrap();
        row.get::<_, i64>(0)
    });
    waits(&database).await;
    first.commit().await.unwrap();
    assert_eq!(bounded("it gets in", second).await.unwrap(), 1);
    assert!(begin(&mut older, "account", token(7)).await.unwrap_err().stale().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gives_up_waiting_keeps_nobody_out() {
    let database = Database::prepared();
    let (mut older, mut newer) = (database.client().await, database.client().await);
    let open = begin(&mut older, "a", token(7)).await.unwrap();
    {
        let mut waiting = pin!(begin(&mut newer, "a", token(8)));
        tokio::select! {
            biased;
            _ = &mut waiting => panic!("it has to wait"),
            () = waits(&database) => {}
        }
    }
    open.commit().await.unwrap();
    // Behind the rollback; and the token was taken back.
    newer.batch_execute("SELECT 1").await.unwrap();
    let transaction = bounded("nobody has it", older.transaction()).await.unwrap();
    activate(&transaction, "a", token(7)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_isolation_level_is_the_sessions_and_savepoints_work() {
    let database = Database::prepared();
    let mut client = database.client().await;
    let level = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE";
    client.batch_execute(level).await.unwrap();
    let transaction = begin(&mut client, "a", token(7)).await.unwrap();
    let row = transaction.query_one("SHOW transaction_isolation", &[]).await.unwrap();
    assert_eq!(row.get::<_, &str>(0), "serializable");
    transaction.batch_execute("SAVEPOINT s; ROLLBACK TO s").await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(database.psql("SELECT token FROM fencepost_fence.guards"), "7");
}

/// A transaction whose session is gone cannot be committed by anybody: it can be tried again, and nothing
/// about it is unknown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_takes_the_transaction_with_it() {
    let database = Database::prepared();
    let (mut older, mut newer) = (database.client().await, database.client().await);
    let open = begin(&mut older, "a", token(7)).await.unwrap();
    let mut waiting = pin!(begin(&mut newer, "a", token(8)));
    tokio::select! {
        biased;
        _ = &mut waiting => panic!("it has to wait"),
        () = waits(&database) => {}
    }
    let ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                 WHERE datname = current_database() AND wait_event_type = 'Lock'";
    assert_eq!(database.psql(ended), "t");
    let error = bounded("it is told", waiting).await.unwrap_err();
    assert!(matches!(error, Error::Failed(fencepost::Error::Unavailable { .. })), "{error:?}");
    open.commit().await.unwrap();
    assert_eq!(database.psql("SELECT token FROM fencepost_fence.guards"), "7");
}

/// As psql sends it, and whoever else has neither parameters nor a pipeline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_statements_in_one_string_are_as_good() {
    let database = Arc::new(Database::prepared());
    database.psql("CREATE TABLE account (n bigint); INSERT INTO account VALUES (0)");
    let mut older = database.client().await;
    let first = begin(&mut older, "account", token(7)).await.unwrap();
    first.batch_execute("UPDATE account SET n = n + 1").await.unwrap();
    let newer = database.clone();
    let string = |token: u32| {
        format!(
            "BEGIN; SELECT fencepost_fence.activate('account', {token}); SELECT n FROM account; \
             UPDATE account SET n = n + 1; COMMIT"
        )
    };
    let (newest, stale) = (string(8), string(7));
    let second = tokio::task::spawn_blocking(move || newer.psql(&newest));
    waits(&database).await;
    first.commit().await.unwrap();
    let said = bounded("it gets in", second).await.unwrap();
    assert!(said.lines().any(|line| line == "1"), "{said}");
    assert!(database.refused(&stale).contains("FP010"));
    assert_eq!(database.psql("SELECT n FROM account"), "2");
}

/// `activate` runs as its owner, so whatever a caller could slip in would, too.
#[test]
fn callers_cannot_replace_what_activate_compares_with() {
    let database = Database::prepared();
    let role = format!("caller_{}", database.name);
    database.psql(&format!(
        "CREATE ROLE {role}; GRANT USAGE ON SCHEMA fencepost_fence TO {role}; CREATE SCHEMA AUTHORIZATION \
         {role}; \
         SELECT fencepost_fence.activate('a', 42); SET ROLE {role}; \
         CREATE FUNCTION {role}.spoil() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'replaced, as \
         %', current_user; END $$; \
         CREATE FUNCTION {role}.octet_length(text) RETURNS integer LANGUAGE sql AS 'SELECT 1 FROM \
         {role}.spoil()'; \
         CREATE FUNCTION {role}.json_build_object(VARIADIC text[]) RETURNS json LANGUAGE sql AS 'SELECT \
         NULL::json FROM {role}.spoil()'; \
         CREATE FUNCTION {role}.int8(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT \
         {role}.spoil()'; \
         CREATE FUNCTION {role}.int84(bigint, integer) RETURNS boolean LANGUAGE sql AS 'SELECT \
         {role}.spoil()'; \
         CREATE FUNCTION {role}.texts(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT {role}.spoil()'; \
         CREATE OPERATOR {role}.= (LEFTARG = text, RIGHTARG = text, FUNCTION = {role}.texts)"
    ));
    for name in ["<", "<=", "=", ">"] {
        database.psql(&format!(
            "SET ROLE {role}; CREATE OPERATOR {role}.{name} (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION \
             = {role}.int8); \
             CREATE OPERATOR {role}.{name} (LEFTARG = bigint, RIGHTARG = integer, FUNCTION = {role}.int84)"
        ));
    }
    let by_role = |sql: &str| {
        format!(
            "SET ROLE {role}; CREATE DOMAIN pg_temp.bytea AS pg_catalog.bytea CHECK ({role}.spoil()); \
             CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK ({role}.spoil()); \
             SET search_path = {role}, pg_temp, pg_catalog; {sql}"
        )
    };
    assert!(
        database.refused(&by_role("SELECT 1::bigint < 2::bigint")).contains("replaced"),
        "they are found"
    );
    for (arguments, code) in
        [("'a', 41", "FP010"), ("'a', 0", "22023"), ("'', 42", "22023"), ("'a', NULL", "22023")]
    {
        let text = database.refused(&by_role(&format!("SELECT fencepost_fence.activate({arguments})")));
        assert!(text.contains(code) && !text.contains("replaced"), "{arguments}: {text}");
    }
    database.psql(&by_role("SELECT fencepost_fence.activate('a', 42)"));
    database.psql(&by_role("SELECT fencepost_fence.write('a', 43, 'x')"));
}
