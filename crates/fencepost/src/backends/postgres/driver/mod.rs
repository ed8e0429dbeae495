//! Connections to a PostgreSQL server: how they begin, what drives them, how much a server may send, and
//! what its errors mean. Nothing here knows a lock.

mod connection;
pub(crate) mod errors;
mod login;
mod setup;
#[cfg(feature = "tls")]
mod tls;

pub(crate) use self::connection::{Connection, Event};
pub(super) use self::setup::refuse_pools;
pub(crate) use self::setup::{ServerProcess, set_up};

use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

/// A column. `None` if it is null or not of the expected type: a server may answer anything.
pub(super) fn get<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Option<T> {
    row.try_get::<_, Option<T>>(column).ok().flatten()
}

/// A name as SQL writes it.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
