//! Advisory locks: by bare `tokio-postgres`, and by `sqlx`'s class. A lock belongs to a session, so each
//! contender has a connection.

use std::time::Duration;

use fencepost_measure::{Client, Contender, Holding};
use sqlx::Connection as _;
use sqlx::postgres::{PgAdvisoryLock, PgAdvisoryLockGuard, PgConnection};
use tokio_postgres::{NoTls, Statement};

use crate::Error;

/// The URL.
pub(crate) struct Advisory(pub(crate) String);

pub(crate) struct AdvisoryLock {
    client: tokio_postgres::Client,
    lock: Statement,
    unlock: Statement,
    key: i64,
}

impl Client for Advisory {
    type Contender = AdvisoryLock;
    type Error = Error;

    async fn contender(&self, name: &str) -> Result<AdvisoryLock, Error> {
        let (client, connection) = tokio_postgres::connect(&self.0, NoTls).await?;
        tokio::spawn(connection);
        let lock = client.prepare("SELECT pg_advisory_lock($1)").await?;
        let unlock = client.prepare("SELECT pg_advisory_unlock($1)").await?;
        let key = name.bytes().fold(7_i64, |key, byte| key.wrapping_mul(31).wrapping_add(byte.into()));
        Ok(AdvisoryLock { client, lock, unlock, key })
    }

    async fn hold(&self, _: usize, _: Duration) -> Result<Holding, Error> {
        Err(crate::no_renewal())
    }
}

impl Contender for AdvisoryLock {
    type Held = ();
    type Error = Error;

    async fn acquire(&mut self) -> Result<(), Error> {
        self.client.query_one(&self.lock, &[&self.key]).await?;
        Ok(())
    }

    async fn release(&mut self, (): ()) -> Result<(), Error> {
        self.client.query_one(&self.unlock, &[&self.key]).await?;
        Ok(())
    }

    fn token((): &()) -> Option<u64> {
        None
    }
}

/// The URL.
pub(crate) struct Sqlx(pub(crate) String);

pub(crate) struct SqlxLock {
    /// Away while the lock is held.
    connection: Option<PgConnection>,
    lock: PgAdvisoryLock,
}

impl Client for Sqlx {
    type Contender = SqlxLock;
    type Error = Error;

    async fn contender(&self, name: &str) -> Result<SqlxLock, Error> {
        let connection = Some(PgConnection::connect(&self.0).await?);
        Ok(SqlxLock { connection, lock: PgAdvisoryLock::new(name) })
    }

    async fn hold(&self, _: usize, _: Duration) -> Result<Holding, Error> {
        Err(crate::no_renewal())
    }
}

impl Contender for SqlxLock {
    type Held = PgAdvisoryLockGuard<PgConnection>;
    type Error = Error;

    async fn acquire(&mut self) -> Result<Self::Held, Error> {
        let connection = self.connection.take().ok_or("the lock is held")?;
        Ok(self.lock.acquire(connection).await?)
    }

    async fn release(&mut self, held: Self::Held) -> Result<(), Error> {
        self.connection = Some(held.release_now().await?);
        Ok(())
    }

    fn token(_: &Self::Held) -> Option<u64> {
        None
    }
}
