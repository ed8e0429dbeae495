//! Locks on a majority of independent Redis servers, with a fencing token that the majority has agreed on.
//!
//! A lock is the key `lock:NAME` on each node, as other Redlock clients use it. A node grants it together with a counter that
//! it raises in the same step; the token is the largest counter of those granted, and the lock is ours when a majority
//! has confirmed exactly that number while its key was ours. Mostly that is one round trip, because counters follow
//! the clocks, and the client's proposal keeps them in step. A node that may have lost data does not vote until every
//! lock that it may have granted has ended. SAFETY.md states what that is worth, and proves it.
//!
//! - `quorum.rs`, `contest.rs`: the decisions, pure.
//! - `ballot.rs`, `claim.rs`, `hold.rs`, `renewal.rs`, `mending.rs`, `farewell.rs`: the shell around them: an attempt, a
//!   caller's attempts, a held lock, extending it, making it anew where it is gone, and giving it back.
//! - `attach.rs`: detached locks, by their handles.
//! - `fleet.rs`, `node.rs`: connections, greetings, clocks.

mod attach;
mod ballot;
mod claim;
mod config;
mod contest;
mod failure;
mod farewell;
mod fleet;
mod hold;
mod init;
mod keys;
mod mending;
mod node;
mod operator;
mod paper;
mod quorum;
mod renewal;
mod revocation;
mod trace;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use self::claim::Claim;
use self::config::Config;
use self::farewell::{Farewell, Parting, Place};
use self::fleet::{Fleet, Line, Reach};
use self::keys::Keys;
use self::quorum::majority;
use self::renewal::Renewals;
use super::redis::{self, milliseconds};
use crate::backends::{Init, StoreKind};
use crate::backend::{Backend, Capabilities, ForceRelease, Grant, Renewal, Request, Revoked, TryOutcome};
use crate::runtime::clock::Clock;
use crate::runtime::keeper::Keeper;
use crate::url::StoreUrl;
use crate::{Error, Handle, Holder, Listing, Name, Result, Verdict};

pub(super) use self::config::default_ttl;
pub(super) use self::init::init;

#[derive(Debug)]
struct Store {
    fleet: Arc<Fleet>,
    keeper: Arc<Keeper>,
    renewals: Arc<Renewals>,
    /// The keeper has been told to connect.
    warm: AtomicBool,
}

/// The store's row in the registry.
pub(super) const STORE: StoreKind = StoreKind {
    default_port: Some(6379),
    independent_nodes: true,
    init: Some(|url, what| Box::pin(init(url, what == Init::Change))),
    default_ttl,
    ..StoreKind::new("several Redis (Redlock)", &["redlock://a,b,c"], |url| Box::pin(connect(url)))
};

pub(super) async fn connect(url: StoreUrl) -> Result<Arc<dyn Backend>> {
    let clock = Clock::system();
    let fleet = Arc::new(Fleet::new(Config::from_url(url)?, clock.clone())?);
    let deadline = clock.now().plus(fleet.config.timeout);
    let reaches = fleet.settle(&fleet.line(), deadline).await;
    if let Some(verdict) = fleet.nodes.iter().find_map(|node| Some((node.label(), node.twin()?))) {
        return Err(Error::config(format!(
            "{} is not usable: {} {}",
            fleet.config.label, verdict.0, verdict.1
        )));
    }
    // One in quarantine will vote; one of another deployment will not.
    let verdict = |reach: Reach| match reach {
        Reach::Up(link) => {
            match fleet.config.standing(&link.said, &link.votes, link.node.time(clock.now())) {
                Some(refused @ Verdict::Refused { .. }) => refused,
                _ => Verdict::Granted,
            }
        }
        other => other.verdict(),
    };
    let verdicts: Vec<_> = reaches.into_iter().map(verdict).collect();
    if verdicts.iter().filter(|verdict| **verdict == Verdict::Granted).count() < majority(fleet.len()) {
        return Err(fleet.no_majority(verdicts));
    }
    let keeper = Keeper::of(&clock)?;
    let renewals = Arc::new(Renewals::new(keeper.clone()));
    Ok(Arc::new(Store { fleet, keeper, renewals, warm: AtomicBool::new(false) }))
}

impl Store {
    /// Lets the keeper connect before its first renewal, which may be a hasty one.
    fn warm_up(&self) {
        if !self.warm.load(Ordering::Relaxed) && !self.warm.swap(true, Ordering::Relaxed) {
            let fleet = self.fleet.clone();
            self.keeper.spawn(async move {
                let line = fleet.line();
                let deadline = fleet.clock.now().plus(fleet.config.timeout);
                fleet.settle(&line, deadline).await;
            });
        }
    }

    fn check_name(&self, name: &Name) -> Result<()> {
        redis::keys::check(&self.fleet.config.start, name)
    }

    /// Takes a waiter for a lock of this ttl out of the queues.
    fn leave(&self, line: &Arc<Line>, keys: Arc<Keys>, place: Place, ttl: Duration) {
        let now = self.fleet.clock.now();
        let link = |node| match self.fleet.reach(line, node, now, false) {
            Reach::Up(link) => Some(link),
            _ => None,
        };
        let links: Vec<_> = (0..self.fleet.len()).filter_map(link).collect();
        // Gives back a lock that nobody has, as no value is an entry: only that goes.
        let parting = Parting {
            keys,
            value: place.entry.clone(),
            before: None,
            wake: false,
            place: Some(place),
            settled_at: now,
            over_at: now.plus(self.fleet.config.key_life(ttl)),
        };
        Farewell::say(&self.fleet, &self.keeper, parting, &links);
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.fleet.close();
    }
}

#[async_trait]
impl Backend for Store {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new(self.fleet.config.label.clone(), true, true, false)
    }

    fn clock(&self) -> &Clock {
        &self.fleet.clock
    }

    async fn try_acquire(&self, request: &Request) -> Result<TryOutcome> {
        self.fleet.config.check_ttl(request.ttl)?;
        self.check_name(&request.name)?;
        Claim::new(self, request).try_once().await
    }

    async fn acquire(&self, request: &Request) -> Result<Grant> {
        self.fleet.config.check_ttl(request.ttl)?;
        self.check_name(&request.name)?;
        Claim::new(self, request).wait().await
    }

    async fn attach(&self, handle: &Handle, request: &Request) -> Result<Grant> {
        self.fleet.config.check_ttl(request.ttl)?;
        self.check_name(handle.name())?;
        attach::attach(self, handle, request).await
    }

    async fn renew(&self, handle: &Handle, term: Duration) -> Result<Renewal> {
        self.fleet.config.check_ttl(term)?;
        self.check_name(handle.name())?;
        attach::renew(self, handle, term).await
    }

    async fn release(&self, handle: &Handle) -> Result<bool> {
        self.check_name(handle.name())?;
        attach::release(self, handle).await
    }

    async fn list(&self, prefix: &str) -> Result<Listing> {
        operator::list(self, prefix).await
    }

    async fn show(&self, name: &Name) -> Result<Option<Holder>> {
        self.check_name(name)?;
        operator::show(self, name).await
    }

    async fn force_release(&self, name: &Name, how: &ForceRelease) -> Result<Option<Revoked>> {
        self.check_name(name)?;
        operator::force_release(self, name, how).await
    }

    async fn check(&self) -> Result<()> {
        operator::check(self).await
    }

    async fn settle(&self) {
        self.fleet.background.done().await;
    }

    async fn close(&self) {
        self.fleet.close();
    }
}
