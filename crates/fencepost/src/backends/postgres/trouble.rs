//! What the server's errors mean to a caller.

use tokio_postgres::error::{DbError, SqlState};

use super::config::Config;
use crate::Error;

impl Config {
    pub(crate) fn unavailable(&self, source: impl Into<crate::Source>) -> Error {
        Error::Unavailable { store: self.label.clone(), source: source.into() }
    }

    /// Translates an error of the driver. The driver's errors never hold a password.
    pub(crate) fn trouble(&self, error: tokio_postgres::Error) -> Error {
        let Some(refusal) = error.as_db_error() else {
            return if is_tls(&error) {
                Error::config(format!("{}: {}", self.label, chain(&error)))
            } else {
                self.unavailable(chain(&error))
            };
        };
        match *refusal.code() {
            SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => Error::config(
                format!("{} refuses the user or the password: {}", self.label, refusal.message()),
            ),
            SqlState::INSUFFICIENT_PRIVILEGE => self.missing_right(refusal),
            SqlState::INVALID_CATALOG_NAME
            | SqlState::READ_ONLY_SQL_TRANSACTION
            | SqlState::UNDEFINED_TABLE => Error::config(format!("{}: {}", self.label, refusal.message())),
            ref code if code.code() == "FP001" => Error::config(format!(
                "{}: {}: something in between shares connections; {FIX}",
                self.label,
                refusal.message()
            )),
            ref code if is_passing(code) => self.unavailable(refusal.message().to_owned()),
            _ => Error::Backend { store: self.label.clone(), source: Box::new(error) },
        }
    }

    /// Says which SQL gives the right that is missing.
    fn missing_right(&self, refusal: &DbError) -> Error {
        let user = quoted(self.server.get_user().unwrap_or("…"));
        let schema = quoted(&self.schema);
        let what = refusal.message();
        let sql = if what.contains("database") {
            format!("CREATE SCHEMA {schema} AUTHORIZATION {user};")
        } else if let Some(sequence) = self.sequence.as_ref().filter(|_| what.contains("sequence")) {
            format!("GRANT USAGE ON SEQUENCE {sequence} TO {user};")
        } else {
            format!(
                "GRANT USAGE ON SCHEMA {schema} TO {user}; \
                 GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {user};"
            )
        };
        Error::config(format!("{}: {what}; run as its owner or a superuser: {sql}", self.label))
    }
}

/// What to do about a pooler.
pub(super) const FIX: &str = "connect to PostgreSQL itself or through a pool in session mode; only transaction-level locks \
                              (`fencepost::postgres::lock_in_transaction`) work through a transaction pool";

/// A name as SQL writes it.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The server is busy, starting or going down.
fn is_passing(code: &SqlState) -> bool {
    matches!(&code.code()[..2], "08" | "53" | "57") || *code == SqlState::LOCK_NOT_AVAILABLE
}

/// A right or a thing is missing: trying again does not help.
pub(super) fn is_denied(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| code.code().starts_with("42"))
}

fn is_tls(error: &tokio_postgres::Error) -> bool {
    let text = chain(error);
    text.contains("certificate") || text.contains("TLS")
}

/// An error with all that caused it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        source = inner.source();
    }
    text
}
