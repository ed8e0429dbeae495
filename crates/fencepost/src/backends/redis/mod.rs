//! Locks on one Redis server.
//!
//! A lock is the key `lock:NAME`, set if absent and with an expiry, in the form other lock clients use. One
//! script, `scripts/ops.lua`, makes every change to it. Each grant has a token larger than all before it: one
//! more than the last, or the server's clock. Waiters stand in a queue on the server; a release hands the
//! lock to the first of them and pushes it the token. What the server loses, locks lose: choose Redlock where
//! a restart must not break exclusion.

mod acquire;
mod attach;
mod client;
mod cluster;
pub(in crate::backends) mod config;
pub(crate) mod driver;
mod errors;
mod hold;
pub(crate) mod keys;
mod operator;
pub(in crate::backends) mod push;
pub(in crate::backends) mod record;
pub(in crate::backends) mod sentinel;
mod servers;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::client::Client;
use self::config::Config;
use crate::backend::{Backend, Capabilities, ForceRelease, Grant, Renewal, Request, Revoked, TryOutcome};
use crate::backends::StoreKind;
use crate::runtime::clock::Clock;
use crate::url::StoreUrl;
use crate::{Handle, Holder, Listing, Name, Result};

/// A duration as the scripts take it.
pub(in crate::backends) fn milliseconds(duration: Duration) -> String {
    duration.as_millis().max(1).to_string()
}

/// The store's row in the registry.
pub(super) const STORE: StoreKind = StoreKind {
    default_port: Some(6379),
    parameters: config::PARAMETERS,
    ..StoreKind::new("redis", "one Redis", &["redis://host", "rediss://host", "redis+unix:///path"], |url| {
        Box::pin(connect(url))
    })
};

/// The row of one that Sentinel finds.
pub(super) const SENTINEL: StoreKind = sentinel::STORE;

/// The row of a cluster of them.
pub(super) const CLUSTER: StoreKind = StoreKind {
    default_port: Some(6379),
    ttl: "10s",
    parameters: config::CLUSTER_PARAMETERS,
    default_ttl: |_, given| Ok(given.unwrap_or(CLUSTER_TTL)),
    ..StoreKind::new(
        "redis-cluster",
        "a Redis Cluster",
        &["redis+cluster://host,host", "rediss+cluster://host,host"],
        |url| Box::pin(connect(url)),
    )
};

/// A lease of a cluster should end before a failover does.
const CLUSTER_TTL: Duration = Duration::from_secs(10);

/// What a failover takes at most, as clusters are set up by default and a good deal slower.
const FAILOVER: Duration = Duration::from_secs(40);

pub(super) async fn connect(url: StoreUrl) -> Result<Arc<dyn Backend>> {
    let client = Client::connect(Config::from_url(url)?).await?;
    Ok(Arc::new(Store(Arc::new(client))))
}

#[derive(Debug)]
struct Store(Arc<Client>);

#[async_trait]
impl Backend for Store {
    fn capabilities(&self) -> Capabilities {
        let config = self.0.config();
        let capabilities = Capabilities::new(config.label.clone(), true, true, true);
        if config.is_cluster() { capabilities.patience(FAILOVER) } else { capabilities }
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
        self.0.servers.close();
    }
}

#[cfg(test)]
mod tests;
