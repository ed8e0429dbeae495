//! Resources in PostgreSQL: your own tables, behind a token that is checked in your own transaction.
//!
//! [`MIGRATION`] makes the schema `fencepost_fence` (`fence.sql` in the repository). It is for clients in any
//! language, and has a trigger that refuses stale writes from all of them.
//!
//! ```no_run
//! use fencepost::fence::postgres;
//!
//! # async fn example(client: &mut tokio_postgres::Client, guard: &fencepost::Guard)
//! #     -> Result<(), Box<dyn std::error::Error>> {
//! client.batch_execute(postgres::MIGRATION).await?;                                // once
//!
//! let transaction = postgres::begin(client, "account:7", guard.token()).await?;    // refused if it is stale
//! let row = transaction.query_one("SELECT balance FROM account WHERE id = 7", &[]).await?;
//! let balance: i64 = row.get(0);
//! transaction.execute("UPDATE account SET balance = $1 WHERE id = 7", &[&(balance + 1)]).await?;
//! transaction.commit().await?;
//! # Ok(()) }
//! ```

mod transaction;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::error::{DbError, Severity, SqlState};
use tokio_postgres::types::{ToSql, Type};

pub use self::transaction::{Transaction, activate, activate_once, begin};

use super::{Backend, Error, Result, StaleToken};
use crate::backends::postgres::config::Config;
use crate::backends::postgres::driver::errors::cut;
use crate::backends::postgres::driver::{Connection, set_up};
use crate::runtime::clock::Clock;
use crate::runtime::keeper::Keeper;
use crate::url::StoreUrl;
use crate::{FencingToken, Name};

/// The SQL that makes the schema `fencepost_fence`: a table of tokens, functions, and a trigger for tables of
/// yours. Running it again changes nothing.
pub const MIGRATION: &str = include_str!("../fence.sql");

const STALE: &str = "FP010";
const VERSION: &str = "1";
/// The largest token that there is.
const LARGEST: u64 = (1 << 53) - 1;
/// How long making the schema may take.
const MIGRATING: Duration = Duration::from_secs(30);

/// The refusal that an error of the driver stands for: of [`activate`], of the functions in the schema, or of
/// the trigger on a table of yours.
pub fn stale_token(error: &tokio_postgres::Error) -> Option<StaleToken> {
    #[derive(Deserialize)]
    struct Detail {
        resource: String,
        presented: FencingToken,
        highest: u64,
    }
    let refusal = error.as_db_error().filter(|refusal| refusal.code().code() == STALE)?;
    let detail: Detail = serde_json::from_str(refusal.detail()?).ok()?;
    // A row may have been given more than a token can be before a constraint saw to it. That is a refusal,
    // too.
    let highest = FencingToken::new(detail.highest.min(LARGEST))?;
    Some(StaleToken::new(detail.resource, detail.presented, highest))
}

/// What an error of the driver means. With `config` it came on a connection of our own, whose password is
/// never shown; the caller's password is not ours to know.
fn translated(store: &str, config: Option<&Config>, error: tokio_postgres::Error) -> Error {
    let shown = |text: &str| config.map_or_else(|| cut(text), |config| config.shown(text));
    if let Some(refusal) = stale_token(&error) {
        return refusal.into();
    }
    let Some(code) = error.code().filter(|_| !ends_the_session(&error)).cloned() else {
        let source = match config {
            Some(config) => config.explained(shown(&error.to_string()), error),
            None => Box::new(error),
        };
        return crate::Error::unavailable(store, source).into();
    };
    let message = error.as_db_error().map(|refusal| shown(refusal.message())).unwrap_or_default();
    Error::Failed(match code {
        SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED => {
            crate::Error::unavailable(store, format!("{message}; try the transaction again"))
        }
        SqlState::LOCK_NOT_AVAILABLE => {
            let why = format!("{message}: a transaction of another holder has not ended");
            crate::Error::unavailable(store, why)
        }
        SqlState::INVALID_SCHEMA_NAME | SqlState::UNDEFINED_FUNCTION => crate::Error::config(format!(
            "{store}: {message}; run `fence.sql` (`fencepost::fence::postgres::MIGRATION`) in this database"
        )),
        SqlState::INSUFFICIENT_PRIVILEGE => crate::Error::config(format!(
            "{store}: {message}; run as its owner: GRANT USAGE ON SCHEMA fencepost_fence TO …"
        )),
        SqlState::INVALID_PARAMETER_VALUE => crate::Error::invalid(message),
        _ => crate::Error::backend(store, message),
    })
}

/// Whether the session is gone, and with it the transaction that was open: the server was stopped, say, or
/// has waited too long for a holder.
fn ends_the_session(error: &tokio_postgres::Error) -> bool {
    let severity = error.as_db_error().and_then(DbError::parsed_severity);
    matches!(severity, Some(Severity::Fatal | Severity::Panic))
}

/// Whether the server said no before it could have committed.
fn was_refused(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|refusal| {
        let code = refusal.code().code();
        !code.starts_with("08") && !code.starts_with("57P")
    })
}

/// Values in the schema's own table, over one connection that is driven on the keeper's runtime.
#[derive(Debug)]
pub(super) struct Postgres {
    config: Config,
    keeper: Arc<Keeper>,
    wire: Mutex<Option<Arc<Connection>>>,
}

impl Postgres {
    pub(super) async fn connect(url: StoreUrl) -> Result<Self> {
        let config = Config::for_resources(url)?;
        let keeper = Keeper::of(&Clock::system())?;
        let postgres = Self { config, keeper, wire: Mutex::default() };
        let wire = postgres.wire().await?;
        match postgres.within(postgres.config.timeout, postgres.find(&wire)).await?? {
            None => postgres.migrate(&wire).await?,
            Some((version, _)) if version != VERSION => {
                return Err(crate::Error::config(format!(
                    "{}: the schema `fencepost_fence` is of layout {version}, and this program knows layout \
                     {VERSION}; use one version of fencepost for all clients",
                    postgres.config.label
                ))
                .into());
            }
            Some((_, true)) => {}
            // Its functions do the same, but for what only its owner calls; and only its owner can replace
            // them.
            Some((_, false)) => {
                if let Err(error) = postgres.migrate(&wire).await {
                    tracing::warn!(%error, "an earlier fence.sql was run here; run it again");
                }
            }
        }
        Ok(postgres)
    }

    /// The version of the schema, if it is there, and whether it is of this `fence.sql` and not an earlier
    /// one, in which `protect` did not lock the table before it looked at it.
    async fn find(&self, wire: &Connection) -> Result<Option<(String, bool)>> {
        if !self.config.can_trust(&wire.client, "fencepost_fence").await? {
            return Ok(None);
        }
        let sql = "SELECT fencepost_fence.version(), (SELECT prosrc LIKE '%LOCK TABLE%' FROM pg_proc \
                   WHERE oid = to_regprocedure('fencepost_fence.protect(regclass, name, name)'))";
        // By the simple protocol, whose answers are text whatever the function returns.
        let Ok(answer) = wire.client.simple_query(sql).await else { return Ok(None) };
        let row = answer.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let column = |number| row?.try_get(number).ok().flatten();
        Ok(column(0).map(|version| (version.to_owned(), column(1) == Some("t"))))
    }

    async fn within<T>(&self, limit: Duration, future: impl Future<Output = T>) -> Result<T> {
        let done = tokio::time::timeout(limit, future).await;
        done.map_err(|_| {
            self.config.unavailable(format!("no answer within {}", crate::format_duration(limit))).into()
        })
    }

    /// Makes the schema. Several may find it missing at once.
    async fn migrate(&self, wire: &Connection) -> Result<()> {
        let script = format!(
            "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('fencepost_fence', 0));\n\
             {MIGRATION}\nCOMMIT"
        );
        let Err(error) = self.within(MIGRATING, wire.client.batch_execute(&script)).await? else {
            return Ok(());
        };
        self.within(self.config.timeout, wire.client.batch_execute("ROLLBACK")).await?.ok();
        let said = match error.as_db_error() {
            Some(refusal) => self.config.said(refusal),
            None => error.to_string(),
        };
        Err(crate::Error::config(format!(
            "{}: the schema `fencepost_fence` cannot be made or used: {said}; let somebody who may run \
             `fence.sql` (`fencepost::fence::postgres::MIGRATION`) and GRANT USAGE ON SCHEMA fencepost_fence",
            self.config.label
        ))
        .into())
    }

    /// The connection, opened if need be.
    async fn wire(&self) -> Result<Arc<Connection>> {
        let connect = async {
            let mut current = self.wire.lock().await;
            if let Some(wire) = current.as_ref().filter(|wire| wire.is_usable()) {
                return Ok(wire.clone());
            }
            let (config, keeper) = (self.config.clone(), self.keeper.clone());
            let open = async move {
                let wire = Connection::open(&config, &keeper, |_| {}).await?;
                set_up(&config, &wire.client, config.timeout).await?;
                Ok::<_, crate::Error>(wire)
            };
            let opened = self.keeper.carry_out(open).await;
            let opened = opened.ok_or_else(|| self.config.unavailable("connecting was given up"))??;
            Ok(current.insert(Arc::new(opened)).clone())
        };
        self.within(self.config.timeout, connect).await?
    }

    /// Calls a function of the schema. The inner error says why no answer came.
    async fn call(
        &self,
        sql: &str,
        arguments: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Result<Option<Vec<u8>>, String>> {
        let wire = self.wire().await?;
        // The server's own limit of a wait for a row is one timeout: the server is to say so first.
        let limit = self.config.timeout * 2;
        match tokio::time::timeout(limit, wire.client.query_typed(sql, arguments)).await {
            Ok(Ok(rows)) => Ok(Ok(rows.first().and_then(|row| row.try_get(0).ok()).flatten())),
            Ok(Err(error)) if was_refused(&error) => {
                Err(translated(&self.config.label, Some(&self.config), error))
            }
            Ok(Err(error)) => Ok(Err(error.to_string())),
            Err(_) => {
                wire.close();
                Ok(Err(format!("no answer within {}", crate::format_duration(limit))))
            }
        }
    }

    async fn put(&self, sql: &str, resource: &Name, token: FencingToken, value: &[u8]) -> Result<()> {
        let arguments: [(&(dyn ToSql + Sync), Type); 3] =
            [(&resource.as_str(), Type::TEXT), (&token, Type::INT8), (&value, Type::BYTEA)];
        self.call(sql, &arguments).await?.map(drop).map_err(|why| Error::uncertain(resource, why))
    }
}

#[async_trait]
impl Backend for Postgres {
    async fn activate(&self, resource: &Name, token: FencingToken) -> Result<Option<Vec<u8>>> {
        let arguments: [(&(dyn ToSql + Sync), Type); 2] =
            [(&resource.as_str(), Type::TEXT), (&token, Type::INT8)];
        let activate = || self.call("SELECT fencepost_fence.activate($1, $2)", &arguments);
        match activate().await? {
            Ok(value) => Ok(value),
            // To record a token twice does no harm.
            Err(_) => activate().await?.map_err(|why| self.config.unavailable(why).into()),
        }
    }

    async fn write(&self, resource: &Name, token: FencingToken, value: &[u8]) -> Result<()> {
        self.put("SELECT fencepost_fence.write($1, $2, $3)", resource, token, value).await
    }

    async fn write_once(&self, resource: &Name, token: FencingToken, value: &[u8]) -> Result<()> {
        self.put("SELECT fencepost_fence.write_once($1, $2, $3)", resource, token, value).await
    }
}
