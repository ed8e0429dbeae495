//! Locks that live as long as a transaction of the caller's.

use tokio_postgres::Transaction;

use super::config::Config;
use crate::url::StoreUrl;
use crate::{Error, FencingToken, Name, Result};

/// Takes a lock inside the caller's own transaction, waiting for it, and returns its token. The lock ends with the transaction:
/// nothing has to be renewed or released, and it works through a pool in transaction mode.
///
/// It excludes, and is excluded by, all locks of the same name in the same database. The schema `fencepost` has to be there
/// (`fencepost init`). How long it waits is the transaction's `lock_timeout` or `statement_timeout`.
///
/// The token is a row that the transaction writes: a rollback takes it back, and only the server's clock keeps the next
/// token larger then. Write nothing with it outside of the transaction before that has committed.
///
/// # Errors
/// [`Config`](Error::Config) unless the transaction is READ COMMITTED: an older snapshot would not show what the last
/// holder has written. [`Unavailable`](Error::Unavailable) if a timeout ended the wait.
pub async fn lock_in_transaction(
    transaction: &Transaction<'_>,
    name: impl Into<String>,
) -> Result<FencingToken> {
    let name = Name::new(&name.into())?;
    match ask(transaction, "SELECT @schema@.lock_in_transaction($1)", &name).await? {
        Some(token) => Ok(token),
        None => Err(Error::Busy { name, holder: None }),
    }
}

/// The same without waiting: `None` if somebody else has the lock.
///
/// # Errors
/// As [`lock_in_transaction`].
pub async fn try_lock_in_transaction(
    transaction: &Transaction<'_>,
    name: impl Into<String>,
) -> Result<Option<FencingToken>> {
    let name = Name::new(&name.into())?;
    ask(transaction, "SELECT @schema@.try_lock_in_transaction($1)", &name).await
}

async fn ask(transaction: &Transaction<'_>, sql: &str, name: &Name) -> Result<Option<FencingToken>> {
    let config = Config::from_url(StoreUrl::parse("postgres://transaction")?)?;
    let text = name.as_str();
    let refused = |error: tokio_postgres::Error| match error.as_db_error() {
        Some(refusal) if refusal.code().code() == "FP002" => Error::config(format!(
            "{}; begin the transaction with ISOLATION LEVEL READ COMMITTED",
            refusal.message()
        )),
        _ => config.trouble(error),
    };
    // Typed, so that a pool in transaction mode sees nothing but this one statement.
    let types = [(&text as &(dyn tokio_postgres::types::ToSql + Sync), tokio_postgres::types::Type::TEXT)];
    let rows = transaction.query_typed(&config.sql(sql), &types).await.map_err(refused)?;
    let token: Option<i64> = rows.first().and_then(|row| row.get(0));
    Ok(token.and_then(|token| u64::try_from(token).ok()).and_then(FencingToken::new))
}
