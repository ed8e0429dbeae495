//! Locks on an etcd cluster.
//!
//! A lock is a key `NAME/LEASE` on a lease, in the layout of `etcdctl lock`: of all such keys of a name the
//! one that was created first holds the lock, and the revision that created it is the token. Waiters watch
//! the key right ahead of theirs. What etcd has agreed on no crash undoes; validity still is a matter of the
//! lease and of our own clock.

mod acquire;
mod attach;
mod config;
mod contender;
mod driver;
mod hold;
mod keys;
mod leases;
mod local_queue;
mod operator;
mod record;
mod session;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use self::config::Config;
pub(crate) use self::hold::Held;
use self::session::Session;
use crate::backends::StoreKind;
use crate::backend::{Backend, Capabilities, ForceRelease, Grant, Renewal, Request, Revoked, TryOutcome};
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
struct Store {
    session: Arc<Session>,
}

/// The store's row in the registry.
pub(super) const STORE: StoreKind = StoreKind {
    default_port: Some(2379),
    parameters: config::PARAMETERS,
    ..StoreKind::new("etcd", "etcd", &["etcd://a,b,c", "etcds://a,b,c"], |url| Box::pin(connect(url)))
};

pub(super) async fn connect(url: StoreUrl) -> Result<Arc<dyn Backend>> {
    let store = Store { session: Session::new(Config::from_url(url)?, Clock::system())? };
    store.check().await?;
    Ok(Arc::new(store))
}

#[async_trait]
impl Backend for Store {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new(self.session.client.config.label.clone(), true, true, true)
    }

    fn clock(&self) -> &Clock {
        &self.session.client.clock
    }

    async fn try_acquire(&self, request: &Request) -> Result<TryOutcome> {
        self.session.run(acquire::try_acquire(self.session.clone(), request.clone())).await
    }

    async fn acquire(&self, request: &Request) -> Result<Grant> {
        // Dropped with this future, which tells the task.
        let (_here, caller) = oneshot::channel();
        self.session.run(acquire::acquire(self.session.clone(), request.clone(), caller)).await
    }

    async fn attach(&self, handle: &Handle, request: &Request) -> Result<Grant> {
        self.session.run(attach::attach(self.session.clone(), handle.clone(), request.clone())).await
    }

    async fn renew(&self, handle: &Handle, term: Duration) -> Result<Renewal> {
        self.session.run(attach::renew(self.session.clone(), handle.clone(), term)).await
    }

    async fn release(&self, handle: &Handle) -> Result<bool> {
        self.session.run(attach::release(self.session.clone(), handle.clone())).await
    }

    async fn list(&self, prefix: &str) -> Result<Listing> {
        self.session.run(operator::list(self.session.clone(), prefix.to_owned())).await
    }

    async fn show(&self, name: &Name) -> Result<Option<Holder>> {
        let (session, name) = (self.session.clone(), name.clone());
        self.session.run(async move { operator::show(&session, &name).await }).await
    }

    async fn force_release(&self, name: &Name, how: &ForceRelease) -> Result<Option<Revoked>> {
        self.session.run(operator::force_release(self.session.clone(), name.clone(), how.clone())).await
    }

    async fn check(&self) -> Result<()> {
        self.session.run(operator::check(self.session.clone())).await
    }

    async fn settle(&self) {
        self.session.client.background.done().await;
    }

    async fn close(&self) {
        self.session.close().await;
    }
}
