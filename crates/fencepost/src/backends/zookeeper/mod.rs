//! Locks on a ZooKeeper ensemble.
//!
//! A lock is a line of ephemeral nodes under one folder, in the layout of Curator's `InterProcessMutex`; the first has
//! it, and each watches the one in front. Its token is the transaction that created its node. What holds a lock is a
//! session, so a lock's ttl is the timeout of its session, and each ttl has a session of its own.

mod claim;
mod config;
mod connection;
mod dial;
mod hold;
mod jute;
mod layout;
mod life;
mod operator;
mod protocol;
mod record;
mod session;
mod sessions;
#[cfg(test)]
mod tests;
mod watches;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::config::Config;
use self::sessions::Sessions;
use crate::backends::StoreKind;
use crate::backend::{Backend, Capabilities, ForceRelease, Grant, Renewal, Request, Revoked, TryOutcome};
use crate::runtime::clock::Clock;
use crate::url::StoreUrl;
use crate::{Error, Handle, Holder, Listing, Name, Result};

#[derive(Debug)]
struct Store {
    sessions: Sessions,
}

/// The store's row in the registry.
pub(super) const STORE: StoreKind = StoreKind {
    default_port: Some(2181),
    // Twice the tick, which is 2 s.
    shortest_ttl: Duration::from_secs(4),
    ..StoreKind::new("zookeeper", "ZooKeeper", &["zookeeper://a,b,c/chroot"], |url| Box::pin(connect(url)))
};

pub(super) async fn connect(url: StoreUrl) -> Result<Arc<dyn Backend>> {
    let sessions = Sessions::new(Config::from_url(url)?, Clock::system());
    sessions.any().await?;
    Ok(Arc::new(Store { sessions }))
}

fn no_detached() -> Error {
    Error::unsupported(
        "a detached lock",
        "a ZooKeeper lock ends with the session of its process; keep the process and its guard (`fencepost run`), or use \
         another store",
    )
}

#[async_trait]
impl Backend for Store {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new(self.sessions.config.label.clone(), true, false, true)
    }

    fn clock(&self) -> &Clock {
        &self.sessions.clock
    }

    async fn try_acquire(&self, request: &Request) -> Result<TryOutcome> {
        let Sessions { config, clock, .. } = &self.sessions;
        // A session may have to be opened first, which has a limit of its own.
        let deadline = clock.now().plus(config.timeout * 2);
        let tried = clock.within(Some(deadline), claim::try_acquire(&self.sessions, request)).await;
        tried.unwrap_or_else(|| Err(config.unavailable("no answer in time")))
    }

    async fn acquire(&self, request: &Request) -> Result<Grant> {
        claim::acquire(&self.sessions, request).await
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
        operator::list(&*self.sessions.any().await?, prefix).await
    }

    async fn show(&self, name: &Name) -> Result<Option<Holder>> {
        operator::show(&*self.sessions.any().await?, name).await
    }

    async fn force_release(&self, name: &Name, how: &ForceRelease) -> Result<Option<Revoked>> {
        operator::force_release(&*self.sessions.any().await?, name, how).await
    }

    async fn check(&self) -> Result<()> {
        self.sessions.any().await?.beat().await.map(drop)
    }

    async fn settle(&self) {
        self.sessions.background.done().await;
    }

    async fn close(&self) {
        self.sessions.close().await;
    }
}
