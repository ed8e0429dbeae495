//! `activate` together with the first statement of the caller's own transaction: the token first, in one round trip.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fencepost::FencingToken;
use fencepost::fence::postgres::{activate, activate_once, activate_once_with, activate_with};
use fencepost::fence::{Error, Result, StaleToken};
use fencepost_testkit::Proxy;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, IsolationLevel, NoTls, Transaction};

use crate::stage::{Database, bounded, token, until};

const READ: &str = "SELECT n FROM account";
const ADD: &str = "UPDATE account SET n = n + 1";

fn with_account() -> Database {
    let database = Database::prepared();
    database.psql("CREATE TABLE account (n bigint); INSERT INTO account VALUES (0)");
    database
}

/// Those of this database who wait for somebody's lock.
const WAITING: &str = "FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";

async fn waits(database: &Database) {
    until("somebody waits", async || database.psql(&format!("SELECT count(*) {WAITING}")) == "1").await;
}

/// A client behind a link that can be held up.
async fn linked(database: &Database) -> (Proxy, Client) {
    let link = Proxy::start(database.server.addr());
    let url = database.server.url_at(link.addr(), &database.name);
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    (link, client)
}

/// Either form.
async fn shown_with<T>(
    once: bool,
    transaction: &Transaction<'_>,
    shown: FencingToken,
    first: impl Future<Output = T>,
) -> Result<T> {
    if once {
        activate_once_with(transaction, "account", shown, first).await
    } else {
        activate_with(transaction, "account", shown, first).await
    }
}

fn is_transient(error: &Error) -> bool {
    matches!(error, Error::Failed(fencepost::Error::Unavailable { .. }))
}

/// Answers are held back, so whatever is sent was not waiting for any.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_statement_is_sent_without_waiting_for_the_answer_to_the_token() {
    let database = with_account();
    let (link, mut client) = linked(&database).await;
    let add = client.prepare(ADD).await.unwrap();
    for (once, shown) in [(false, token(7)), (true, token(8))] {
        let transaction = client.transaction().await.unwrap();
        link.hold_answers();
        let done = async || {
            let state = "datname = current_database() AND state = 'idle in transaction'";
            let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE {state} AND query = '{ADD}'");
            database.psql(&sql) == "1"
        };
        let answer = async {
            until("the server has done both", done).await;
            link.pass();
        };
        let both = shown_with(once, &transaction, shown, transaction.execute(&add, &[]));
        let (said, ()) = bounded("the answers come", async { tokio::join!(both, answer) }).await;
        assert_eq!(said.unwrap().unwrap(), 1);
        transaction.commit().await.unwrap();
    }
    assert_eq!(database.psql(READ), "2");
    assert_eq!(database.psql("SELECT token FROM fencepost_fence.guards"), "8");
}

/// If the read were sent first, it would not wait for the older holder, and would not see what it wrote.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_is_sent_along_sees_what_the_older_holder_wrote() {
    let database = with_account();
    for (round, once) in [false, true].into_iter().enumerate() {
        let (low, high) = (token(10 * round as u64 + 7), token(10 * round as u64 + 8));
        let (mut older, mut newer) = (database.client().await, database.client().await);
        let read = newer.prepare(READ).await.unwrap();
        let first = older.transaction().await.unwrap();
        activate(&first, "account", low).await.unwrap();
        first.execute(ADD, &[]).await.unwrap();
        let second = tokio::spawn(async move {
            let transaction = newer.transaction().await.unwrap();
            let row = shown_with(once, &transaction, high, transaction.query_one(&read, &[])).await;
            transaction.commit().await.unwrap();
            row.unwrap().unwrap().get::<_, i64>(0)
        });
        waits(&database).await;
        first.commit().await.unwrap();
        assert_eq!(bounded("it gets in", second).await.unwrap(), round as i64 + 1);
    }
}

/// As psql sends it, and whoever else has neither parameters nor a pipeline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_statements_in_one_string_are_as_good() {
    let database = Arc::new(with_account());
    let mut older = database.client().await;
    let first = older.transaction().await.unwrap();
    activate(&first, "account", token(7)).await.unwrap();
    first.execute(ADD, &[]).await.unwrap();
    let newer = database.clone();
    let string = format!("BEGIN; SELECT fencepost_fence.activate('account', 8); {READ}; {ADD}; COMMIT");
    let second = tokio::task::spawn_blocking(move || newer.psql(&string));
    waits(&database).await;
    first.commit().await.unwrap();
    let said = bounded("it gets in", second).await.unwrap();
    assert!(said.lines().any(|line| line == "1"), "{said}");
    let stale = format!("BEGIN; SELECT fencepost_fence.activate('account', 7); {ADD}; COMMIT");
    assert!(database.refused(&stale).contains("FP010"));
    assert_eq!(database.psql(READ), "2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_holder_is_told_so_and_its_statement_was_not_run() {
    let database = with_account();
    let mut client = database.client().await;
    let add = client.prepare(ADD).await.unwrap();
    let transaction = client.transaction().await.unwrap();
    activate_once(&transaction, "account", token(8)).await.unwrap();
    transaction.commit().await.unwrap();
    for (once, shown) in [(false, token(7)), (true, token(7)), (true, token(8))] {
        let went_on = AtomicBool::new(false);
        let transaction = client.transaction().await.unwrap();
        let first = async {
            let answer = transaction.execute(&add, &[]).await;
            went_on.store(true, Ordering::SeqCst);
            answer
        };
        let stale = shown_with(once, &transaction, shown, first).await.unwrap_err();
        assert_eq!(stale.stale(), Some(&StaleToken::new("account", shown, token(8))));
        assert!(!went_on.load(Ordering::SeqCst), "what is behind the statement has not begun");
        // Who commits nevertheless has written nothing.
        transaction.commit().await.unwrap();
    }
    assert_eq!(database.psql(READ), "0");
    let transaction = client.transaction().await.unwrap();
    shown_with(false, &transaction, token(8), transaction.execute(&add, &[])).await.unwrap().unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(database.psql(READ), "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_first_may_take_several_round_trips_and_fail_in_its_own_way() {
    let database = with_account();
    let mut client = database.client().await;
    let transaction = client.transaction().await.unwrap();
    let first = async {
        let row = transaction.query_one(READ, &[]).await?;
        transaction.execute("UPDATE account SET n = $1", &[&(row.get::<_, i64>(0) + 5)]).await
    };
    assert_eq!(activate_with(&transaction, "account", token(7), first).await.unwrap().unwrap(), 1);
    let nothing = activate_with(&transaction, "account", token(7), async { "nothing" }).await.unwrap();
    assert_eq!(nothing, "nothing");
    transaction.commit().await.unwrap();
    assert_eq!(database.psql(READ), "5");

    let transaction = client.transaction().await.unwrap();
    let wrong = transaction.query_one("SELECT nonsense FROM account", &[]);
    let error = activate_with(&transaction, "account", token(8), wrong).await.unwrap().unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::UNDEFINED_COLUMN));
    transaction.rollback().await.unwrap();

    let transaction = client.transaction().await.unwrap();
    let never = async { panic!("it was begun") };
    let invalid = activate_with(&transaction, "", token(9), never).await.unwrap_err();
    assert!(matches!(invalid, Error::Failed(fencepost::Error::Invalid { .. })), "{invalid:?}");
}

/// Not that the transaction is aborted, which is all that the statement behind it hears.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_snapshot_is_named_as_the_cause() {
    let database = with_account();
    let (mut older, mut newer) = (database.client().await, database.client().await);
    let read = newer.prepare(READ).await.unwrap();
    let level = IsolationLevel::RepeatableRead;
    let second = newer.build_transaction().isolation_level(level).start().await.unwrap();
    second.query_one(&read, &[]).await.unwrap();
    let first = older.transaction().await.unwrap();
    activate(&first, "account", token(7)).await.unwrap();
    first.commit().await.unwrap();
    let first = second.query_one(&read, &[]);
    let error = activate_with(&second, "account", token(8), first).await.unwrap_err();
    assert!(is_transient(&error) && error.to_string().contains("try the transaction again"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gives_up_in_the_middle_has_done_nothing() {
    let database = with_account();
    let (mut older, mut newer) = (database.client().await, database.client().await);
    let add = newer.prepare(ADD).await.unwrap();
    let open = older.transaction().await.unwrap();
    activate(&open, "account", token(7)).await.unwrap();
    {
        let transaction = newer.transaction().await.unwrap();
        let mut both = pin!(activate_with(&transaction, "account", token(8), transaction.execute(&add, &[])));
        tokio::select! {
            biased;
            _ = &mut both => panic!("it has to wait"),
            () = waits(&database) => {}
        }
    }
    open.commit().await.unwrap();
    // The answers to what was sent have been read past: this is behind the rollback on the same connection.
    let row = bounded("the client can be used", newer.query_one(READ, &[])).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 0);
    let transaction = older.transaction().await.unwrap();
    activate(&transaction, "account", token(7)).await.unwrap();
}

/// A transaction whose session is gone cannot be committed by anybody: it can be tried again, and nothing about it is unknown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_takes_the_transaction_with_it() {
    let database = with_account();
    let (mut older, (link, mut cut)) = (database.client().await, linked(&database).await);
    let add = cut.prepare(ADD).await.unwrap();
    let transaction = cut.transaction().await.unwrap();
    link.cut_next_answer();
    let both = activate_with(&transaction, "account", token(8), transaction.execute(&add, &[]));
    let error = bounded("it is told", both).await.unwrap_err();
    assert!(is_transient(&error), "{error:?}");
    // Waits for the server to notice.
    let open = older.transaction().await.unwrap();
    bounded("the token was taken back", activate(&open, "account", token(7))).await.unwrap();

    let mut ended = database.client().await;
    let add = ended.prepare(ADD).await.unwrap();
    let transaction = ended.transaction().await.unwrap();
    let mut both = pin!(activate_with(&transaction, "account", token(8), transaction.execute(&add, &[])));
    tokio::select! {
        biased;
        _ = &mut both => panic!("it has to wait"),
        () = waits(&database) => {}
    }
    assert_eq!(database.psql(&format!("SELECT pg_terminate_backend(pid) {WAITING}")), "t");
    let error = bounded("it is told", both).await.unwrap_err();
    assert!(is_transient(&error), "{error:?}");
    open.commit().await.unwrap();
    assert_eq!(database.psql(READ), "0");
}
