//! A lock held on a majority of nodes: how it is extended, and how it is given back.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::Store;
use super::ballot::Ballot;
use super::claim::valid_until;
use super::farewell::{Farewell, Parting, Place};
use super::fleet::{Fleet, Line};
use super::keys::Keys;
use super::renewal::{self, Renewals, Renewing};
use super::trace::Trace;
use crate::backend::{Hold, Renewal};
use crate::backends::redis::driver::push::PushSlot as LetterBox;
use crate::runtime::keeper::Keeper;
use crate::runtime::sync::lock;
use crate::{FencingToken, Owner, Result};

#[derive(Debug)]
pub(super) struct Held {
    fleet: Arc<Fleet>,
    keeper: Arc<Keeper>,
    renewals: Arc<Renewals>,
    owner: Owner,
    token: FencingToken,
    keys: Arc<Keys>,
    value: Arc<str>,
    /// The place in the queues in which it was waited for.
    place: Option<Place>,
    trace: Arc<Trace>,
    /// Open for revocations while the lock is held, on the channel that the value names.
    _letters: LetterBox,
    _line: Arc<Line>,
}

impl Held {
    pub(super) fn new(
        store: &Store,
        ballot: &Ballot,
        owner: Owner,
        token: FencingToken,
        letters: LetterBox,
        line: Arc<Line>,
        place: Option<Place>,
    ) -> Self {
        let (paper, life) = (&ballot.paper, store.fleet.config.key_life(ballot.paper.ttl));
        let over_at = ballot.give_up_at.plus(life);
        let until = valid_until(ballot.sent, paper.ttl);
        let trace = Trace::new(ballot.links(), until, ballot.give_up_at, over_at);
        Self::assemble(
            store,
            owner,
            token,
            paper.keys.clone(),
            paper.value.clone(),
            trace,
            letters,
            line,
            place,
        )
    }

    #[allow(clippy::too_many_arguments)] // all its fields
    pub(super) fn assemble(
        store: &Store,
        owner: Owner,
        token: FencingToken,
        keys: Arc<Keys>,
        value: Arc<str>,
        trace: Trace,
        letters: LetterBox,
        line: Arc<Line>,
        place: Option<Place>,
    ) -> Self {
        Self {
            fleet: store.fleet.clone(),
            keeper: store.keeper.clone(),
            renewals: store.renewals.clone(),
            owner,
            token,
            keys,
            value,
            place,
            trace: Arc::new(trace),
            _letters: letters,
            _line: line,
        }
    }
}

#[async_trait]
impl Hold for Held {
    async fn renew(&self, term: Duration) -> Result<Renewal> {
        self.fleet.config.check_ttl(term)?;
        let one = Renewing {
            keys: self.keys.clone(),
            value: self.value.clone(),
            owner: self.owner,
            token: self.token,
            term,
            trace: self.trace.clone(),
        };
        renewal::renew(&self.fleet, &self.renewals, one).await
    }

    async fn release(&self) -> Result<bool> {
        let (parting, links) = {
            let mut sent = lock(&self.trace.0);
            sent.closed = true;
            let parting = Parting {
                keys: self.keys.clone(),
                value: self.value.clone(),
                before: None,
                wake: true,
                place: self.place.clone(),
                settled_at: sent.settled_at(),
                over_at: sent.over_at(),
            };
            (parting, sent.links())
        };
        Farewell::say(&self.fleet, &self.keeper, parting, &links).accepted().await
    }

    async fn detach(&self, term: Duration) -> Result<Renewal> {
        let renewal = self.renew(term).await?;
        // Whoever has the handle may give the lock back from now on: nothing may follow that makes it anew.
        lock(&self.trace.0).closed |= matches!(renewal, Renewal::Renewed { .. });
        Ok(renewal)
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
