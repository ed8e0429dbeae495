//! Transactions of the caller's that show a token before they read.

use std::future::poll_fn;
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use tokio_postgres::Client;

use super::{Result, trouble};
use crate::FencingToken;
use crate::fence::named;

/// Begins a transaction that has shown its token, in one round trip. Until it ends no other gets past its own call for this resource,
/// and after it none with a smaller token.
///
/// A transaction that was rolled back has protected nothing; the next one shows its token again, and reads again.
///
/// A holder that was stopped inside of its transaction keeps the others waiting: set `idle_in_transaction_session_timeout` to bound
/// that, and `lock_timeout` to bound the wait.
///
/// For another isolation level, or savepoints, begin it yourself and call [`activate_with`].
///
/// Whose the schema `fencepost_fence` is, is not looked at, which would take ten times as long.
/// [`MIGRATION`](super::MIGRATION) does, and refuses a stranger's: where others may create schemas in the
/// database, run it first, or their functions are run. The same goes for [`activate`] and its kin.
///
/// # Errors
/// [`Stale`](super::Error::Stale) if a larger token was seen. [`Failed`](super::Error::Failed) for everything else, with
/// [`Unavailable`](crate::Error::Unavailable) inside where it can be tried again. There is no transaction then.
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
    // One message of two statements, of which the second has a snapshot of its own and does not run if the first one fails.
    let begun = transaction.batch_execute(&format!("BEGIN; {shows}")).await;
    begun.map_err(|error| trouble("postgres", error))?;
    Ok(transaction)
}

/// A transaction that has shown its token; see [`begin`]. It runs statements as the [`Client`] that it is made of. Rolled back if it is
/// dropped.
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
            // The first poll sends it, before whatever the client is used for next. Nobody waits for the answer.
            let rollback = pin!(self.client.batch_execute("ROLLBACK"));
            let _ = rollback.poll(&mut Context::from_waker(Waker::noop()));
        }
    }
}

/// Records a token in the caller's own transaction: the first statement in it, before it reads. Until the transaction ends no other gets past
/// its own call for this resource, and after it none with a smaller token. It is a round trip of its own, which [`begin`] and
/// [`activate_with`] save.
///
/// A rollback takes the token back, so a transaction that was rolled back has protected nothing; the next one activates again, and reads
/// again. So does a rollback to a savepoint that was set before the call, while the transaction goes on: call it outside of
/// all savepoints. All isolation levels will do: with REPEATABLE READ and SERIALIZABLE, a transaction whose snapshot is older than the last holder's
/// is refused by the server (`could not serialize access`), to be tried again.
///
/// A holder that was stopped inside of its transaction keeps the row locked: set `idle_in_transaction_session_timeout` to bound
/// that, and `lock_timeout` to bound the wait.
///
/// # Errors
/// [`Stale`](super::Error::Stale) if a larger token was seen: roll back. [`Failed`](super::Error::Failed) for everything else, with
/// [`Unavailable`](crate::Error::Unavailable) inside where the transaction can be tried again.
pub async fn activate(
    transaction: &tokio_postgres::Transaction<'_>,
    resource: &str,
    token: FencingToken,
) -> Result<()> {
    present(transaction, "activate", resource, token, async {}).await
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
    present(transaction, "activate_once", resource, token, async {}).await
}

/// [`activate`] together with what the transaction does first, in one round trip: both are sent at once, the token before the rest.
///
/// `first` is anything that uses this transaction and that was not polled before. It runs until it waits for its first answer, which
/// is when its statement has been sent. It goes on only if the token was good; otherwise it is dropped, and the server has not run its
/// statement, since a refusal aborts the transaction. To join the two by hand is not the same: `join!` may send the read first, and then it
/// has seen what was true before the token counted.
///
/// Prepare the statement before the transaction. Otherwise it is prepared here, and run in another round trip.
///
/// ```no_run
/// use fencepost::fence::postgres;
///
/// # async fn example(client: &mut tokio_postgres::Client, guard: &fencepost::Guard) -> Result<(), Box<dyn std::error::Error>> {
/// let read = client.prepare("SELECT balance FROM account WHERE id = $1").await?;      // once a connection
///
/// let transaction = client.transaction().await?;
/// let balance = transaction.query_one(&read, &[&7]);
/// let row = postgres::activate_with(&transaction, "account:7", guard.token(), balance).await??;
/// let balance: i64 = row.get(0);
/// transaction.execute("UPDATE account SET balance = $1 WHERE id = 7", &[&(balance + 1)]).await?;
/// transaction.commit().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// As [`activate`], and what `first` said is lost then. Errors of its own are in what it returns.
///
/// # Cancellation
/// What was sent is carried out by the server inside of the transaction, and nobody hears of it: roll back.
pub async fn activate_with<T>(
    transaction: &tokio_postgres::Transaction<'_>,
    resource: &str,
    token: FencingToken,
    first: impl Future<Output = T>,
) -> Result<T> {
    present(transaction, "activate", resource, token, first).await
}

/// The same for an effect that must happen once a token: refused if this token was seen before.
///
/// # Errors
/// As [`activate_with`].
pub async fn activate_once_with<T>(
    transaction: &tokio_postgres::Transaction<'_>,
    resource: &str,
    token: FencingToken,
    first: impl Future<Output = T>,
) -> Result<T> {
    present(transaction, "activate_once", resource, token, first).await
}

async fn present<T>(
    transaction: &tokio_postgres::Transaction<'_>,
    function: &str,
    resource: &str,
    token: FencingToken,
    first: impl Future<Output = T>,
) -> Result<T> {
    let shows = call(function, resource, token)?;
    let shown = async { transaction.batch_execute(&shows).await.map_err(|error| trouble("postgres", error)) };
    let (mut shown, mut first) = (pin!(shown), pin!(first));
    // One poll of a plain message puts the whole of it in the line of what the connection writes, so `first` is behind it there.
    if let Poll::Ready(answer) = poll_once(shown.as_mut()).await {
        answer?;
        return Ok(first.await);
    }
    let begun = poll_once(first.as_mut()).await;
    // From here `first` stands still until the token is known to be good.
    shown.await?;
    match begun {
        Poll::Ready(value) => Ok(value),
        Poll::Pending => Ok(first.await),
    }
}

async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
}

/// A call as one plain message: a little cheaper than one with parameters, and nothing that a pool in transaction mode would have to remember.
fn call(function: &str, resource: &str, token: FencingToken) -> Result<String> {
    let resource = named(resource)?;
    // Escaped, so that it does not matter what the session takes a backslash for.
    let text = resource.as_str().replace('\\', r"\\").replace('\'', "''");
    Ok(format!("SELECT fencepost_fence.{function}(E'{text}', {token})"))
}
