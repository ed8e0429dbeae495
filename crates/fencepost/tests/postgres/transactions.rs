//! Locks inside the caller's own transaction.

use fencepost::postgres::{Key, Schema, lock_in_transaction, try_lock_in_transaction};
use fencepost::{Error, FencingToken};
use tokio_postgres::IsolationLevel;

use crate::harness::{Database, SHORT, bounded, take};

/// A database with the schema and one row to protect.
async fn prepared() -> Database {
    let database = Database::new();
    database.locks().await.close().await;
    database.psql("CREATE TABLE account (balance bigint); INSERT INTO account VALUES (0)");
    database
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_last_holder_wrote_is_seen() {
    let database = prepared().await;
    let locks = database.locks().await;
    let mut tasks = Vec::new();
    for task in 0..6 {
        let (mut client, locks) = (database.client().await, locks.clone());
        tasks.push(tokio::spawn(async move {
            let mut tokens = Vec::new();
            for _ in 0..10 {
                // Half of them hold the lock by a session, the others by their transaction.
                let guard = if task % 2 == 0 { Some(take(&locks, "account").await) } else { None };
                let transaction = client.transaction().await.unwrap();
                tokens.push(match &guard {
                    Some(guard) => guard.token(),
                    None => lock_in_transaction(&transaction, "account").await.unwrap(),
                });
                let row = transaction.query_one("SELECT balance FROM account", &[]).await.unwrap();
                // Not one statement on purpose: only exclusion keeps the sum right.
                let balance: i64 = row.get(0);
                transaction.execute("UPDATE account SET balance = $1", &[&(balance + 1)]).await.unwrap();
                transaction.commit().await.unwrap();
                if let Some(guard) = guard {
                    guard.release().await.unwrap();
                }
            }
            tokens
        }));
    }
    let mut tokens: Vec<FencingToken> = Vec::new();
    for task in tasks {
        let own = bounded("all tasks end", task).await.unwrap();
        assert!(own.is_sorted_by(|one, next| one < next));
        tokens.extend(own);
    }
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!((tokens.len(), database.psql("SELECT balance FROM account").as_str()), (60, "60"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_isolation_level_with_an_older_snapshot_is_refused() {
    let database = prepared().await;
    let mut client = database.client().await;
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let transaction = client.build_transaction().isolation_level(level).start().await.unwrap();
        let error = lock_in_transaction(&transaction, "a").await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        assert!(error.to_string().contains("READ COMMITTED"), "{error}");
        transaction.rollback().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollback_ends_the_lock_and_the_next_token_is_larger_still() {
    let database = prepared().await;
    let locks = database.locks().await;
    let mut client = database.client().await;
    let before = take(&locks, "a").await.token();
    let transaction = client.transaction().await.unwrap();
    let rolled_back = lock_in_transaction(&transaction, "a").await.unwrap();
    assert!(rolled_back > before);
    transaction.rollback().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let next = try_lock_in_transaction(&transaction, "a").await.unwrap().unwrap();
    assert!(next > rolled_back);
    let key = Key::from((1, 42));
    assert!(try_lock_in_transaction(&transaction, key).await.unwrap().is_some());
    assert!(locks.lock(key).try_acquire().await.unwrap().is_none());
    drop(transaction);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_waits_for_a_lease_whose_session_is_gone() {
    let database = prepared().await;
    let locks = database.locks().await;
    let guard = locks.lock("a").ttl(2 * SHORT).acquire().await.unwrap();
    database.terminate_holder("a");
    let mut client = database.client().await;
    let transaction = client.transaction().await.unwrap();
    let token = bounded("the lease ends", lock_in_transaction(&transaction, "a")).await.unwrap();
    assert!(token > guard.token() && guard.state().is_lost());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_of_the_transaction_ends_the_wait() {
    let database = prepared().await;
    let locks = database.locks().await;
    let _held = take(&locks, "held").await;
    // A lease alone: nothing that the server would wait for.
    let _handle = take(&locks, "detached").await.detach().await.unwrap();
    for name in ["held", "detached"] {
        let mut client = database.client().await;
        let transaction = client.transaction().await.unwrap();
        assert_eq!(try_lock_in_transaction(&transaction, name).await.unwrap(), None);
        transaction.batch_execute("SET LOCAL lock_timeout = '100ms'").await.unwrap();
        let error = bounded("the wait ends", lock_in_transaction(&transaction, name)).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{name}: {error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_and_a_store_of_one_schema_exclude_each_other_and_share_a_sequence() {
    let database = prepared().await;
    database.psql("CREATE SEQUENCE public.fence START 1000");
    let locks = database.locks_with("schema=app&sequence=public.fence").await;
    let schema = Schema::new("app").unwrap().sequence("public.fence");
    let mut client = database.client().await;
    let guard = take(&locks, "a").await;
    assert_eq!(guard.token().get(), 1000);
    let transaction = client.transaction().await.unwrap();
    assert_eq!(schema.try_lock_in_transaction(&transaction, "a").await.unwrap(), None);
    assert!(try_lock_in_transaction(&transaction, "a").await.unwrap().is_some(), "another schema is apart");
    guard.release().await.unwrap();
    let token = bounded("it is free", schema.lock_in_transaction(&transaction, "a")).await.unwrap();
    assert!(token.get() > 1000 && token.get() < 1010, "{token:?}");
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    assert!(matches!(Schema::new(""), Err(Error::Invalid { .. })));
}
