//! Files on this machine: locks between processes, with no server. The default store.
//!
//! One file per lock in one directory. **The lock is the kernel's `flock` on that file.** The record in it
//! carries the fencing token and tells others who holds the lock. Only a detached lock is held by its record,
//! by the lease in it.
//!
//! - A held lock ends by its release, and with its process, by whatever signal. Then it is free at once. A
//!   stopped holder keeps it. The ttl matters only for detached locks.
//! - A detached lock outlives its process, and a reboot: it is on the disk before its handle is given out. It
//!   counts the same in every time namespace.
//! - A force-release takes the lock from the holder that it found, never from the one after it.
//! - Neither a forked child (without exec) nor an executed program keeps a lock. To let another process keep
//!   one on purpose, hand it a *duplicate* of the guard's lifeline.
//! - Waiters block in the kernel. Inside a process they are served in order; between processes the kernel
//!   chooses. A lock that is detached is polled.
//! - A lock file that cannot be read is reported and not touched.
//!
//! `file:` is in the user's state directory, `file:relative/path` in the working directory, and
//! `file:///absolute/path` as it says. `config.rs` has the parameters, SAFETY.md what breaks the promises.

mod acquire;
mod attach;
mod client;
mod config;
pub(crate) mod directory;
mod failure;
pub(crate) mod fork;
mod hold;
mod init;
pub(crate) mod keys;
mod listener;
mod local_queue;
pub(crate) mod lockfile;
mod operator;
mod record;
mod sweep;
mod timestamp;
mod waiters;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::attach::LeaseKey;
use self::client::Client;
use self::config::Config;
use crate::backend::{Backend, Capabilities, ForceRelease, Grant, Renewal, Request, Revoked, TryOutcome};
use crate::backends::StoreKind;
use crate::runtime::clock::Clock;
use crate::url::StoreUrl;
use crate::{Handle, Holder, Listing, Name, Result};

#[derive(Debug)]
struct Store(Arc<Client>);

/// The store's row in the registry.
pub(super) const STORE: StoreKind = StoreKind {
    parameters: config::PARAMETERS,
    init: Some(|url, what| Box::pin(init::init(url, what))),
    ..StoreKind::new("file", "files on this machine", &["file:", "file:///dir"], |url| Box::pin(connect(url)))
};

pub(super) async fn connect(url: StoreUrl) -> Result<Arc<dyn Backend>> {
    let client = Client::open(&Config::from_url(url)?)?;
    sweep::sweep(&client);
    Ok(Arc::new(Store(client)))
}

#[async_trait]
impl Backend for Store {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new(self.0.label.clone(), false, true, false)
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
        attach::renew(&self.0, &LeaseKey::of(handle), term).await
    }

    async fn release(&self, handle: &Handle) -> Result<bool> {
        attach::release(&self.0, &LeaseKey::of(handle)).await
    }

    async fn list(&self, prefix: &str) -> Result<Listing> {
        operator::list(&self.0, prefix)
    }

    async fn show(&self, name: &Name) -> Result<Option<Holder>> {
        operator::show(&self.0, name)
    }

    async fn force_release(&self, name: &Name, how: &ForceRelease) -> Result<Option<Revoked>> {
        operator::force_release(&self.0, name, how).await
    }

    async fn check(&self) -> Result<()> {
        Ok(())
    }

    async fn settle(&self) {}

    async fn close(&self) {
        self.0.listener.stop();
    }
}

#[cfg(test)]
mod tests;
