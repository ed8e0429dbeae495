//! One caller's way to a lock: attempts, each under an identity of its own, until one wins. Dropped before that, it
//! undoes itself.

use std::sync::Arc;
use std::time::Duration;

use super::ballot::{Ballot, Outcome};
use super::contest::{Contest, Standing};
use super::failure::Failure;
use super::farewell::{Farewell, Parting, Place};
use super::fleet::Line;
use super::hold::Held;
use super::keys::Keys;
use super::paper::{Kind, Paper};
use super::quorum::{Nodes, majority};
use super::{Store, milliseconds, revocation};
use crate::backend::{Grant, Identity, Request, TryOutcome};
use crate::backends::redis::driver::push::PushSlot as LetterBox;
use crate::backends::redis::record;
use crate::report::NoMajority;
use crate::runtime::clock::Moment;
use crate::wait::random;
use crate::{Error, FencingToken, Holder, Owner, Result, Verdict};

/// How long a caller that does not want to wait lets a contender go first.
const GATED: Duration = Duration::from_millis(10);
/// How long a waiter sleeps at most while too few nodes can vote.
const OUTAGE_RECHECK: Duration = Duration::from_millis(500);

pub(super) struct Claim<'a> {
    store: &'a Store,
    request: &'a Request,
    keys: Arc<Keys>,
    line: Arc<Line>,
    contest: Contest,
    /// At least this is proposed: more than any counter that was seen.
    hint: u64,
    /// For waiters, after a first attempt: where hints come in, and the place in the queues that brings them.
    queued: Option<(LetterBox, Place)>,
    current: Option<Current>,
}

/// The attempt under way.
struct Current {
    ballot: Arc<Ballot>,
    identity: Identity,
    letters: LetterBox,
}

impl<'a> Claim<'a> {
    pub(super) fn new(store: &'a Store, request: &'a Request) -> Self {
        store.warm_up();
        let keys = Arc::new(Keys::new(&store.fleet.config.start, request.name.as_str()));
        let line = store.fleet.line();
        Self { store, request, keys, line, contest: Contest::default(), hint: 0, queued: None, current: None }
    }

    /// Tries until the lock is ours or certainly somebody else's: two callers who meet must not both be sent away.
    pub(super) async fn try_once(&mut self) -> Result<TryOutcome> {
        let deadline = self.store.fleet.clock.now().plus(self.timeout());
        let mut identity = self.request.identity;
        loop {
            let failure = match self.attempt(identity).await? {
                Ok(grant) => return Ok(TryOutcome::Granted(grant)),
                Err(failure) => failure,
            };
            let (Some(standing), Some(holder)) = (failure.standing(), self.holder(&failure)) else {
                return Err(self.store.fleet.no_majority(failure.verdicts));
            };
            let now = self.store.fleet.clock.now();
            let mut pause = self.contest.pause(standing, failure.round_trip, random());
            match standing {
                Standing::Held { .. } => return Ok(TryOutcome::Busy(Some(holder))),
                // Who has the node that is asked first is about to get the lock, or not: all nodes will tell.
                Standing::Gated { .. } => pause = pause.min(crate::wait::jittered(GATED)),
                Standing::Split => {}
            }
            if now.plus(pause) >= deadline {
                return match failure.may_be_outage() {
                    true => Err(self.store.fleet.no_majority(failure.verdicts)),
                    false => Ok(TryOutcome::Busy(Some(holder))),
                };
            }
            tokio::time::sleep(pause).await;
            identity = Identity::fresh(&self.request.name);
        }
    }

    /// Waits until the lock is ours.
    pub(super) async fn wait(&mut self) -> Result<Grant> {
        let mut identity = self.request.identity;
        loop {
            let failure = match self.attempt(identity).await? {
                Ok(grant) => return Ok(grant),
                Err(failure) => failure,
            };
            let pause = match failure.standing() {
                Some(standing) => {
                    if let Some(holder) = self.holder(&failure) {
                        self.request.seen.note(holder);
                    }
                    self.request.seen.obstacle(None);
                    let pause = self.contest.pause(standing, failure.round_trip, random());
                    match failure.is_beside_foreigners() {
                        true => pause.min(self.contest.poll(random())),
                        false => pause,
                    }
                }
                None => self.sit_out(failure)?,
            };
            match &self.queued {
                Some((letters, _)) => tokio::select! {
                    () = letters.hint() => {}
                    () = tokio::time::sleep(pause) => {}
                },
                // Once more at once, and this time to be told when it is free.
                None => self.stand_in_line(),
            }
            identity = Identity::fresh(&self.request.name);
        }
    }

    /// From now on, attempts leave an entry in the queues of the nodes that deny them.
    fn stand_in_line(&mut self) {
        let waiter = Owner::fresh();
        let letters = self.store.fleet.inbox.open(waiter, Arc::default());
        let entry = format!("{} {waiter}", self.line.channel).into();
        self.queued = Some((letters, Place { entry, nodes: Nodes::default() }));
    }

    /// How long to wait for nodes in quarantine; the error if there is nothing to wait for.
    fn sit_out(&self, failure: Failure) -> Result<Duration> {
        let fleet = &self.store.fleet;
        let (mut ends, mut waiting) = (Vec::new(), 0);
        for (node, verdict) in fleet.nodes.iter().zip(&failure.verdicts) {
            if let Verdict::Quarantined { left, .. } = verdict {
                ends.push(*left);
                waiting += 1;
                tracing::info!(name = %self.request.name, node = node.label(), %verdict, "waiting for a node");
            }
        }
        let error = fleet.no_majority(failure.verdicts);
        let missing = majority(fleet.len()).saturating_sub(fleet.len() - failure.silent);
        if waiting < missing {
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

    fn timeout(&self) -> Duration {
        self.store.fleet.config.timeout.min(self.request.ttl / 2)
    }

    /// One attempt, undone if it fails.
    async fn attempt(&mut self, identity: Identity) -> Result<Result<Grant, Failure>> {
        let owner = identity.owner();
        let (store, request) = (self.store, self.request);
        let letters = store.fleet.inbox.open(owner, request.signal.clone());
        let entry = self.queued.as_ref().map(|(_, place)| place.entry.clone());
        let paper = Paper {
            name: request.name.clone(),
            keys: self.keys.clone(),
            value: record::entry(owner, &self.line.channel, &request.note).into(),
            ttl: request.ttl,
            px: milliseconds(store.fleet.config.key_life(request.ttl)),
            kind: Kind::Lock { entry },
        };
        let manner = self.contest.manner();
        let ballot = Ballot::cast(&store.fleet, &self.line, paper, manner, self.hint, self.timeout());
        self.current = Some(Current { ballot: ballot.clone(), identity, letters });
        match ballot.decision().await {
            Outcome::Won { token } => self.won(token).map(Ok),
            Outcome::Failed => {
                if let Some(current) = self.current.take() {
                    if let Some((_, place)) = &mut self.queued {
                        place.asked(&current.ballot.links());
                    }
                    self.undo(&current.ballot, None);
                }
                let failure = ballot.failure();
                if failure.standing().is_some()
                    && let Some(holder) = self.holder(&failure)
                {
                    // Before the caller's time may be over.
                    self.request.seen.note(holder);
                }
                ballot.hear_out().await;
                let failure = ballot.failure();
                let seen = failure.denials.iter().map(|denial| denial.counter + 1).max();
                self.hint = self.hint.max(seen.unwrap_or(0));
                Ok(Err(failure))
            }
        }
    }

    /// The lock is ours: hands everything over to a hold.
    fn won(&mut self, token: u64) -> Result<Grant> {
        let store = self.store;
        let token = FencingToken::new(token).ok_or_else(|| Error::Backend {
            store: store.fleet.config.label.clone(),
            source: format!("{token} is not a token").into(),
        })?;
        let Some(Current { ballot, identity, letters }) = self.current.take() else {
            return Err(Error::Unavailable {
                store: store.fleet.config.label.clone(),
                source: "this attempt has ended".into(),
            });
        };
        let place = self.queued.take().map(|(_, place)| place);
        let hold = Held::new(store, &ballot, identity.owner(), token, letters, self.line.clone(), place);
        Ok(Grant {
            identity,
            token,
            sent: ballot.sent,
            term: Some(self.request.ttl),
            pushed: false,
            hold: Arc::new(hold),
        })
    }

    fn holder(&self, failure: &Failure) -> Option<Holder> {
        let denial = failure.holder()?;
        Some(revocation::holder(&self.request.name, &denial.value, denial.ttl, Some(denial.counter)))
    }

    fn undo(&self, ballot: &Ballot, place: Option<Place>) {
        let life = self.store.fleet.config.key_life(self.request.ttl);
        let parting = Parting {
            keys: self.keys.clone(),
            value: ballot.paper.value.clone(),
            before: None,
            wake: false,
            place,
            settled_at: ballot.give_up_at,
            over_at: ballot.give_up_at.plus(life),
        };
        Farewell::say(&self.store.fleet, &self.store.keeper, parting, &ballot.links());
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let place = self.queued.take().map(|(_, place)| place);
        match self.current.take() {
            Some(current) => {
                current.ballot.abandon();
                self.undo(&current.ballot, place);
            }
            None => {
                if let Some(place) = place {
                    self.store.leave(&self.line, self.keys.clone(), place, self.request.ttl);
                }
            }
        }
    }
}

/// The end of a lease that counts from `sent`.
pub(super) fn valid_until(sent: Moment, term: Duration) -> Moment {
    sent.plus(term.saturating_sub(crate::runtime::lease::drift(term)))
}
