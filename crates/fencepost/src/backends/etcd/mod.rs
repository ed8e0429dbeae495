//! Locks on an etcd cluster.
//!
//! A lock is a key `NAME/LEASE` on a lease, in the layout of `etcdctl lock`: of all such keys of a name the one that was
//! created first holds the lock, and the revision that created it is the token. Waiters watch the key right ahead of
//! theirs. What etcd has agreed on no crash undoes; validity still is a matter of the lease and of our own clock.

mod attach;
mod beat;
mod claim;
mod client;
mod config;
mod grpc;
mod hold;
mod keys;
mod lease_requests;
mod leases;
mod link;
mod members;
mod mind;
mod operator;
mod place;
mod proto;
mod record;
mod renewals;
mod seats;
mod session;
mod stand;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use self::claim::Claim;
use self::config::Config;
pub(crate) use self::hold::Held;
use self::session::Session;
use crate::backends::StoreKind;
use crate::backend::{Backend, Capabilities, ForceRelease, Grant, Renewal, Request, Revoked, TryOutcome};
use crate::runtime::clock::Clock;
use crate::runtime::sync::lock;
use crate::url::StoreUrl;
use crate::{Error, Handle, Holder, Listing, Name, Result};

/// What a transaction of your own compares to be carried out only while a lock is held: that the key's create revision
/// is this one. Plain data, for any etcd client.
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
    config: Config,
    clock: Clock,
    session: Mutex<Arc<Session>>,
}

/// The store's row in the registry.
pub(super) const STORE: StoreKind = StoreKind {
    default_port: Some(2379),
    ..StoreKind::new("etcd", &["etcd://a,b,c", "etcds://a,b,c"], |url| Box::pin(connect(url)))
};

pub(super) async fn connect(url: StoreUrl) -> Result<Arc<dyn Backend>> {
    let config = Config::from_url(url)?;
    let clock = Clock::system();
    let session = Session::new(config.clone(), &clock)?;
    let store = Store { config, clock, session: Mutex::new(session) };
    store.check().await?;
    Ok(Arc::new(store))
}

impl Store {
    /// This process's session.
    fn session(&self) -> Result<Arc<Session>> {
        let mut session = lock(&self.session);
        if !session.is_ours() {
            let parents = std::mem::replace(&mut *session, Session::new(self.config.clone(), &self.clock)?);
            // Its end would be a message to the parent's thread.
            std::mem::forget(parents);
        }
        Ok(session.clone())
    }
}

#[async_trait]
impl Backend for Store {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new(self.config.label.clone(), true, true, true)
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    async fn try_acquire(&self, request: &Request) -> Result<TryOutcome> {
        let session = self.session()?;
        session.run(Claim::new(session.clone(), request.clone()).once()).await
    }

    async fn acquire(&self, request: &Request) -> Result<Grant> {
        let session = self.session()?;
        // Dropped with this future, which tells the task.
        let (_here, caller) = oneshot::channel();
        session.run(Claim::new(session.clone(), request.clone()).wait(caller)).await
    }

    async fn attach(&self, handle: &Handle, request: &Request) -> Result<Grant> {
        let session = self.session()?;
        session.run(attach::attach(session.clone(), handle.clone(), request.clone())).await
    }

    async fn renew(&self, handle: &Handle, term: Duration) -> Result<Renewal> {
        let session = self.session()?;
        session.run(attach::renew(session.clone(), handle.clone(), term)).await
    }

    async fn release(&self, handle: &Handle) -> Result<bool> {
        let session = self.session()?;
        session.run(attach::release(session.clone(), handle.clone())).await
    }

    async fn list(&self, prefix: &str) -> Result<Listing> {
        let session = self.session()?;
        session.run(operator::list(session.clone(), prefix.to_owned())).await
    }

    async fn show(&self, name: &Name) -> Result<Option<Holder>> {
        let (session, name) = (self.session()?, name.clone());
        let job = session.clone();
        session.run(async move { job.show(&name).await }).await
    }

    async fn force_release(&self, name: &Name, how: &ForceRelease) -> Result<Option<Revoked>> {
        let session = self.session()?;
        session.run(operator::force_release(session.clone(), name.clone(), how.clone())).await
    }

    async fn check(&self) -> Result<()> {
        let session = self.session()?;
        let job = session.clone();
        let looked = session.run(async move {
            let key = format!("{}\0", job.client.config.prefix).into_bytes();
            job.read((key, Vec::new())).await.map(drop)
        });
        match looked.await {
            // A user may have rights to some names only, and which ones will be asked for is not known here.
            Err(Error::Config { message }) if message.contains("permission denied") => Ok(()),
            looked => looked,
        }
    }

    async fn settle(&self) {
        if let Ok(session) = self.session() {
            session.background.done().await;
        }
    }

    async fn close(&self) {
        let Ok(session) = self.session() else { return };
        let job = session.clone();
        let closed = session.run(async move {
            let mut revoked = Ok(());
            for id in job.leases.close() {
                // Where one is not answered the others would not be either, and end by themselves.
                if revoked.is_ok() {
                    revoked = job.client.revoke(id).await.map_err(|fault| fault.into_error(&job.client));
                }
            }
            job.client.close();
            revoked
        });
        if let Err(error) = closed.await {
            tracing::debug!(%error, "closing went wrong");
        }
    }
}
