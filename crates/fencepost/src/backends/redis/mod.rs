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
pub(in crate::backends) mod config;
pub(crate) mod driver;
mod hold;
pub(crate) mod keys;
mod operator;
mod ops;
pub(in crate::backends) mod record;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use self::client::Client;
use self::config::Config;
use crate::backends::StoreKind;
use crate::backend::{Backend, Capabilities, ForceRelease, Grant, Renewal, Request, Revoked, TryOutcome};
use crate::runtime::clock::Clock;
use crate::url::StoreUrl;
use crate::{Handle, Holder, Listing, Name, Result};

/// A duration as the scripts take it.
pub(in crate::backends) fn milliseconds(duration: Duration) -> String {
    duration.as_millis().max(1).to_string()
}

#[derive(Debug)]
struct Store {
    client: Arc<Client>,
    /// The keeper has been told to connect.
    warm: AtomicBool,
}

/// The store's row in the registry.
pub(super) const STORE: StoreKind = StoreKind {
    default_port: Some(6379),
    ..StoreKind::new("one Redis", &["redis://host", "rediss://host", "redis+unix:///path"], |url| {
        Box::pin(connect(url))
    })
};

pub(super) async fn connect(url: StoreUrl) -> Result<Arc<dyn Backend>> {
    let client = Arc::new(Client::connect(Config::from_url(url)?).await?);
    Ok(Arc::new(Store { client, warm: AtomicBool::new(false) }))
}

impl Store {
    /// Lets the keeper connect before its first renewal, which may be a hasty one.
    fn warm_up(&self) {
        if !self.warm.load(Ordering::Relaxed) && !self.warm.swap(true, Ordering::Relaxed) {
            let client = self.client.clone();
            self.client.keeper.spawn(async move {
                if let Err(error) = client.sessions.current(client.sessions.deadline()).await {
                    tracing::debug!(%error, "the keeper could not connect yet");
                }
            });
        }
    }
}

#[async_trait]
impl Backend for Store {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new(self.client.config().label.clone(), true, true, true)
    }

    fn clock(&self) -> &Clock {
        &self.client.clock
    }

    async fn try_acquire(&self, request: &Request) -> Result<TryOutcome> {
        self.warm_up();
        acquire::try_acquire(&self.client, request).await
    }

    async fn acquire(&self, request: &Request) -> Result<Grant> {
        self.warm_up();
        acquire::acquire(&self.client, request).await
    }

    async fn attach(&self, handle: &Handle, request: &Request) -> Result<Grant> {
        attach::attach(&self.client, handle, request).await
    }

    async fn renew(&self, handle: &Handle, term: Duration) -> Result<Renewal> {
        attach::renew(&self.client, handle, term).await
    }

    async fn release(&self, handle: &Handle) -> Result<bool> {
        attach::release(&self.client, handle).await
    }

    async fn list(&self, prefix: &str) -> Result<Listing> {
        operator::list(&self.client, prefix).await
    }

    async fn show(&self, name: &Name) -> Result<Option<Holder>> {
        operator::show(&self.client, name).await
    }

    async fn force_release(&self, name: &Name, how: &ForceRelease) -> Result<Option<Revoked>> {
        operator::force_release(&self.client, name, how).await
    }

    async fn check(&self) -> Result<()> {
        operator::check(&self.client).await
    }

    async fn settle(&self) {
        self.client.background.done().await;
    }

    async fn close(&self) {
        self.client.sessions.close();
    }
}
