//! Money under a lock, in a transaction of sqlx that begins with the lock's token.

use std::time::Duration;

use fencepost::Locks;
use fencepost::fence::Fence;
use sqlx::PgPool;

use crate::Result;

/// Adds to an account. The lock goes around the transaction: released before COMMIT it protects nothing.
async fn deposit(pool: &PgPool, locks: &Locks, account: i32, amount: i64) -> Result<()> {
    let name = format!("account:{account}");
    let guard = locks.lock(&name).wait(Duration::from_secs(5)).acquire().await?;
    let mut transaction = pool.begin().await?;
    // Before the first read. SQLSTATE FP010 says that a later holder has been here.
    sqlx::query("SELECT fencepost_fence.activate($1, $2)")
        .bind(&name)
        .bind(i64::from(guard.token()))
        .execute(&mut *transaction)
        .await?;
    let balance: i64 = sqlx::query_scalar("SELECT balance FROM account WHERE id = $1")
        .bind(account)
        .fetch_one(&mut *transaction)
        .await?;
    sqlx::query("UPDATE account SET balance = $2 WHERE id = $1")
        .bind(account)
        .bind(balance + amount)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    guard.release().await?;
    Ok(())
}

#[tokio::test]
async fn deposits_add_up_and_a_stale_one_is_refused() {
    let server = fencepost_testkit::postgres::Server::shared();
    let database = server.create_database();
    server.psql(
        &database,
        "CREATE TABLE account (id int PRIMARY KEY, balance bigint); INSERT INTO account VALUES (7, 100)",
    );
    let url = server.url(&database);
    drop(Fence::connect(&url).await.unwrap());
    let (pool, locks) = (PgPool::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    let (one, two) = tokio::join!(deposit(&pool, &locks, 7, 5), deposit(&pool, &locks, 7, 10));
    one.unwrap();
    two.unwrap();
    assert_eq!(server.psql(&database, "SELECT balance FROM account"), "115");
    server.psql(&database, "SELECT fencepost_fence.activate('account:7', 9007199254740991)");
    let error = deposit(&pool, &locks, 7, 1).await.unwrap_err().to_string();
    assert!(error.contains("token"), "{error}");
    assert_eq!(server.psql(&database, "SELECT balance FROM account"), "115");
    pool.close().await;
    locks.close().await;
}
