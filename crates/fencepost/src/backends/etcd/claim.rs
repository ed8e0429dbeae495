//! From a request to a grant: a seat in the line of this client, a lease, a place in the queue, and the wait for it to be
//! the first.
//!
//! Each attempt is a task on the keeper's runtime: what it has begun it brings to an end, whatever becomes of its caller.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::hold::{Entry, Held};
use super::keys::Keys;
use super::leases::{Ours, Use};
use super::place::{Place, Refusal, View};
use super::proto::KeyValue;
use super::record::{self, Record};
use super::seats::Seat;
use super::session::Session;
use crate::backend::{Grant, Identity, Request, TryOutcome};
use crate::runtime::clock::Moment;
use crate::{Error, Holder, Result};

/// How many leases are tried before it counts as a fault.
const TRIES: u32 = 8;

pub(super) struct Claim {
    pub(super) session: Arc<Session>,
    pub(super) request: Request,
    pub(super) keys: Keys,
    pub(super) record: Record,
    started: Moment,
}

impl Claim {
    pub(super) fn new(session: Arc<Session>, request: Request) -> Self {
        let keys = Keys::new(&session.client.config.prefix, &request.name);
        let record = Record::new(request.owner(), &request.note);
        let started = session.clock.now();
        Self { session, request, keys, record, started }
    }

    /// Takes the lock if it is free now.
    pub(super) async fn once(self) -> Result<TryOutcome> {
        let mut seat = self.session.seats.enter(&self.request.name);
        let deadline = self.started.plus(self.session.client.config.timeout);
        while !seat.try_front() {
            if let Some(holder) = self.session.show(&self.request.name).await? {
                return Ok(TryOutcome::Busy(Some(holder)));
            }
            // Somebody of this client is just about to take it, or has just given it back.
            if self.session.clock.within(Some(deadline), seat.changes()).await.is_none() {
                return Err(self.session.client.unavailable("another try of this process did not end"));
            }
        }
        for _ in 0..TRIES {
            let uses = self.lease().await?;
            match self.take_if_free(&uses).await {
                Ok((place, View::First)) => return self.grant(place, seat, false).map(TryOutcome::Granted),
                Ok((place, View::Behind { holder, .. })) => {
                    let ours = self.ours(place.created);
                    self.session.leave(place.uses, place.mine, ours, seat);
                    return Ok(TryOutcome::Busy(Some(self.describe(&holder).await)));
                }
                Err(Refusal::Held(holder)) => {
                    return Ok(TryOutcome::Busy(Some(self.describe(&holder).await)));
                }
                Err(Refusal::OtherLease) | Ok((_, View::Gone)) => {}
                Err(Refusal::Error(error)) => return Err(error),
            }
        }
        Err(self.no_lease())
    }

    /// Waits for the lock; gives up when `caller` is gone.
    pub(super) async fn wait(mut self, mut caller: oneshot::Receiver<()>) -> Result<Grant> {
        let gone = || Error::invalid("nobody waits for this lock any more");
        let mut seat = self.session.seats.enter(&self.request.name);
        tokio::select! {
            _ = &mut caller => return Err(gone()),
            () = seat.front(&self.request.seen) => {}
        }
        let (mut waited, mut tries) = (false, 0);
        loop {
            let uses = self.lease().await?;
            let (place, view) = match self.enqueue(uses).await {
                Ok(found) => {
                    self.request.seen.answered();
                    tries = 0;
                    found
                }
                Err(Refusal::Error(error)) => {
                    // There was a lease: if only this request failed, the caller waits on.
                    if let Error::Unavailable { source, .. } = &error {
                        self.request.seen.obstacle(Some(source.to_string().into()));
                    }
                    return Err(error);
                }
                Err(Refusal::OtherLease | Refusal::Held(_)) if tries < TRIES => {
                    tries += 1;
                    continue;
                }
                Err(_) => return Err(self.no_lease()),
            };
            let outcome = match view {
                View::First => Ok(true),
                View::Gone => Ok(false),
                View::Behind { holder, ahead } => {
                    waited = true;
                    tokio::select! {
                        _ = &mut caller => Err(gone()),
                        outcome = self.stand(&place, &seat, holder, ahead) => outcome,
                    }
                }
            };
            match outcome {
                Ok(true) => return self.grant(place, seat, waited),
                // An operator has sent everybody to the end of the queue, so that the next token is larger than theirs; or
                // our lease ended, while this process stood still. The wait goes on, under a new identity.
                Ok(false) => self.begin_anew(),
                Err(error) => {
                    let ours = self.ours(place.created);
                    self.session.leave(place.uses, place.mine, ours, seat);
                    return Err(error);
                }
            }
        }
    }

    fn begin_anew(&mut self) {
        self.request.identity = Identity::fresh(&self.request.name);
        self.record = Record::new(self.request.owner(), &self.request.note);
        self.started = self.session.clock.now();
    }

    async fn lease(&self) -> Result<Use> {
        self.session
            .leases
            .get(self.request.ttl)
            .await
            .map_err(|fault| fault.into_error(&self.session.client))
    }

    fn no_lease(&self) -> Error {
        self.session.client.unavailable("its leases end as soon as they are made")
    }

    async fn describe(&self, kv: &KeyValue) -> Holder {
        self.session.describe(&self.request.name, kv).await
    }

    /// Notes who holds the lock, for us and for those behind us.
    pub(super) async fn tell(&self, seat: &Seat, kv: &KeyValue) {
        let holder = self.describe(kv).await;
        self.request.seen.note(holder.clone());
        seat.note(holder);
    }

    /// Our key, which nobody has written into since it was created.
    fn ours(&self, created: i64) -> Ours {
        Ours { created, owner: self.record.owner, written: created }
    }

    fn grant(&self, place: Place, seat: Seat, waited: bool) -> Result<Grant> {
        let Place { uses, mine, created } = place;
        let Some(token) = record::token(created) else {
            self.session.leave(uses, mine, self.ours(created), seat);
            let (store, source) =
                (self.session.client.config.label.clone(), "its revision is no token".into());
            return Err(Error::Backend { store, source });
        };
        let (sent, term) = (uses.lease.sent(), self.request.ttl);
        let kv = KeyValue { value: self.record.to_bytes(), create_revision: created, ..KeyValue::default() };
        seat.note(record::holder(&self.request.name, &kv, Some(term)));
        let (name, identity, signal) =
            (&self.request.name, self.request.identity, self.request.signal.clone());
        let until = sent.plus(term);
        let (owner, seat) = (identity.owner(), Some(seat));
        let since = created;
        let entry = Entry { owner, before: None, mine, created, since, uses, until, seat, turn: None };
        let hold = Held::new(&self.session, name, signal, entry);
        hold.mind(waited.then(|| self.record.clone()));
        // The lease, from whose last request validity counts, may be older than this claim.
        Ok(Grant { identity, token, sent, term: Some(term), pushed: sent < self.started, hold })
    }
}
