//! From a request to a grant. One transaction puts our key into the queue of the name and reads who is ahead; if nobody
//! is, the lock is ours. A waiter watches the key right ahead of it, and its own.
//!
//! Each attempt is a task on the keeper's runtime: what it has begun it brings to an end, whatever becomes of its caller.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::client::Fault;
use super::hold::{Entry, Held};
use super::keys::Keys;
use super::leases::{Mine, Use};
use super::link::{Sight, Watch};
use super::proto::{Compare, KeyValue, PutRequest, RangeRequest, Request as Op};
use super::record::{self, Record};
use super::seats::Seat;
use super::session::Session;
use crate::backend::{Attempt, Grant, Request};
use crate::clock::Moment;
use crate::{Error, Holder, Loss, Result};

/// How often a waiter looks for itself, in case that a watch is dead and nobody has noticed.
const RECHECK: Duration = Duration::from_secs(5);
/// How many leases are tried before it counts as a fault.
const TRIES: u32 = 8;
/// Between two looks while the cluster does not answer.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a waiter sits out an outage of the cluster.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Claim {
    session: Arc<Session>,
    request: Request,
    keys: Keys,
    record: Record,
    started: Moment,
}

/// Our key in the queue.
struct Place {
    uses: Use,
    mine: Mine,
    created: i64,
}

/// What stands between us and the lock.
enum View {
    /// Nothing: we are the first.
    First,
    /// Others; the one that holds the lock, and the key right ahead of us.
    Behind { holder: KeyValue, ahead: Vec<u8> },
    /// Our key is gone.
    Gone,
}

impl Claim {
    pub(super) fn new(session: Arc<Session>, request: Request) -> Self {
        let keys = Keys::new(&session.client.config.prefix, &request.name);
        let record = Record::new(request.owner, &request.note);
        let started = session.clock.now();
        Self { session, request, keys, record, started }
    }

    /// Takes the lock if it is free now.
    pub(super) async fn once(self) -> Result<Attempt> {
        let mut seat = self.session.seats.enter(&self.request.name);
        let deadline = self.started.plus(self.session.client.config.timeout);
        while !seat.try_front() {
            if let Some(holder) = self.session.show(&self.request.name).await? {
                return Ok(Attempt::Busy(Some(holder)));
            }
            // Somebody of this client is just about to take it, or has just given it back.
            if self.session.clock.within(Some(deadline), seat.changes()).await.is_none() {
                return Err(self.session.client.unavailable("another try of this process did not end"));
            }
        }
        for _ in 0..TRIES {
            let uses = self.lease().await?;
            match self.take_if_free(&uses).await {
                Ok((place, View::First)) => return self.grant(place, seat, false).map(Attempt::Granted),
                Ok((place, View::Behind { holder, .. })) => {
                    self.session.leave(place.uses, place.mine, place.created, seat);
                    return Ok(Attempt::Busy(Some(self.describe(&holder).await)));
                }
                Err(Refusal::Held(holder)) => return Ok(Attempt::Busy(Some(self.describe(&holder).await))),
                Err(Refusal::OtherLease) | Ok((_, View::Gone)) => {}
                Err(Refusal::Error(error)) => return Err(error),
            }
        }
        Err(self.no_lease())
    }

    /// Waits for the lock; gives up when `caller` is gone.
    pub(super) async fn wait(self, mut caller: oneshot::Receiver<()>) -> Result<Grant> {
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
                Ok(found) => found,
                Err(Refusal::Error(error)) => return Err(error),
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
                // An operator has sent everybody to the end of the queue: the next token has to be larger than theirs.
                Ok(false) => {
                    if let Err(Fault::NoLease) = self.session.leases.keep_alive(&place.uses.lease).await {
                        return Err(Error::lost(&self.request.name, Loss::SessionEnded));
                    }
                }
                Err(error) => {
                    self.session.leave(place.uses, place.mine, place.created, seat);
                    return Err(error);
                }
            }
        }
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

    // --- requests --------------------------------------------------------------------------------------------------

    fn put(&self, key: &[u8], uses: &Use) -> Op {
        let (key, value) = (key.to_vec(), self.record.to_bytes());
        Op::Put(PutRequest { key, value, lease: uses.lease.id, ignore_lease: false })
    }

    fn read_all(&self, max_create_revision: i64) -> Op {
        let (key, range_end) = self.keys.range();
        Op::Range(RangeRequest { key, range_end, max_create_revision })
    }

    /// Takes the lock in one step if nobody at all contends for it, and else does nothing, unless it has to look closer.
    async fn take_if_free(&self, uses: &Use) -> Result<(Place, View), Refusal> {
        let mine = self.session.leases.claim(self.keys.of(uses.lease.id));
        let free = Compare::none_in(self.keys.range());
        let (succeeded, revision, contenders) =
            self.put_if(uses, free, vec![self.put(&mine.key, uses)], vec![self.read_all(0)]).await?;
        if succeeded {
            return Ok((Place { uses: uses.clone(), mine, created: revision }, View::First));
        }
        match contenders.into_iter().next() {
            Some(first) if first.key != mine.key || first.lease != uses.lease.id => Err(Refusal::Held(first)),
            // Only names below this one are held, or what is there is of this client: the queue tells.
            _ => {
                drop(mine);
                self.enqueue(uses.clone()).await
            }
        }
    }

    /// Puts our key into the queue and says what is ahead of it.
    async fn enqueue(&self, uses: Use) -> Result<(Place, View), Refusal> {
        let mine = self.session.leases.claim(self.keys.of(uses.lease.id));
        let (put, none) = (self.put(&mine.key, &uses), Compare::created(&mine.key, 0));
        let (succeeded, revision, contenders) =
            self.put_if(&uses, none, vec![put, self.read_all(0)], vec![self.read_all(0)]).await?;
        let ours = contenders.iter().find(|kv| kv.key == mine.key);
        let created = match ours {
            _ if succeeded => revision,
            // Put by a request that we had no answer to.
            Some(kv) if Record::of(kv).is_some_and(|record| record.owner == self.record.owner) => {
                kv.create_revision
            }
            Some(kv) if kv.lease == uses.lease.id => {
                // What another attempt of ours has left: nobody but us is in front of this name here.
                let deleted = self.session.leases.delete(&mine.key, kv.create_revision).await;
                deleted.map_err(|fault| Refusal::Error(fault.into_error(&self.session.client)))?;
                return Err(Refusal::OtherLease);
            }
            // A detached lock, which has kept its key: we need another one.
            Some(_) => {
                self.session.leases.retire(&uses.lease);
                return Err(Refusal::OtherLease);
            }
            None => return Err(Refusal::OtherLease),
        };
        let view = view(&contenders, &mine.key, created);
        Ok((Place { uses, mine, created }, view))
    }

    /// One transaction that may put our key, beside a keep-alive where the lease needs one.
    async fn put_if(
        &self,
        uses: &Use,
        compare: Compare,
        success: Vec<Op>,
        failure: Vec<Op>,
    ) -> Result<(bool, i64, Vec<KeyValue>), Refusal> {
        let session = &self.session;
        let (answer, refreshed) = tokio::join!(
            session.client.txn(vec![compare], success, failure),
            session.leases.refresh(&uses.lease),
        );
        let unknown = answer.as_ref().map_or(true, |answer| answer.unknown);
        if unknown || matches!(refreshed, Err(Fault::NoLease)) {
            session.leases.retire(&uses.lease);
        }
        let answer = match (answer, refreshed) {
            (Err(Fault::NoLease), _) | (Ok(_), Err(Fault::NoLease)) => return Err(Refusal::OtherLease),
            (Err(Fault::Error(error)), _) => return Err(Refusal::Error(error)),
            // A keep-alive without an answer: the lease is as old as it was, and so is the validity that we return.
            (Ok(answer), _) => answer.value,
        };
        let (succeeded, revision) = (answer.succeeded, answer.revision());
        Ok((succeeded, revision, self.keys.contenders(answer.into_kvs())))
    }

    /// What is ahead of our key now, and that our lease lives.
    async fn look(&self, place: &Place) -> Result<View, Fault> {
        let (answer, refreshed) = tokio::join!(
            self.session.client.txn(vec![], vec![self.read_all(place.created)], vec![]),
            self.session.leases.refresh(&place.uses.lease),
        );
        refreshed?;
        let contenders = self.keys.contenders(answer?.value.into_kvs());
        Ok(view(&contenders, &place.mine.key, place.created))
    }

    // --- waiting ---------------------------------------------------------------------------------------------------

    /// Waits until nobody is ahead (`true`) or our key is gone (`false`). Only reads: may be dropped anywhere.
    async fn stand(
        &self,
        place: &Place,
        seat: &Seat,
        mut holder: KeyValue,
        mut ahead: Vec<u8>,
    ) -> Result<bool> {
        let _kept = self.session.leases.wait_on(&place.uses.lease);
        self.tell(seat, &holder).await;
        let mut failing: Option<Moment> = None;
        let mut watches = None;
        loop {
            if watches.is_none() {
                // Open before the look that decides: nothing that happens in between is missed.
                watches = self.watch(place, &ahead).await;
            }
            match self.look(place).await {
                Ok(View::First) => return Ok(true),
                Ok(View::Gone) => return Ok(false),
                Ok(View::Behind { holder: now, ahead: next }) => {
                    failing = None;
                    if now.create_revision != holder.create_revision {
                        holder = now;
                        self.tell(seat, &holder).await;
                    }
                    if next != ahead {
                        ahead = next;
                        watches = None;
                        continue;
                    }
                }
                Err(Fault::NoLease) => return Err(Error::lost(&self.request.name, Loss::SessionEnded)),
                Err(Fault::Error(error)) => {
                    let now = self.session.clock.now();
                    let since = *failing.get_or_insert(now);
                    if !error.is_transient() || now.since(since) > PATIENCE {
                        return Err(error);
                    }
                    watches = None;
                }
            }
            tokio::select! {
                () = place.uses.lease.ended() => return Err(self.lease_ended(place)),
                open = something_happens(&mut watches) => if !open {
                    watches = None;
                },
                () = self.session.clock.sleep_until(self.session.clock.now().plus(crate::wait::jittered(RECHECK))) => {}
            }
        }
    }

    /// Watches the key ahead of ours, and ours, from now on. From a revision of the past it could take 100 ms longer: the
    /// server catches up with such watches in a loop of its own.
    async fn watch(&self, place: &Place, ahead: &[u8]) -> Option<(Watch, Watch)> {
        let client = &self.session.client;
        let mut first = client.watch(ahead, 0).await?;
        let mut own = client.watch(&place.mine.key, 0).await?;
        let soon = self.session.clock.now().plus(client.config.timeout);
        let open = async { first.next().await == Sight::Open && own.next().await == Sight::Open };
        let open = self.session.clock.within(Some(soon), open).await;
        (open == Some(true)).then_some((first, own))
    }

    fn lease_ended(&self, place: &Place) -> Error {
        if self.session.clock.now() >= place.uses.lease.sent().plus(place.uses.lease.term) {
            return self
                .session
                .client
                .unavailable("it did not answer until the lease of our place in the queue ended");
        }
        Error::lost(&self.request.name, Loss::SessionEnded)
    }

    async fn describe(&self, kv: &KeyValue) -> Holder {
        self.session.describe(&self.request.name, kv).await
    }

    /// Notes who holds the lock, for us and for those behind us.
    async fn tell(&self, seat: &Seat, kv: &KeyValue) {
        let holder = self.describe(kv).await;
        self.request.seen.note(holder.clone());
        seat.note(holder);
    }

    // --- the end ---------------------------------------------------------------------------------------------------

    fn grant(&self, place: Place, seat: Seat, waited: bool) -> Result<Grant> {
        let Place { uses, mine, created } = place;
        let Some(token) = record::token(created) else {
            self.session.leave(uses, mine, created, seat);
            let (store, source) =
                (self.session.client.config.label.clone(), "its revision is no token".into());
            return Err(Error::Backend { store, source });
        };
        let (sent, term) = (uses.lease.sent(), self.request.ttl);
        let kv = KeyValue { value: self.record.to_bytes(), create_revision: created, ..KeyValue::default() };
        seat.note(record::holder(&self.request.name, &kv, Some(term)));
        let entry = Entry { mine, created, value: kv.value, uses, until: sent.plus(term) };
        let (name, owner, signal) = (&self.request.name, self.request.owner, self.request.signal.clone());
        let hold = Held::new(&self.session, name, signal, entry, Some(seat));
        hold.mind(waited.then(|| self.record.clone()));
        // The lease, from whose last request validity counts, may be older than this claim.
        Ok(Grant { owner, token, sent, term: Some(term), pushed: sent < self.started, hold })
    }
}

/// Why there is no place.
enum Refusal {
    Held(KeyValue),
    /// Try again: this lease is gone, or its key is taken.
    OtherLease,
    Error(Error),
}

/// What is ahead of our key among the contenders, who are in order.
fn view(contenders: &[KeyValue], key: &[u8], created: i64) -> View {
    let Some(ours) = contenders.iter().position(|kv| kv.key == key && kv.create_revision == created) else {
        return View::Gone;
    };
    match &contenders[..ours] {
        [] => View::First,
        [holder, ..] => View::Behind { holder: holder.clone(), ahead: contenders[ours - 1].key.clone() },
    }
}

/// Waits until a watch has seen the end of its key; `false` if the watches themselves have ended.
async fn something_happens(watches: &mut Option<(Watch, Watch)>) -> bool {
    let Some((ahead, own)) = watches else {
        tokio::time::sleep(crate::wait::jittered(PAUSE)).await;
        return false;
    };
    loop {
        let sight = tokio::select! {
            sight = ahead.next() => sight,
            sight = own.next() => sight,
        };
        match sight {
            Sight::Deleted => return true,
            Sight::Ended => return false,
            Sight::Open | Sight::Put(_) => {}
        }
    }
}
