//! Locks on a majority of independent Redis servers, with a fencing token that the majority has agreed on:
//! `redlock://a,b,c`.
//!
//! A lock is the key `lock:NAME` on each node, as other Redlock clients use it. A node grants it together
//! with a counter that it raises in the same step. The token is the largest counter of those granted, and the
//! lock is ours when a majority has confirmed exactly that number while its key was ours. Mostly that is one
//! round trip, because counters follow the clocks, and the client's proposal keeps them in step. A node that
//! may have lost data does not vote until every lock that it may have granted has ended. SAFETY.md states
//! what that is worth; docs/proofs/redlock.md proves it.
//!
//! - `quorum.rs`, `retry.rs`: the decisions, pure.
//! - `request.rs`: how all nodes are asked; `nodes.rs`, `node.rs`, `session.rs`: over what.
//! - `attempt.rs`, `renewal.rs`, `release.rs`: what they are asked for: to grant, to keep, to give back.

mod acquire;
mod acquire_request;
mod attach;
mod attempt;
mod config;
mod hold;
mod init;
mod node;
mod nodes;
mod operator;
mod pool;
mod quarantine;
mod quorum;
mod read;
mod record;
mod release;
mod renewal;
mod request;
mod retry;
mod session;
mod waiters;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::config::Config;
use self::nodes::Nodes;
use self::quarantine::Standing;
use self::session::GreetMode;
use crate::backend::{Backend, Capabilities, ForceRelease, Grant, Renewal, Request, Revoked, TryOutcome};
use crate::backends::{Init, StoreKind};
use crate::runtime::clock::Clock;
use crate::url::StoreUrl;
use crate::{Error, Handle, Holder, Listing, Name, Result, Verdict};

pub(super) use self::config::default_ttl;
pub(super) use self::init::init;

#[derive(Debug)]
struct Store(Arc<Nodes>);

/// The store's row in the registry.
pub(super) const STORE: StoreKind = StoreKind {
    default_port: Some(6379),
    independent_nodes: true,
    parameters: config::PARAMETERS,
    init: Some(|url, what| Box::pin(init(url, what == Init::Change))),
    default_ttl,
    ..StoreKind::new("redlock", "several Redis (Redlock)", &["redlock://a,b,c"], |url| Box::pin(connect(url)))
};

pub(super) async fn connect(url: StoreUrl) -> Result<Arc<dyn Backend>> {
    let nodes = Arc::new(Nodes::new(Config::from_url(url)?, Clock::system(), GreetMode::MEET)?);
    let sessions = nodes.sessions(nodes.deadline(), read::GRACE).await;
    if let Some((node, verdict)) = nodes.each.iter().find_map(|node| Some((node, node.duplicate()?))) {
        return Err(Error::config(format!("{}: {} {verdict}", nodes.config.label, node.label())));
    }
    // A node in quarantine will vote; one of another deployment will not.
    let usable = sessions.into_iter().map(|session| {
        let session = session?;
        match session.standing(&session.node_key, &nodes.config, nodes.clock.now()) {
            Standing::Refused(refused @ Verdict::Refused { .. }) => Err(refused),
            _ => Ok(()),
        }
    });
    read::enough(&nodes, &usable.collect::<Vec<_>>())?;
    Ok(Arc::new(Store(nodes)))
}

impl Drop for Store {
    fn drop(&mut self) {
        self.0.close();
    }
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
        self.0.close();
    }
}
