//! Locks on a ZooKeeper ensemble.
//!
//! A lock is a queue of ephemeral nodes under one folder, in the layout of Curator's `InterProcessMutex`. The
//! first node has the lock, and each other one watches the node ahead. The token is the transaction that
//! created the node. A node ends with its session, so a lock's ttl is the timeout of its session, and each
//! ttl has a session of its own.

mod acquire;
mod config;
mod driver;
mod folders;
mod hold;
mod keys;
mod operator;
mod record;
mod sessions;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::config::Config;
use self::sessions::Sessions;
use crate::backend::{Backend, Capabilities, ForceRelease, Grant, Renewal, Request, Revoked, TryOutcome};
use crate::backends::StoreKind;
use crate::runtime::clock::Clock;
use crate::url::StoreUrl;
use crate::{Error, Handle, Holder, Listing, Name, Result};

#[derive(Debug)]
struct Store(Sessions);

/// The store's row in the registry.
pub(super) const STORE: StoreKind = StoreKind {
    default_port: Some(config::DEFAULT_PORT),
    // Twice the tick, which is 2 s.
    shortest_ttl: Duration::from_secs(4),
    parameters: config::PARAMETERS,
    ..StoreKind::new("zookeeper", "ZooKeeper", &["zookeeper://a,b,c/chroot"], |url| Box::pin(connect(url)))
};

async fn connect(url: StoreUrl) -> Result<Arc<dyn Backend>> {
    let sessions = Sessions::new(Config::from_url(url)?, Clock::system());
    sessions.any().await?;
    Ok(Arc::new(Store(sessions)))
}

fn no_detached() -> Error {
    Error::unsupported(
        "a detached lock",
        "a ZooKeeper lock ends with the session of its process; keep the process and its guard \
         (`fencepost run`), or use another store",
    )
}

#[async_trait]
impl Backend for Store {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new(self.0.config.label.clone(), true, false, true)
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

    async fn attach(&self, _handle: &Handle, _request: &Request) -> Result<Grant> {
        Err(no_detached())
    }

    async fn renew(&self, _handle: &Handle, _term: Duration) -> Result<Renewal> {
        Err(no_detached())
    }

    async fn release(&self, _handle: &Handle) -> Result<bool> {
        Err(no_detached())
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
        self.0.close().await;
    }
}
