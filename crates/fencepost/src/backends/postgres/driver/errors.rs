//! What errors of the server and of the crate mean to a caller.

use std::fmt;

use tokio_postgres::error::{DbError, SqlState};

use super::login::Refusal;
use super::quoted;
use crate::Error;
use crate::backends::postgres::config::{Config, NO_POOL};

/// How much of a server's words is repeated, in bytes.
const MAX_TEXT: usize = 1024;

/// The longest error of the crate that is kept as a source, as `Debug` shows it.
const MAX_SOURCE: usize = 1536;

impl Config {
    pub(crate) fn unavailable(&self, source: impl Into<crate::Source>) -> Error {
        Error::Unavailable { store: self.label.clone(), source: source.into() }
    }

    /// The server answered something that makes no sense.
    pub(crate) fn broken(&self, source: impl Into<crate::Source>) -> Error {
        Error::Backend { store: self.label.clone(), source: source.into() }
    }

    /// Translates an error of the crate.
    pub(crate) fn error(&self, error: tokio_postgres::Error) -> Error {
        let Some(refusal) = error.as_db_error() else {
            return match reason(&error) {
                Some(why) => Error::config(format!("{}: {why}", self.label)),
                // The crate has no other word for it.
                None if chain(&error).contains("password missing") => Error::config(format!(
                    "{}: the server asks for a password; give it in the URL, in PGPASSWORD or in `~/.pgpass`",
                    self.label
                )),
                None => self.unavailable(self.explained(self.shown(&chain(&error)), error)),
            };
        };
        let (label, code, what) = (&self.label, refusal.code().clone(), self.said(refusal));
        match code {
            SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
                Error::config(format!("{label} refuses the user or the password: {what}"))
            }
            SqlState::INSUFFICIENT_PRIVILEGE => self.missing_right(&what),
            SqlState::INVALID_CATALOG_NAME
            | SqlState::READ_ONLY_SQL_TRANSACTION
            | SqlState::UNDEFINED_TABLE => Error::config(format!("{label}: {what}")),
            ref code if code.code() == "FP001" => {
                Error::config(format!("{label}: {what}: something in between shares connections; {NO_POOL}"))
            }
            ref code if code.code() == "FP020" => {
                let hint = self.shown(refusal.hint().unwrap_or_default());
                Error::config(format!("{label}: {what}; {hint}"))
            }
            ref code if is_passing(code) => self.unavailable(self.explained(what, error)),
            _ => self.broken(self.explained(what, error)),
        }
    }

    /// The server's words, without the password.
    pub(crate) fn said(&self, refusal: &DbError) -> String {
        self.shown(&match refusal.detail() {
            Some(detail) => format!("{} ({detail})", refusal.message()),
            None => refusal.message().to_owned(),
        })
    }

    /// Text of a server, without the password and no longer than anybody reads.
    pub(crate) fn shown(&self, text: &str) -> String {
        match self.known_password() {
            Some(password) => cut(&text.replace(&password, "(hidden)")),
            None => cut(text),
        }
    }

    /// The password, if a server may have been sent it: it may repeat it then.
    fn known_password(&self) -> Option<String> {
        let password = self.server.get_password().filter(|_| self.cleartext)?;
        Some(String::from_utf8_lossy(password).into_owned()).filter(|password| !password.is_empty())
    }

    /// An error of the crate as a source, in words. It is left out if it repeats the password or is too long.
    pub(crate) fn explained(&self, words: String, source: tokio_postgres::Error) -> crate::Source {
        let text = format!("{source:?}");
        let repeats = self.known_password().is_some_and(|password| text.contains(&password));
        Box::new(Explained { words, source: Some(source).filter(|_| !repeats && text.len() <= MAX_SOURCE) })
    }

    /// Says which SQL gives the missing right.
    fn missing_right(&self, what: &str) -> Error {
        let (label, schema) = (&self.label, quoted(&self.schema));
        let user = quoted(self.server.get_user().unwrap_or("…"));
        let sql = if what.contains("must be owner") {
            return Error::config(format!("{label}: {what}; run `fencepost init` as the owner of {schema}"));
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
        Error::config(format!("{label}: {what}; run as its owner or a superuser: {sql}"))
    }
}

/// An error of the crate in words: it shows itself as `db error`.
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

/// The beginning of a text.
pub(crate) fn cut(text: &str) -> String {
    if text.len() <= MAX_TEXT {
        return text.to_owned();
    }
    let end = (0..=MAX_TEXT).rfind(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}…", &text[..end])
}

/// The server is busy, starting or going down.
fn is_passing(code: &SqlState) -> bool {
    ["08", "53", "57"].iter().any(|class| code.code().starts_with(class))
        || *code == SqlState::LOCK_NOT_AVAILABLE
}

/// A right or a thing is missing: trying again does not help.
pub(in crate::backends::postgres) fn is_denied(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| code.code().starts_with("42"))
}

/// Somebody has locked the row.
pub(in crate::backends::postgres) fn is_locked(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE)
}

/// Why we do not talk to this server, if the error is about that.
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
