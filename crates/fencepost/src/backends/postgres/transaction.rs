//! Locks that live as long as a transaction of the caller's.

use tokio_postgres::Transaction;
use tokio_postgres::types::{ToSql, Type};

use super::config::{Config, DEFAULT_SCHEMA};
use super::driver::get;
use super::record;
use crate::url::StoreUrl;
use crate::{Error, FencingToken, Name, Result};

/// The schema that transactions take their locks in, where it is not `fencepost`, or where tokens come
/// from a sequence. Say the same as the store's URL does: another schema is another space of names, and
/// excludes nobody of this one.
///
/// ```no_run
/// use fencepost::postgres::Schema;
///
/// # async fn example(transaction: &tokio_postgres::Transaction<'_>) -> fencepost::Result<()> {
/// // As `postgres://…?schema=app&sequence=app.fence`.
/// let schema = Schema::new("app")?.sequence("app.fence");
/// let token = schema.lock_in_transaction(transaction, "order:42").await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Schema {
    config: Config,
}

impl Schema {
    /// The schema of this name.
    ///
    /// # Errors
    /// [`Invalid`](Error::Invalid) if that is no name of a schema.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let mut config = Config::from_url(StoreUrl::parse("postgres://transaction")?)?;
        config.set_schema(name.into())?;
        Ok(Self { config })
    }

    /// Takes tokens from this sequence instead of the clock. Named with its schema, as in `app.fence`.
    #[must_use]
    pub fn sequence(mut self, name: impl Into<String>) -> Self {
        self.config.sequence = Some(name.into());
        self
    }

    /// As the function [`lock_in_transaction`].
    ///
    /// # Errors
    /// As that.
    pub async fn lock_in_transaction(
        &self,
        transaction: &Transaction<'_>,
        name: impl Into<String>,
    ) -> Result<FencingToken> {
        let name = Name::new(&name.into())?;
        match self.ask(transaction, "SELECT @schema@.lock_in_transaction($1, $2)", &name).await? {
            Some(token) => Ok(token),
            None => Err(Error::Busy { name, holder: None }),
        }
    }

    /// The same without waiting: `None` if somebody else has the lock.
    ///
    /// # Errors
    /// As [`lock_in_transaction`].
    pub async fn try_lock_in_transaction(
        &self,
        transaction: &Transaction<'_>,
        name: impl Into<String>,
    ) -> Result<Option<FencingToken>> {
        let name = Name::new(&name.into())?;
        self.ask(transaction, "SELECT @schema@.try_lock_in_transaction($1, $2)", &name).await
    }

    async fn ask(
        &self,
        transaction: &Transaction<'_>,
        sql: &str,
        name: &Name,
    ) -> Result<Option<FencingToken>> {
        let config = &self.config;
        let text = name.as_str();
        let refused = |error: tokio_postgres::Error| match error.as_db_error() {
            Some(refusal) if refusal.code().code() == "FP002" => Error::config(format!(
                "{}; begin the transaction with ISOLATION LEVEL READ COMMITTED",
                config.shown(refusal.message())
            )),
            _ => config.error(error),
        };
        // Typed, so that a pool in transaction mode sees nothing but this one statement.
        let arguments: [(&(dyn ToSql + Sync), Type); 2] =
            [(&text, Type::TEXT), (&config.sequence, Type::TEXT)];
        let rows = transaction.query_typed(&config.sql(sql), &arguments).await.map_err(refused)?;
        Ok(rows.first().and_then(|row| get(row, 0)).and_then(record::token))
    }
}

/// Takes a lock inside the caller's own transaction, waiting for it, and returns its token. The lock
/// ends with the transaction: nothing has to be renewed or released, and it works through a pool in
/// transaction mode.
///
/// It excludes, and is excluded by, all locks of the same name in the same database whose store's URL
/// names no schema: for others, and for tokens from a sequence, see [`Schema`]. The schema `fencepost`
/// has to be there (`fencepost init`). How long it waits is the transaction's `lock_timeout` or
/// `statement_timeout`.
///
/// Whose schema it is, is not looked at, which would take ten times as long as a lock. `fencepost init` and
/// [`Locks::connect`](crate::Locks::connect) do, and refuse a stranger's: where others may create
/// schemas in the database, run one of them first, or their functions are run.
///
/// The token is a row that the transaction writes: a rollback takes it back, and only the server's clock
/// keeps the next token larger then. Write nothing with it outside of the transaction before that has
/// committed.
///
/// # Errors
/// [`Config`](Error::Config) unless the transaction is READ COMMITTED: an older snapshot would not show
/// what the last holder has written. [`Unavailable`](Error::Unavailable) if a timeout ended the wait.
pub async fn lock_in_transaction(
    transaction: &Transaction<'_>,
    name: impl Into<String>,
) -> Result<FencingToken> {
    Schema::new(DEFAULT_SCHEMA)?.lock_in_transaction(transaction, name).await
}

/// The same without waiting: `None` if somebody else has the lock.
///
/// # Errors
/// As [`lock_in_transaction`].
pub async fn try_lock_in_transaction(
    transaction: &Transaction<'_>,
    name: impl Into<String>,
) -> Result<Option<FencingToken>> {
    Schema::new(DEFAULT_SCHEMA)?.try_lock_in_transaction(transaction, name).await
}
