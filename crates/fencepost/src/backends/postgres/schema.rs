//! The schema: made or upgraded by `fencepost init`, or made on first use if the user may.

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::config::Config;
use super::driver::quoted;
use crate::{Error, Result};

const SQL: &str = include_str!("scripts/schema.sql");

/// Raises `FP020` if somebody whom the session's user need not trust could have it run their code.
const TRUST: &str = include_str!("scripts/trust.sql");

/// Comes first in a message on a fresh connection. Even a type is looked up by the search_path, and that
/// of a database may put those of others first. It ends with the message or its transaction, so that a
/// pool does not hand it on.
const PIN: &str = "SET LOCAL search_path = pg_catalog, pg_temp;\n";

/// What `version()` in the schema returns; another number means another layout.
const VERSION: &str = "2";

/// The layout that `init` can upgrade.
const EARLIER: &str = "1";

/// What of the schema there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    Current,
    Earlier,
    None,
}

impl Config {
    /// Puts the name of the schema into SQL: `@schema@` is an identifier, `@label@` a literal, and `$$`
    /// becomes a quote that the name cannot close. In one pass: nothing that the name brings in is
    /// looked at again.
    pub(super) fn sql(&self, text: &str) -> String {
        fill(text, &self.schema)
    }

    /// Refuses a schema in which somebody who need not be trusted could have code run by whoever uses
    /// it. `false` if there is none: nothing of it may be run then, since it may be somebody else's in
    /// the next moment.
    pub(crate) async fn can_trust(&self, client: &Client, schema: &str) -> Result<bool> {
        match client.batch_execute(&fill(&format!("{PIN}{TRUST}"), schema)).await {
            Ok(()) => Ok(true),
            Err(error) if is_missing(&error) => Ok(false),
            Err(error) => Err(self.error(error)),
        }
    }

    /// Looks for the schema, and refuses one of somebody who need not be trusted before any code of it runs.
    pub(super) async fn layout(&self, client: &Client) -> Result<Layout> {
        if !self.can_trust(client, &self.schema).await? {
            return Ok(Layout::None);
        }
        // By the simple protocol, whose answers are text whatever the function returns.
        let said = match client.simple_query(&self.sql("SELECT @schema@.version()")).await {
            Ok(said) => said,
            Err(error) if is_missing(&error) => return Ok(Layout::None),
            Err(error) => return Err(self.error(error)),
        };
        let layout = said.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.try_get(0).ok().flatten(),
            _ => None,
        });
        match layout {
            Some(VERSION) => Ok(Layout::Current),
            Some(EARLIER) => Ok(Layout::Earlier),
            other => Err(Error::config(format!(
                "{}: the schema {} is of layout {}, and this program knows layout {VERSION}; use one \
                 version of fencepost for all clients, or make another schema with `fencepost init` and \
                 `?schema=…`",
                self.label,
                quoted(&self.schema),
                other.unwrap_or("(none)")
            ))),
        }
    }

    /// Says that the schema has to be upgraded, which ends the locks of programs that know the earlier
    /// one alone.
    pub(super) fn is_of_an_earlier_layout(&self) -> Error {
        Error::config(format!(
            "{}: the schema {} is of layout {EARLIER}, and this program needs layout {VERSION}; end the \
             programs of the earlier version, then run `fencepost init` as the owner of the schema",
            self.label,
            quoted(&self.schema)
        ))
    }

    /// Makes the schema, or upgrades it.
    pub(super) async fn make_schema(&self, client: &Client) -> Result<()> {
        // Several clients may find it missing at once. A user who may not create schemas may fill one
        // that is there. Its owner is looked at again: somebody else may have made it meanwhile.
        let script = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;\n\
             {PIN}SELECT pg_advisory_xact_lock(hashtextextended('fencepost ' || @label@, 0));\n\
             DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = @label@) THEN \
             CREATE SCHEMA @schema@; END IF; END $$;\n\
             {TRUST}\n{SQL}\nCOMMIT"
        );
        if let Err(error) = client.batch_execute(&self.sql(&script)).await {
            let _ = client.batch_execute("ROLLBACK").await;
            return Err(self.error(error));
        }
        tracing::info!(store = %self.label, schema = %self.schema, "schema made");
        Ok(())
    }
}

fn is_missing(error: &tokio_postgres::Error) -> bool {
    let missing = [SqlState::INVALID_SCHEMA_NAME, SqlState::UNDEFINED_FUNCTION];
    error.code().is_some_and(|code| missing.contains(code))
}

fn fill(text: &str, schema: &str) -> String {
    let mut tag = "$fencepost$".to_owned();
    while schema.contains(&tag) {
        tag.insert(1, '_');
    }
    // Escaped, so that it does not matter what the session takes a backslash for.
    let literal = format!("E'{}'", schema.replace('\\', r"\\").replace('\'', "''"));
    let places = [("@schema@", quoted(schema)), ("@label@", literal), ("$$", tag)];
    let (mut out, mut rest) = (String::with_capacity(text.len() * 2), text);
    while let Some((at, place, value)) =
        places.iter().filter_map(|(place, value)| Some((rest.find(place)?, place, value))).min()
    {
        out.push_str(&rest[..at]);
        out.push_str(value);
        rest = &rest[at + place.len()..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_name_brings_in_is_not_looked_at_again() {
        assert_eq!(
            fill("SELECT @schema@.f(@label@)", "a\"@label@'\\"),
            r#"SELECT "a""@label@'\".f(E'a"@label@''\\')"#
        );
        assert_eq!(fill("AS $$ @label@ $$", "$$; x"), "AS $fencepost$ E'$$; x' $fencepost$");
        assert_eq!(
            fill("$$@label@$$", "$fencepost$ $_fencepost$"),
            "$__fencepost$E'$fencepost$ $_fencepost$'$__fencepost$"
        );
    }

    /// `fence.sql` has a copy of `trust.sql`, since people run it by itself.
    #[test]
    fn the_migration_of_fences_refuses_strangers_the_same_way() {
        let words = |sql: &str| {
            let code = sql.lines().map(|line| line.split("--").next().unwrap_or_default());
            code.flat_map(str::split_whitespace).collect::<String>()
        };
        let trust = TRUST.replace("@label@", "'fencepost_fence'");
        assert!(words(crate::fence::postgres::MIGRATION).contains(&words(&trust)));
    }

    #[test]
    fn no_comment_has_a_place_for_the_name() {
        for line in [SQL, TRUST].iter().flat_map(|text| text.lines()) {
            let (_, comment) = line.split_once("--").unwrap_or_default();
            assert!(!comment.contains('@') && !comment.contains("$$"), "{line}");
        }
    }

    #[test]
    fn every_function_has_a_search_path_or_is_known_to_qualify_all_it_names() {
        for function in SQL.split("CREATE OR REPLACE FUNCTION @schema@.").skip(1) {
            let name = function.split('(').next().unwrap();
            let head = function.split("$$").next().unwrap();
            let qualifies = ["version", "next_token"].contains(&name);
            assert!(qualifies || head.contains("SET search_path = pg_catalog, pg_temp"), "{name}");
        }
    }

    proptest! {
        #[test]
        fn a_name_closes_no_quote(name in "[a$@\"'\\\\_\\n]{1,20}|[$]_{0,3}fencepost[$]") {
            let filled = fill("$$ @schema@ @label@ $$", &name);
            let tag = filled.split(' ').next().unwrap();
            prop_assert_eq!(filled.matches(tag).count(), 2, "{}", filled);
        }
    }
}
