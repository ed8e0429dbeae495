//! Locks on an etcd cluster.
//!
//! A lock is a key `NAME/LEASE` on a lease, in the layout of `etcdctl lock`: of all such keys of a name the one that was
//! created first holds the lock, and the revision that created it is the token. Waiters watch the key right ahead of
//! theirs. What etcd has agreed on no crash undoes; validity still is a matter of the lease and of our own clock.

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

use async_trait::async_trait;
use tokio::sync::oneshot;

use self::claim::Claim;
use self::config::Config;
use self::hold::Entry;
pub(crate) use self::hold::Held;
use self::leases::Mine;
use self::proto::{Compare, PutRequest, RangeRequest, Request as Op};
use self::record::Record;
use self::session::Session;
use crate::backend::{Attempt, Backend, Capabilities, Grant, Request, Revoked, lock};
use crate::clock::Clock;
use crate::url::StoreUrl;
use crate::{Error, Handle, Holder, Loss, Name, Result};

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

    async fn try_acquire(&self, request: &Request) -> Result<Attempt> {
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
        session.run(attach(session.clone(), handle.clone(), request.clone())).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Holder>> {
        let session = self.session()?;
        session.run(operator::list(session.clone(), prefix.to_owned())).await
    }

    async fn show(&self, name: &Name) -> Result<Option<Holder>> {
        let (session, name) = (self.session()?, name.clone());
        let job = session.clone();
        session.run(async move { job.show(&name).await }).await
    }

    async fn force_release(&self, name: &Name, reason: &str, now: bool) -> Result<Option<Revoked>> {
        let session = self.session()?;
        session.run(operator::force_release(session.clone(), name.clone(), reason.to_owned(), now)).await
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
            session.errands.done().await;
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

/// Takes over a detached lock: moves its key to a lease of its own, of our ttl.
async fn attach(session: Arc<Session>, handle: Handle, request: Request) -> Result<Grant> {
    let (client, name) = (&session.client, handle.name());
    let created = i64::try_from(handle.token().get()).unwrap_or(i64::MAX);
    for _ in 0..8 {
        let contenders = session.contenders(name).await?;
        let found = contenders.iter().find(|kv| kv.create_revision == created);
        let Some((kv, record)) = found.and_then(|kv| Some((kv, Record::of(kv)?))) else {
            let why = if contenders.is_empty() { Loss::Expired } else { Loss::Taken };
            return Err(Error::lost(name, why));
        };
        if record.owner != handle.owner() {
            return Err(Error::lost(name, Loss::Taken));
        }
        if let Some(reason) = record.revoked {
            return Err(Error::lost(name, Loss::ForceReleased { reason }));
        }
        // Never shorter than what it has.
        let left = session.time_left(kv.lease).await.unwrap_or_default();
        let uses =
            session.leases.own(request.ttl.max(left)).await.map_err(|fault| fault.into_error(client))?;
        let (id, sent) = (uses.lease.id, uses.lease.sent());
        let unchanged = vec![Compare::created(&kv.key, created), Compare::written(&kv.key, kv.mod_revision)];
        let put = PutRequest { key: kv.key.clone(), value: kv.value.clone(), lease: id, ignore_lease: false };
        let look = RangeRequest { key: kv.key.clone(), ..RangeRequest::default() };
        let moved = client.txn(unchanged, vec![Op::Put(put)], vec![Op::Range(look)]).await;
        let moved = moved.map_err(|fault| fault.into_error(client))?.value;
        if !moved.succeeded && moved.into_kvs().first().is_none_or(|kv| kv.lease != id) {
            session.leases.drop_own(&uses);
            continue;
        }
        session.leases.drop_empty(kv.lease);
        let (owner, token, term) = (handle.owner(), handle.token(), request.ttl);
        let mine = Mine::alone(kv.key.clone());
        let entry = Entry { mine, created, uses, until: sent.plus(term.max(left)) };
        let hold = Held::new(&session, name, request.signal.clone(), entry, None);
        hold.mind(None);
        return Ok(Grant { owner, token, sent, term: Some(term), pushed: false, hold });
    }
    Err(client.unavailable(format!("lock `{name}` changed all the time; try again")))
}
