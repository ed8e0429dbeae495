//! What a fresh connection is checked for, and the settings that it is given.

use std::time::Duration;

use tokio_postgres::{Client, SimpleQueryMessage};

use super::get;
use crate::backends::postgres::config::{Config, KEEPALIVE, NO_POOL, USER_TIMEOUT};
use crate::{Error, Result};

/// The server process that serves a connection.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    pub(crate) pid: i32,
    /// Names the process for good: pids repeat.
    pub(crate) id: String,
    /// The `synchronous_commit` of what has to outlive the connection.
    pub(crate) commit: String,
    /// The size of the lock table that all connections of the server share.
    pub(crate) lock_table: usize,
}

const BACKEND: &str = "\
    SELECT pg_backend_pid(), format('%s %s', pid, extract(epoch FROM backend_start)), pg_is_in_recovery(),
           (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'),
           current_setting('max_locks_per_transaction')::bigint
           * (current_setting('max_connections')::bigint + \
           current_setting('max_prepared_transactions')::bigint)
    FROM pg_stat_activity WHERE pid = pg_backend_pid()";

/// Sets what we rely on, whatever the server's defaults are, and leaves out what this server does not know.
/// `row_wait` is how long to wait for a row that somebody has locked.
pub(crate) async fn set_up(config: &Config, client: &Client, row_wait: Duration) -> Result<ServerProcess> {
    let failed = |error| config.error(error);
    // First of all: functions that others create in other schemas must not be run by us. Temporary
    // tables come last.
    client.batch_execute("SET search_path = pg_catalog, pg_temp").await.map_err(failed)?;
    let (idle, interval) = (KEEPALIVE.as_secs().to_string(), (KEEPALIVE / 2).as_secs().to_string());
    let (row_wait, user_timeout) = (row_wait.as_millis().to_string(), USER_TIMEOUT.as_millis().to_string());
    let settings = [
        ("default_transaction_isolation", "read committed"),
        ("default_transaction_read_only", "off"),
        ("statement_timeout", "0"),
        ("transaction_timeout", "0"),
        ("idle_session_timeout", "0"),
        ("idle_in_transaction_session_timeout", "0"),
        ("lock_timeout", &row_wait),
        ("tcp_keepalives_idle", &idle),
        ("tcp_keepalives_interval", &interval),
        ("tcp_keepalives_count", "2"),
        ("tcp_user_timeout", &user_timeout),
        ("plan_cache_mode", "force_generic_plan"),
        ("jit", "off"),
        // `on` only replaces `off`: a server that waits for its standbys goes on doing so.
        ("synchronous_commit", if config.durable { "on" } else { "off" }),
    ];
    let (names, values): (Vec<&str>, Vec<&str>) = settings.into_iter().unzip();
    let set = "SELECT set_config(v.name, v.value, false) FROM unnest($1::text[], $2::text[]) v (name, value) \
               JOIN pg_settings s ON s.name = v.name \
               WHERE v.name <> 'synchronous_commit' OR v.value = 'off' OR s.setting = 'off'";
    client.query(set, &[&names, &values]).await.map_err(failed)?;
    let row = client.query_one(BACKEND, &[]).await.map_err(failed)?;
    if get(&row, 2).unwrap_or(false) {
        let label = &config.label;
        return Err(Error::config(format!("{label} is a standby, which takes no writes; name the primary")));
    }
    let (Some(pid), Some(id)) = (get(&row, 0), get(&row, 1)) else {
        return Err(config.unavailable("it does not say which backend serves us"));
    };
    let commit = get::<String>(&row, 3).filter(|value| value != "off").unwrap_or_else(|| "on".to_owned());
    let lock_table = get(&row, 4).and_then(|size: i64| usize::try_from(size).ok()).unwrap_or(0);
    Ok(ServerProcess { pid, id, commit, lock_table })
}

/// Which backend serves a connection now. By the simple protocol: a pool would give the two halves of a
/// prepared statement to two backends.
async fn backend_pid(client: &Client) -> Result<Option<String>, tokio_postgres::Error> {
    let messages = client.simple_query("SELECT pg_catalog.pg_backend_pid()").await?;
    Ok(messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.try_get(0).ok().flatten().map(str::to_owned),
        _ => None,
    }))
}

/// Refuses a pool that gives the backend of one connection to others. The same backend twice would prove
/// nothing: a pool usually gives the one that it gave last. But a second connection with an open
/// transaction either gets the backend of the first, or drives the first to another one.
pub(in crate::backends::postgres) async fn refuse_pools(
    config: &Config,
    first: &Client,
    second: &Client,
) -> Result<()> {
    let failed = |error| config.error(error);
    let pooled = |how: &str| Error::config(format!("{} is a pool that {how}; {NO_POOL}", config.label));
    let own = backend_pid(first).await.map_err(failed)?;
    second.simple_query("BEGIN").await.map_err(|_| pooled("knows no transactions and keeps no session"))?;
    for _ in 0..3 {
        let other = backend_pid(second).await.map_err(failed)?;
        if other == own || backend_pid(first).await.map_err(failed)? != own {
            return Err(pooled("shares connections between clients and keeps no session"));
        }
    }
    second.simple_query("COMMIT").await.map(drop).map_err(failed)
}
