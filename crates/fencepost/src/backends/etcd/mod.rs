//! Locks on an etcd cluster.
//!
//! A lock is a key `NAME/LEASE` on a lease, in the layout of `etcdctl lock`: of all such keys of a name the
//! one that was created first holds the lock, and the revision that created it is the token. Waiters watch
//! the key right ahead of theirs. What etcd has agreed on no crash undoes; validity still is a matter of the
//! lease and of our own clock.

mod acquire;
mod attach;
mod client;
mod config;
mod contender;
mod driver;
mod hold;
mod keys;
mod leases;
mod local_queue;
mod operator;
mod record;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use self::client::Client;
use self::config::Config;
pub(crate) use self::hold::Held;
use crate::backend::{Backend, Capabilities, ForceRelease, Grant, Renewal, Request, Revoked, TryOutcome};
use crate::backends::StoreKind;
use crate::runtime::clock::Clock;
use crate::url::StoreUrl;
use crate::{Handle, Holder, Listing, Name, Result};

/// What a transaction of your own compares to be carried out only while a lock is held: that the key's create
/// revision is this one. Plain data, for any etcd client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EtcdCompare {
    /// The lock's key.
    pub key: Vec<u8>,
    /// The revision that created it; also the fencing token.
    pub create_revision: i64,
}

#[derive(Debug)]
struct Store(Arc<Client>);

/// The store's row in the registry.
pub(super) const STORE: StoreKind = StoreKind {
    default_port: Some(2379),
    parameters: config::PARAMETERS,
    ..StoreKind::new("etcd", "etcd", &["etcd://a,b,c", "etcds://a,b,c"], |url| Box::pin(connect(url)))
};

pub(super) async fn connect(url: StoreUrl) -> Result<Arc<dyn Backend>> {
    let store = Store(Client::new(Config::from_url(url)?, Clock::system())?);
    store.check().await?;
    Ok(Arc::new(store))
}

#[async_trait]
impl Backend for Store {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new(self.0.cluster.config.label.clone(), true, true, true)
    }

    fn clock(&self) -> &Clock {
        &self.0.cluster.clock
    }

    async fn try_acquire(&self, request: &Request) -> Result<TryOutcome> {
        self.0.run(acquire::try_acquire(self.0.clone(), request.clone())).await
    }

    async fn acquire(&self, request: &Request) -> Result<Grant> {
        // Dropped with this future, which tells the task.
        let (_here, caller) = oneshot::channel();
        self.0.run(acquire::acquire(self.0.clone(), request.clone(), caller)).await
    }

    async fn attach(&self, handle: &Handle, request: &Request) -> Result<Grant> {
        self.0.run(attach::attach(self.0.clone(), handle.clone(), request.clone())).await
    }

    async fn renew(&self, handle: &Handle, term: Duration) -> Result<Renewal> {
        self.0.run(attach::renew(self.0.clone(), handle.clone(), term)).await
    }

    async fn release(&self, handle: &Handle) -> Result<bool> {
        self.0.run(attach::release(self.0.clone(), handle.clone())).await
    }

    async fn list(&self, prefix: &str) -> Result<Listing> {
        self.0.run(operator::list(self.0.clone(), prefix.to_owned())).await
    }

    async fn show(&self, name: &Name) -> Result<Option<Holder>> {
        let (client, name) = (self.0.clone(), name.clone());
        self.0.run(async move { operator::show(&client, &name).await }).await
    }

    async fn force_release(&self, name: &Name, how: &ForceRelease) -> Result<Option<Revoked>> {
        self.0.run(operator::force_release(self.0.clone(), name.clone(), how.clone())).await
    }

    async fn check(&self) -> Result<()> {
        self.0.run(operator::check(self.0.clone())).await
    }

    async fn settle(&self) {
        self.0.cluster.background.done().await;
    }

    async fn close(&self) {
        self.0.close().await;
    }
}
