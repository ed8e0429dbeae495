//! The schema: made by `fencepost init`, or on first use if the user may.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::config::Config;
use super::trouble::quoted;
use crate::{Error, Result};

const SQL: &str = include_str!("schema.sql");

/// What the functions in the schema are; another number means another layout.
const VERSION: i32 = 1;

impl Config {
    /// Puts the name of the schema into SQL.
    pub(super) fn sql(&self, text: &str) -> String {
        let literal = format!("'{}'", self.schema.replace('\'', "''"));
        text.replace("@schema@", &quoted(&self.schema)).replace("@label@", &literal)
    }

    /// Whether the schema is there.
    pub(super) async fn has_schema(&self, client: &Client) -> Result<bool> {
        match client.query_one(&self.sql("SELECT @schema@.version()"), &[]).await {
            Ok(row) => match row.get::<_, i32>(0) {
                VERSION => Ok(true),
                other => Err(Error::config(format!(
                    "{}: the schema {} is of layout {other}, and this program knows layout {VERSION}; use one version \
                     of fencepost for all clients, or make another schema with `fencepost init` and `?schema=…`",
                    self.label,
                    quoted(&self.schema)
                ))),
            },
            Err(error) if is_missing(&error) => Ok(false),
            Err(error) => Err(self.trouble(error)),
        }
    }

    pub(super) async fn make_schema(&self, client: &Client) -> Result<()> {
        // Several clients may find it missing at once; and who may not create schemas may fill one that is there.
        let script = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;\n\
             SELECT pg_advisory_xact_lock(hashtextextended('fencepost ' || {literal}, 0));\n\
             DO $$ BEGIN IF to_regnamespace({name}) IS NULL THEN CREATE SCHEMA {schema}; END IF; END $$;\n\
             {sql}\nCOMMIT",
            literal = self.sql("@label@"),
            name = format_args!("'{}'", quoted(&self.schema).replace('\'', "''")),
            schema = quoted(&self.schema),
            sql = self.sql(SQL)
        );
        if let Err(error) = client.batch_execute(&script).await {
            let _ = client.batch_execute("ROLLBACK").await;
            return Err(self.trouble(error));
        }
        tracing::info!(store = %self.label, schema = %self.schema, "schema made");
        Ok(())
    }
}

fn is_missing(error: &tokio_postgres::Error) -> bool {
    matches!(error.code(), Some(code) if [SqlState::INVALID_SCHEMA_NAME, SqlState::UNDEFINED_FUNCTION].contains(code))
}
