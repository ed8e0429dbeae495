//! Transactions of the caller's that show a token before they read.

use std::ops::Deref;
use std::pin::pin;
use std::task::{Context, Waker};

use tokio_postgres::Client;

use super::{Result, translated};
use crate::FencingToken;
use crate::fence::named;

/// Begins a transaction that has shown its token, in one round trip. Until it ends no other gets past its own
/// call for this resource, and after it none with a smaller token.
///
/// A transaction that was rolled back has protected nothing; the next one shows its token again, and reads
/// again.
///
/// A holder that was stopped inside of its transaction keeps the others waiting: set
/// `idle_in_transaction_session_timeout` to bound that, and `lock_timeout` to bound the wait.
///
/// The isolation level is the session's (`SET SESSION CHARACTERISTICS AS TRANSACTION …`). All levels will do:
/// with REPEATABLE READ and SERIALIZABLE, a transaction whose snapshot is older than the last holder's is
/// refused by the server (`could not serialize access`), to be tried again.
///
/// Whose the schema `fencepost_fence` is, is not looked at: that would take ten times as long.
/// [`MIGRATION`](super::MIGRATION) looks, and refuses a stranger's: where others may create schemas in the
/// database, run it first, or their functions are run. The same goes for [`activate`] and [`activate_once`].
///
/// # Errors
/// [`Stale`](super::Error::Stale) if a larger token was seen. [`Failed`](super::Error::Failed) for everything
/// else, with [`Unavailable`](crate::Error::Unavailable) inside where it can be tried again. There is no
/// transaction then.
///
/// # Cancellation
/// If the future is dropped, so is the transaction.
pub async fn begin<'a>(
    client: &'a mut Client,
    resource: &str,
    token: FencingToken,
) -> Result<Transaction<'a>> {
    let shows = call("activate", resource, token)?;
    let transaction = Transaction { client, open: true };
    // One message of two statements: the second has a snapshot of its own and does not run if the first
    // fails.
    let begun = transaction.batch_execute(&format!("BEGIN; {shows}")).await;
    begun.map_err(|error| translated("postgres", None, error))?;
    Ok(transaction)
}

/// A transaction that has shown its token; see [`begin`]. It runs statements as the [`Client`] that it is
/// made of. Rolled back if it is dropped.
#[derive(Debug)]
#[must_use = "a transaction is rolled back if it is dropped"]
pub struct Transaction<'a> {
    client: &'a mut Client,
    open: bool,
}

impl Transaction<'_> {
    /// Makes what was written count.
    ///
    /// # Errors
    /// What the driver says. If the connection has ended, it may have been committed or not.
    pub async fn commit(mut self) -> std::result::Result<(), tokio_postgres::Error> {
        self.open = false;
        self.client.batch_execute("COMMIT").await
    }

    /// Undoes what was written, and takes the token back. As dropping it, with an answer.
    ///
    /// # Errors
    /// What the driver says.
    pub async fn rollback(mut self) -> std::result::Result<(), tokio_postgres::Error> {
        self.open = false;
        self.client.batch_execute("ROLLBACK").await
    }
}

impl Deref for Transaction<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if self.open {
            // The first poll sends it, before whatever the client is used for next. Nobody waits for the
            // answer.
            let rollback = pin!(self.client.batch_execute("ROLLBACK"));
            let _ = rollback.poll(&mut Context::from_waker(Waker::noop()));
        }
    }
}

/// Records a token in a transaction of the driver's own: the first statement in it, before it reads. Promises
/// what [`begin`] does, and takes a round trip more.
///
/// A rollback takes the token back. So does a rollback to a savepoint that was set before the call, while the
/// transaction goes on: call it outside of all savepoints.
///
/// # Errors
/// [`Stale`](super::Error::Stale) if a larger token was seen: roll back. [`Failed`](super::Error::Failed) for
/// everything else, with [`Unavailable`](crate::Error::Unavailable) inside where it can be tried again.
pub async fn activate(
    transaction: &tokio_postgres::Transaction<'_>,
    resource: &str,
    token: FencingToken,
) -> Result<()> {
    present(transaction, "activate", resource, token).await
}

/// The same for an effect that must happen once a token: refused if this token was seen before.
///
/// # Errors
/// As [`activate`].
pub async fn activate_once(
    transaction: &tokio_postgres::Transaction<'_>,
    resource: &str,
    token: FencingToken,
) -> Result<()> {
    present(transaction, "activate_once", resource, token).await
}

async fn present(
    transaction: &tokio_postgres::Transaction<'_>,
    function: &str,
    resource: &str,
    token: FencingToken,
) -> Result<()> {
    let shown = transaction.batch_execute(&call(function, resource, token)?).await;
    shown.map_err(|error| translated("postgres", None, error))
}

/// A call as one plain message: a little cheaper than one with parameters, and nothing that a pool in
/// transaction mode would have to remember.
fn call(function: &str, resource: &str, token: FencingToken) -> Result<String> {
    let resource = named(resource)?;
    // Escaped, so that it does not matter what the session takes a backslash for.
    let text = resource.as_str().replace('\\', r"\\").replace('\'', "''");
    Ok(format!("SELECT fencepost_fence.{function}(E'{text}', {token})"))
}
