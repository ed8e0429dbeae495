//! The shelf with the teapots: two tables in a schema of their own.

use fencepost::fence;
use fencepost_examples::Result;
use tokio_postgres::{Client, NoTls};

use crate::STOCK;

/// A connection to the shelf.
pub(crate) struct Shelf {
    pub(crate) client: Client,
    /// As the table of tokens knows it.
    pub(crate) name: String,
}

impl Shelf {
    /// Makes the tables.
    pub(crate) async fn make(store: &str, schema: &str) -> Result<()> {
        let sql = format!(
            "CREATE SCHEMA {schema};
             CREATE TABLE {schema}.shelf (item text PRIMARY KEY, stock int NOT NULL);
             CREATE TABLE {schema}.sale (buyer text NOT NULL);
             INSERT INTO {schema}.shelf VALUES ('teapot', {STOCK});"
        );
        let client = connect(store).await?;
        client.batch_execute(&sql).await?;
        // The table of tokens and its functions; changes nothing where they are.
        Ok(client.batch_execute(fence::postgres::MIGRATION).await?)
    }

    /// Puts the shelf back to how it was.
    pub(crate) async fn refill(store: &str, schema: &str) -> Result<()> {
        let shelf = Self::open(store, schema).await?;
        Ok(shelf.client.batch_execute(&format!("TRUNCATE sale; UPDATE shelf SET stock = {STOCK}")).await?)
    }

    /// Removes the tables, and what the table of tokens knows of them.
    pub(crate) async fn remove(store: &str, schema: &str) -> Result<()> {
        let client = connect(store).await?;
        client.batch_execute(&format!("DROP SCHEMA {schema} CASCADE")).await?;
        client.execute("DELETE FROM fencepost_fence.guards WHERE resource = $1", &[&schema]).await?;
        Ok(())
    }

    /// How many were sold, and how many are left by what the shelf says.
    pub(crate) async fn count(store: &str, schema: &str) -> Result<(i32, i32)> {
        let shelf = Self::open(store, schema).await?;
        let row =
            shelf.client.query_one("SELECT (SELECT count(*)::int FROM sale), stock FROM shelf", &[]).await?;
        Ok((row.get(0), row.get(1)))
    }

    pub(crate) async fn open(store: &str, schema: &str) -> Result<Self> {
        let client = connect(store).await?;
        client.batch_execute(&format!("SET search_path = {schema}")).await?;
        Ok(Self { client, name: schema.to_owned() })
    }
}

async fn connect(store: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(&plain(store), NoTls).await?;
    // Ends with the client; a statement that fails says why.
    tokio::spawn(connection);
    Ok(client)
}

/// The URL without the parameters that only a lock store knows.
fn plain(store: &str) -> String {
    let (address, parameters) = store.split_once('?').unwrap_or((store, ""));
    let known =
        |parameter: &&str| ["host=", "port=", "sslmode="].iter().any(|name| parameter.starts_with(name));
    let kept: Vec<&str> = parameters.split('&').filter(known).collect();
    format!("{address}?{}", kept.join("&"))
}
