//! One caller's way to a lock: attempts, each under an identity of its own, until one wins. Dropped before
//! that, it undoes itself.

use std::sync::Arc;
use std::time::Duration;

use super::acquire_request::{AcquireRequest, Kind};
use super::attempt::{Decision, Failure, QuorumAttempt};
use super::hold::{Held, HeldLock, InFlight};
use super::nodes::{Availability, Nodes, RuntimeSlot};
use super::quorum::{NodeSet, majority};
use super::record::queue_entry;
use super::release::{QueueEntry, Release, ReleaseRequest, Then};
use super::retry::{AttemptBackoff, Obstacle};
use crate::backend::{Grant, Identity, Request, TryOutcome};
use crate::backends::redis::keys::KeySet;
use crate::backends::redis::push::PushSlot;
use crate::backends::redis::{milliseconds, record};
use crate::report::NoMajority;
use crate::runtime::lease::valid_until;
use crate::wait::{jittered, random};
use crate::{Error, FencingToken, Owner, Result, Verdict};

/// How long a caller that does not want to wait lets another contender go first.
const FIRST_NODE: Duration = Duration::from_millis(10);
/// The longest pause of a waiter while too few nodes can vote.
const OUTAGE_RECHECK: Duration = Duration::from_millis(500);
/// The longest pause while clients of other make are in the way: they poll, and wake nobody. A waiter that
/// asks less often than they do hardly ever meets a free lock.
const FOREIGN_RECHECK: Duration = Duration::from_millis(30);

/// Tries until the lock is ours or certainly somebody else's: of two callers that meet one must get it.
pub(super) async fn try_acquire(nodes: &Arc<Nodes>, request: &Request) -> Result<TryOutcome> {
    let mut acquire = Acquire::new(nodes, request)?;
    let deadline = nodes.clock.now().plus(acquire.timeout());
    let mut identity = request.identity;
    loop {
        let failure = match acquire.attempt(identity).await? {
            Ok(grant) => return Ok(TryOutcome::Granted(grant)),
            Err(failure) => failure,
        };
        let (Some(obstacle), Some(holder)) = (failure.obstacle, failure.holder) else {
            return Err(nodes.no_majority(failure.verdicts));
        };
        let mut pause = acquire.backoff.pause(obstacle, failure.round_trip, random());
        match obstacle {
            Obstacle::Held { .. } => return Ok(TryOutcome::Busy(Some(holder))),
            // The holder of the first node is about to get the lock, or not: all nodes will tell.
            Obstacle::FirstNode { .. } => pause = pause.min(jittered(FIRST_NODE)),
            Obstacle::Split => {}
        }
        if nodes.clock.now().plus(pause) >= deadline {
            return match failure.may_be_outage {
                true => Err(nodes.no_majority(failure.verdicts)),
                false => Ok(TryOutcome::Busy(Some(holder))),
            };
        }
        tokio::time::sleep(pause).await;
        identity = Identity::fresh(&request.name);
    }
}

/// Waits until the lock is ours.
pub(super) async fn acquire(nodes: &Arc<Nodes>, request: &Request) -> Result<Grant> {
    let mut acquire = Acquire::new(nodes, request)?;
    let mut identity = request.identity;
    loop {
        let failure = match acquire.attempt(identity).await? {
            Ok(grant) => return Ok(grant),
            Err(failure) => failure,
        };
        let pause = match failure.obstacle {
            Some(obstacle) => {
                acquire.note_holder(&failure);
                request.seen.obstacle(None);
                let pause = acquire.backoff.pause(obstacle, failure.round_trip, random());
                match failure.is_foreign {
                    true => pause.min(jittered(FOREIGN_RECHECK)),
                    false => pause,
                }
            }
            None => acquire.outage_pause(failure)?,
        };
        match &acquire.queued {
            Some((pushes, _)) => tokio::select! {
                () = pushes.hint() => {}
                () = tokio::time::sleep(pause) => {}
            },
            // Once more at once, and this time with a place in the queues.
            None => acquire.join_queues(),
        }
        identity = Identity::fresh(&request.name);
    }
}

struct Acquire<'a> {
    nodes: &'a Arc<Nodes>,
    request: &'a Request,
    keys: Arc<KeySet>,
    slot: Arc<RuntimeSlot>,
    backoff: AttemptBackoff,
    /// At least this is proposed as a token: more than any counter that was seen.
    least: u64,
    /// For waiters, after a first attempt: where pushes arrive, and the place in the queues that brings them.
    queued: Option<(PushSlot, QueueEntry)>,
    /// The attempt under way.
    current: Option<Current>,
}

struct Current {
    attempt: Arc<QuorumAttempt>,
    identity: Identity,
    pushes: PushSlot,
}

impl<'a> Acquire<'a> {
    fn new(nodes: &'a Arc<Nodes>, request: &'a Request) -> Result<Self> {
        nodes.config.check_ttl(request.ttl)?;
        nodes.check_name(&request.name)?;
        nodes.connect_keeper();
        let (keys, slot) = (nodes.keys(&request.name), nodes.slot());
        let backoff = AttemptBackoff::default();
        Ok(Self { nodes, request, keys, slot, backoff, least: 0, queued: None, current: None })
    }

    fn timeout(&self) -> Duration {
        self.nodes.config.timeout.min(self.request.ttl / 2)
    }

    /// From now on, attempts leave an entry in the queues of the nodes that deny them.
    fn join_queues(&mut self) {
        let waiter = Owner::fresh();
        let pushes = self.nodes.router.open(waiter, Arc::default());
        let entry = queue_entry(&self.slot.channel, waiter, &self.request.note).into();
        self.queued = Some((pushes, QueueEntry { entry, nodes: NodeSet::default() }));
    }

    fn note_holder(&self, failure: &Failure) {
        if let Some(holder) = &failure.holder {
            self.request.seen.note(holder.clone());
        }
    }

    /// How long to wait for nodes in quarantine; the error if no quarantine that ends would help.
    fn outage_pause(&self, failure: Failure) -> Result<Duration> {
        let (nodes, mut ends) = (self.nodes, Vec::new());
        for (node, verdict) in nodes.each.iter().zip(&failure.verdicts) {
            if let Verdict::Quarantined { left, .. } = verdict {
                ends.push(*left);
                let (name, node) = (&self.request.name, node.label());
                tracing::info!(%name, node, %verdict, "waiting for a node");
            }
        }
        let error = nodes.no_majority(failure.verdicts);
        let missing = majority(nodes.len()).saturating_sub(nodes.len() - failure.silent);
        if ends.len() < missing {
            return Err(error);
        }
        ends.sort_unstable();
        let end = ends.get(missing.saturating_sub(1)).copied().unwrap_or_default();
        if let Error::Unavailable { source, .. } = error
            && source.is::<NoMajority>()
        {
            self.request.seen.obstacle(Some(source));
        }
        Ok(end.clamp(Duration::from_millis(1), OUTAGE_RECHECK))
    }

    /// One attempt, undone if it fails.
    async fn attempt(&mut self, identity: Identity) -> Result<Result<Grant, Failure>> {
        let (nodes, request, owner) = (self.nodes, self.request, identity.owner());
        let pushes = nodes.router.open(owner, request.signal.clone());
        let entry = self.queued.as_ref().map(|(_, queued)| queued.entry.clone());
        let ask = AcquireRequest {
            name: request.name.clone(),
            keys: self.keys.clone(),
            value: record::entry(owner, &self.slot.channel, &request.note).into(),
            ttl: request.ttl,
            px: milliseconds(nodes.config.key_life(request.ttl)),
            kind: Kind::Lock { entry },
        };
        let (order, timeout) = (self.backoff.order(), self.timeout());
        let attempt = QuorumAttempt::start(nodes, &self.slot, ask, order, self.least, timeout);
        self.current = Some(Current { attempt: attempt.clone(), identity, pushes });
        if let Decision::Won { token } = attempt.decision().await {
            return self.granted(token).map(Ok);
        }
        if let Some((_, queued)) = &mut self.queued {
            attempt.sessions().iter().for_each(|session| queued.nodes.insert(session.node.index));
        }
        if let Some(current) = self.current.take() {
            self.undo(&current.attempt, None);
        }
        let failure = attempt.failure();
        if failure.obstacle.is_some() {
            // Before the caller's time may be over.
            self.note_holder(&failure);
        }
        attempt.wait_for_rest().await;
        let failure = attempt.failure();
        self.least = self.least.max(failure.counter.map_or(0, |counter| counter + 1));
        Ok(Err(failure))
    }

    /// The lock is ours: hands everything over to a hold.
    fn granted(&mut self, token: u64) -> Result<Grant> {
        let (nodes, ttl) = (self.nodes, self.request.ttl);
        // What is not taken is undone by the drop.
        let valid = FencingToken::new(token);
        let (Some(token), Some(current)) = (valid, valid.and_then(|_| self.current.take())) else {
            return Err(Error::Backend {
                store: nodes.config.label.clone(),
                source: format!("{token} is not a token").into(),
            });
        };
        let Current { attempt, identity, pushes } = current;
        let over_at = attempt.give_up_at.plus(nodes.config.key_life(ttl));
        let until = valid_until(attempt.sent, ttl);
        let in_flight = InFlight::new(attempt.sessions(), until, attempt.give_up_at, over_at);
        let (keys, value) = (self.keys.clone(), attempt.request.value.clone());
        let lock = HeldLock::new(keys, value, identity.owner(), token, in_flight);
        let hold = Held {
            nodes: nodes.clone(),
            lock,
            entry: self.queued.take().map(|(_, queued)| queued),
            _pushes: pushes,
            _slot: self.slot.clone(),
        };
        Ok(Grant {
            identity,
            token,
            sent: attempt.sent,
            term: Some(ttl),
            pushed: false,
            hold: Arc::new(hold),
        })
    }

    /// Gives back what an attempt may have been granted.
    fn undo(&self, attempt: &QuorumAttempt, entry: Option<QueueEntry>) {
        let life = self.nodes.config.key_life(self.request.ttl);
        let request = ReleaseRequest { entry, ..attempt.undo(life, Then::Quiet) };
        Release::send(self.nodes, request, &attempt.sessions());
    }

    /// Leaves the queues. No lock has the value of an entry, so nothing else is given back.
    fn leave(&self, queued: QueueEntry) {
        let (nodes, now) = (self.nodes, self.nodes.clock.now());
        let sessions =
            (0..nodes.len()).filter_map(|node| match nodes.session(&self.slot, node, now, false) {
                Availability::Open(session) => Some(session),
                Availability::Opening | Availability::Down(_) => None,
            });
        let sessions: Vec<_> = sessions.collect();
        let (keys, value) = (self.keys.clone(), queued.entry.clone());
        let life = nodes.config.key_life(self.request.ttl);
        let request = ReleaseRequest::new(keys, value, Then::Quiet, now, life);
        let request = ReleaseRequest { entry: Some(queued), ..request };
        Release::send(self.nodes, request, &sessions);
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        let queued = self.queued.take().map(|(_, queued)| queued);
        match self.current.take() {
            Some(current) => {
                current.attempt.abandon();
                self.undo(&current.attempt, queued);
            }
            None => queued.into_iter().for_each(|queued| self.leave(queued)),
        }
    }
}
