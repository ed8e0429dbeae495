//! What the server's errors mean to a caller.

use std::fmt;

use tokio_postgres::error::{DbError, SqlState};

use super::config::Config;
use super::login::Refusal;
use crate::Error;

impl Config {
    pub(crate) fn unavailable(&self, source: impl Into<crate::Source>) -> Error {
        Error::Unavailable { store: self.label.clone(), source: source.into() }
    }

    /// Translates an error of the driver.
    pub(crate) fn trouble(&self, error: tokio_postgres::Error) -> Error {
        let Some(refusal) = error.as_db_error() else {
            return match reason(&error) {
                Some(why) => Error::config(format!("{}: {why}", self.label)),
                None => self.unavailable(self.explained(self.shown(&chain(&error)), error)),
            };
        };
        let (code, what) = (refusal.code().clone(), self.said(refusal));
        match code {
            SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
                Error::config(format!("{} refuses the user or the password: {what}", self.label))
            }
            SqlState::INSUFFICIENT_PRIVILEGE => self.missing_right(&what),
            SqlState::INVALID_CATALOG_NAME
            | SqlState::READ_ONLY_SQL_TRANSACTION
            | SqlState::UNDEFINED_TABLE => Error::config(format!("{}: {what}", self.label)),
            ref code if code.code() == "FP001" => Error::config(format!(
                "{}: {what}: something in between shares connections; {FIX}",
                self.label
            )),
            ref code if code.code() == "FP020" => {
                let hint = self.shown(refusal.hint().unwrap_or_default());
                Error::config(format!("{}: {what}; {hint}", self.label))
            }
            ref code if is_passing(code) => self.unavailable(self.explained(what, error)),
            _ => Error::Backend { store: self.label.clone(), source: self.explained(what, error) },
        }
    }

    /// The server's words, without the password.
    pub(crate) fn said(&self, refusal: &DbError) -> String {
        self.shown(&match refusal.detail() {
            Some(detail) => format!("{} ({detail})", refusal.message()),
            None => refusal.message().to_owned(),
        })
    }

    /// Text of a server, without the password and not longer than anybody reads.
    pub(crate) fn shown(&self, text: &str) -> String {
        match self.known_password() {
            Some(password) => cut(&text.replace(&password, "(hidden)")),
            None => cut(text),
        }
    }

    /// The password, if a server may have been sent it, and may repeat it then.
    fn known_password(&self) -> Option<String> {
        let password = self.server.get_password().filter(|_| self.cleartext)?;
        Some(String::from_utf8_lossy(password).into_owned()).filter(|password| !password.is_empty())
    }

    /// An error of the driver as a source, unless it repeats the password or has no end.
    pub(crate) fn explained(&self, words: String, source: tokio_postgres::Error) -> crate::Source {
        let text = format!("{source:?}");
        let repeats = self.known_password().is_some_and(|password| text.contains(&password));
        Box::new(Explained { words, source: Some(source).filter(|_| !repeats && text.len() <= MAX_SOURCE) })
    }

    /// Says which SQL gives the right that is missing.
    fn missing_right(&self, what: &str) -> Error {
        let user = quoted(self.server.get_user().unwrap_or("…"));
        let schema = quoted(&self.schema);
        let sql = if what.contains("must be owner") {
            return Error::config(format!(
                "{}: {what}; run `fencepost init` as the owner of {schema}",
                self.label
            ));
        } else if what.contains("database") {
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

/// An error of the driver, which says `db error` itself, in words.
#[derive(Debug)]
struct Explained {
    words: String,
    source: Option<tokio_postgres::Error>,
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for Explained {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

/// The most that is repeated of what a server says, in bytes.
const MAX_TEXT: usize = 1024;

/// The longest error of the driver that is kept as a source, as it is shown for debugging.
const MAX_SOURCE: usize = 1536;

/// The beginning of a text.
pub(crate) fn cut(text: &str) -> String {
    if text.len() <= MAX_TEXT {
        return text.to_owned();
    }
    let end = (0..=MAX_TEXT).rfind(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}…", &text[..end])
}

/// A name as SQL writes it.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The server is busy, starting or going down.
fn is_passing(code: &SqlState) -> bool {
    ["08", "53", "57"].iter().any(|class| code.code().starts_with(class))
        || *code == SqlState::LOCK_NOT_AVAILABLE
}

/// A right or a thing is missing: trying again does not help.
pub(super) fn is_denied(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| code.code().starts_with("42"))
}

/// Somebody else has locked the row.
pub(super) fn is_locked(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE)
}

/// Why we do not talk to this server, if that is what an error is about.
pub(super) fn reason(error: &tokio_postgres::Error) -> Option<String> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        // The error inside of one of I/O is not its source.
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if let Some(refusal) = inner.and_then(|inner| inner.downcast_ref::<Refusal>()) {
            return Some(refusal.to_string());
        }
        if let Some(error) = error.downcast_ref::<Error>() {
            return Some(error.to_string());
        }
        #[cfg(feature = "tls")]
        if let Some(error) = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            return Some(format!("TLS with this server fails: {error}"));
        }
        next = error.source();
    }
    None
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
