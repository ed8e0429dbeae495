//! Locks on PostgreSQL.
//!
//! A lock is an advisory lock of one session *and* a lease in a table. The first keeps out code that calls
//! `pg_advisory_lock`; the second keeps others out for as long as a holder whose session was killed may
//! believe. [`Key`] names locks by the number that such code uses. [`lock_in_transaction`] takes one
//! inside a transaction of the caller's own.

mod acquire;
mod attach;
mod channels;
mod client;
pub(crate) mod config;
pub(crate) mod driver;
mod hold;
mod keys;
mod monitor;
mod operator;
mod password;
mod record;
mod schema;
mod session;
#[cfg(test)]
mod tests;
mod transaction;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

pub use self::keys::Key;
pub use self::transaction::{Schema, lock_in_transaction, try_lock_in_transaction};

use self::client::Client;
use self::config::Config;
use self::schema::Layout;
use crate::backend::{Backend, Capabilities, ForceRelease, Grant, Renewal, Request, Revoked, TryOutcome};
use crate::backends::{Init, StoreKind, nothing_to_change};
use crate::runtime::clock::Clock;
use crate::url::StoreUrl;
use crate::{Handle, Holder, Listing, Name, Result};

#[derive(Debug)]
struct Store(Arc<Client>);

/// The store's row in the registry.
pub(super) const STORE: StoreKind = StoreKind {
    default_port: Some(5432),
    parameters: config::PARAMETERS,
    init: Some(|url, what| Box::pin(init(url, what))),
    ..StoreKind::new("postgres", "PostgreSQL", &["postgres://user@host/database"], |url| {
        Box::pin(connect(url))
    })
};

pub(super) async fn connect(url: StoreUrl) -> Result<Arc<dyn Backend>> {
    let client = Client::new(Config::from_url(url)?)?;
    client.session().await?;
    Ok(Arc::new(Store(client)))
}

/// Makes the schema, or upgrades it. Works through any pool.
pub(super) async fn init(url: StoreUrl, what: Init) -> Result<Vec<String>> {
    if what == Init::Change {
        return Err(nothing_to_change(&url));
    }
    let client = Client::new(Config::from_url(url)?)?;
    let said = match client.init().await? {
        Layout::None => "made",
        Layout::Earlier => "upgraded",
        Layout::Current => "is there already",
    };
    Ok(vec![format!("schema `{}` {said}", client.config.schema)])
}

#[async_trait]
impl Backend for Store {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new(self.0.config.label.clone(), true, true, false)
    }

    fn clock(&self) -> &Clock {
        &self.0.clock
    }

    async fn try_acquire(&self, request: &Request) -> Result<TryOutcome> {
        acquire::try_acquire(&self.0, request).await
    }

    async fn acquire(&self, request: &Request) -> Result<Grant> {
        acquire::acquire(&self.0, request).await
    }

    async fn attach(&self, handle: &Handle, request: &Request) -> Result<Grant> {
        attach::attach(&self.0, handle, request).await
    }

    async fn renew(&self, handle: &Handle, term: Duration) -> Result<Renewal> {
        attach::renew(&self.0, handle, term).await
    }

    async fn release(&self, handle: &Handle) -> Result<bool> {
        attach::release(&self.0, handle).await
    }

    async fn list(&self, prefix: &str) -> Result<Listing> {
        operator::list(&self.0, prefix).await
    }

    async fn show(&self, name: &Name) -> Result<Option<Holder>> {
        operator::show(&self.0, name).await
    }

    async fn force_release(&self, name: &Name, how: &ForceRelease) -> Result<Option<Revoked>> {
        operator::force_release(&self.0, name, how).await
    }

    async fn check(&self) -> Result<()> {
        operator::check(&self.0).await
    }

    async fn settle(&self) {
        self.0.background.done().await;
    }

    async fn close(&self) {
        self.0.close();
    }
}
