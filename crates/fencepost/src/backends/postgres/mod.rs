//! Locks on PostgreSQL.
//!
//! A lock is an advisory lock of one session *and* a lease in a table: the first keeps out code that calls `pg_advisory_lock`, the second keeps
//! others out for as long as a holder whose session was killed may believe. [`Key`] names locks by the
//! number that such code uses; [`lock_in_transaction`] takes one inside a transaction of the caller's own.

mod attach;
mod claim;
pub(crate) mod config;
mod hold;
mod hub;
mod key;
mod login;
mod operator;
mod queue;
mod schema;
mod session;
#[cfg(test)]
mod tests;
#[cfg(feature = "tls")]
mod tls;
mod transaction;
pub(crate) mod trouble;
mod warden;
pub(crate) mod wire;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

pub use self::key::Key;
pub use self::transaction::{Schema, lock_in_transaction, try_lock_in_transaction};

use self::claim::{Claim, Said};
use self::config::Config;
use self::hub::Hub;
use self::schema::Found;
use crate::backends::{Init, StoreKind, nothing_to_change};
use crate::backend::{Backend, Capabilities, ForceRelease, Grant, Renewal, Request, Revoked, TryOutcome};
use crate::runtime::clock::Clock;
use crate::url::StoreUrl;
use crate::{Handle, Holder, Listing, Name, Result};

#[derive(Debug)]
struct Store(Arc<Hub>);

/// The store's row in the registry.
pub(super) const STORE: StoreKind = StoreKind {
    default_port: Some(5432),
    init: Some(|url, what| Box::pin(init(url, what))),
    ..StoreKind::new("PostgreSQL", &["postgres://user@host/database"], |url| Box::pin(connect(url)))
};

pub(super) async fn connect(url: StoreUrl) -> Result<Arc<dyn Backend>> {
    let hub = Hub::new(Config::from_url(url)?)?;
    hub.session().await?;
    Ok(Arc::new(Store(hub)))
}

/// Makes the schema, or upgrades it. Works through any pool.
pub(super) async fn init(url: StoreUrl, what: Init) -> Result<Vec<String>> {
    if what == Init::Change {
        return Err(nothing_to_change(&url));
    }
    let hub = Hub::new(Config::from_url(url)?)?;
    let said = match hub.make_schema(true).await? {
        Found::Nothing => "made",
        Found::Earlier => "upgraded",
        Found::Current => "is there already",
    };
    Ok(vec![format!("schema `{}` {said}", hub.config.schema)])
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
        Ok(match Claim::new(&self.0, request).ask().await? {
            Said::Granted(grant) => TryOutcome::Granted(grant),
            Said::Busy { holder, .. } => TryOutcome::Busy(Some(holder)),
        })
    }

    async fn acquire(&self, request: &Request) -> Result<Grant> {
        Claim::new(&self.0, request).acquire().await
    }

    async fn attach(&self, handle: &Handle, request: &Request) -> Result<Grant> {
        self.0.attach(handle, request).await
    }

    async fn renew(&self, handle: &Handle, term: Duration) -> Result<Renewal> {
        self.0.renew_detached(handle, term).await
    }

    async fn release(&self, handle: &Handle) -> Result<bool> {
        self.0.release_detached(handle).await
    }

    async fn list(&self, prefix: &str) -> Result<Listing> {
        self.0.list(prefix).await
    }

    async fn show(&self, name: &Name) -> Result<Option<Holder>> {
        self.0.show(name).await
    }

    async fn force_release(&self, name: &Name, how: &ForceRelease) -> Result<Option<Revoked>> {
        self.0.force_release(name, how).await
    }

    async fn check(&self) -> Result<()> {
        let session = self.0.session().await?;
        let asked = self.0.in_time(session.wire.client.simple_query("SELECT 1")).await?;
        asked.map(drop).map_err(|error| self.0.config.trouble(error))
    }

    async fn settle(&self) {
        self.0.background.done().await;
    }

    async fn close(&self) {
        self.0.close();
    }
}
