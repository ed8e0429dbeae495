//! From a request to a grant: a turn in the local queue, a lease, a key in the queue of the name, and the
//! wait for it to be the first.
//!
//! Each attempt is a task on the keeper's runtime: what it has begun it brings to an end, whatever becomes of
//! its caller. Only a waiter, which does nothing but read, stops where it stands.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::client::Client;
use super::contender::{Contender, OwnedKey, TRIES};
use super::driver::cluster::RequestError;
use super::driver::proto::{Compare, KeyValue, Operation};
use super::driver::{Watch, WatchEvent};
use super::hold::Held;
use super::keys::Keys;
use super::local_queue::QueueTurn;
use super::operator;
use super::record::{self, Record};
use crate::backend::{Grant, Identity, Request, TryOutcome};
use crate::runtime::clock::Moment;
use crate::wait::{PATIENCE, jittered};
use crate::{Error, Holder, Name, Result};

/// How often a waiter looks for itself, in case that a watch is dead and nobody has noticed.
const RECHECK: Duration = Duration::from_secs(5);
/// Between two looks while the cluster does not answer.
const PAUSE: Duration = Duration::from_millis(100);

/// Takes the lock if it is free now.
pub(super) async fn try_acquire(client: Arc<Client>, request: Request) -> Result<TryOutcome> {
    let Some(turn) = client.queue.try_turn(&request.name) else {
        return Ok(TryOutcome::Busy(Some(in_the_way(&client, &request.name).await?)));
    };
    let mut acquire = Acquire::new(client, request, turn);
    for tried in 0..TRIES {
        match acquire.enqueue(tried == 0).await? {
            Enqueued::At(contender, QueuePosition::First) => {
                return acquire.grant(contender).map(TryOutcome::Granted);
            }
            Enqueued::At(contender, QueuePosition::Behind { holder, .. }) => {
                // Our key goes now: it may be in the way of others.
                drop(contender);
                return Ok(acquire.busy(&holder).await);
            }
            Enqueued::Busy(holder) => return Ok(acquire.busy(&holder).await),
            Enqueued::At(_, QueuePosition::Gone) | Enqueued::TryAgain => acquire.begin_anew(),
        }
    }
    Err(acquire.no_lease())
}

/// Waits for the lock; gives up when `caller` is gone.
pub(super) async fn acquire(
    client: Arc<Client>,
    request: Request,
    mut caller: oneshot::Receiver<()>,
) -> Result<Grant> {
    let nobody_waits = || Error::invalid("nobody waits for this lock any more");
    let turn = tokio::select! {
        _ = &mut caller => return Err(nobody_waits()),
        turn = local_turn(&client, &request) => turn,
    };
    let mut acquire = Acquire::new(client, request, turn);
    let mut tries = 0;
    while tries < TRIES {
        tries += 1;
        if let Enqueued::At(contender, position) = acquire.enqueue(false).await? {
            acquire.request.seen.answered();
            tries = 0;
            let first = match position {
                QueuePosition::First => true,
                QueuePosition::Gone => false,
                QueuePosition::Behind { holder, ahead } => tokio::select! {
                    _ = &mut caller => return Err(nobody_waits()),
                    first = acquire.wait(&contender, holder, ahead) => first?,
                },
            };
            if first {
                return acquire.grant(contender);
            }
            // An operator has sent everybody to the end of the queue, so that the next token is larger than
            // theirs. Or our lease has ended, while this process stood still.
        }
        acquire.begin_anew();
    }
    Err(acquire.no_lease())
}

/// Waits for the turn of this client's tasks, and looks meanwhile who has the lock.
async fn local_turn(client: &Client, request: &Request) -> QueueTurn {
    if let Some(turn) = client.queue.try_turn(&request.name) {
        return turn;
    }
    let clock = &client.cluster.clock;
    let turn = client.queue.turn(&request.name);
    tokio::pin!(turn);
    loop {
        let looks = async {
            if let Ok(holder) = in_the_way(client, &request.name).await {
                request.seen.note(holder);
                request.seen.answered();
            }
            clock.sleep_until(clock.now().plus(jittered(RECHECK))).await;
        };
        tokio::select! {
            biased;
            turn = &mut turn => return turn,
            () = looks => {}
        }
    }
}

/// Who has a lock that another task of this client has the turn for. That task may have no key yet, or none
/// any more: it is in the way all the same.
async fn in_the_way(client: &Client, name: &Name) -> Result<Holder> {
    let holder = operator::show(client, name).await?;
    Ok(holder.unwrap_or_else(|| Holder::unknown(name.clone())))
}

struct Acquire {
    client: Arc<Client>,
    request: Request,
    keys: Keys,
    record: Record,
    turn: QueueTurn,
    started: Moment,
}

/// What came of the request for a place in the queue.
enum Enqueued {
    At(Contender, QueuePosition),
    /// Somebody else has the lock, and we have no key.
    Busy(KeyValue),
    /// The lease is gone, or its key for this name is taken.
    TryAgain,
}

/// What is ahead of our key.
enum QueuePosition {
    First,
    /// The key that holds the lock, and the one right ahead of ours.
    Behind {
        holder: KeyValue,
        ahead: Vec<u8>,
    },
    /// Our key is not there.
    Gone,
}

impl QueuePosition {
    /// The position of a key among the contenders, who are in order.
    fn of(ours: &OwnedKey, contenders: &[KeyValue]) -> Self {
        let is_ours = |kv: &KeyValue| kv.key == ours.key && kv.create_revision == ours.created;
        match contenders.iter().position(is_ours) {
            None => Self::Gone,
            Some(0) => Self::First,
            Some(place) => {
                let (holder, ahead) = (contenders[0].clone(), contenders[place - 1].key.clone());
                Self::Behind { holder, ahead }
            }
        }
    }
}

impl Acquire {
    fn new(client: Arc<Client>, request: Request, turn: QueueTurn) -> Self {
        let keys = Keys::new(&client.cluster.config.prefix, &request.name);
        let record = Record::new(request.owner(), &request.note);
        let started = client.cluster.clock.now();
        Self { client, request, keys, record, turn, started }
    }

    /// Goes on under another identity: the last one may still get a key by a late request.
    fn begin_anew(&mut self) {
        self.request.identity = Identity::fresh(&self.request.name);
        self.record = Record::new(self.request.owner(), &self.request.note);
        self.started = self.client.cluster.clock.now();
    }

    /// A try that came to nothing. The turn goes first: the cluster may take its time to tell of the holder.
    async fn busy(self, holder: &KeyValue) -> TryOutcome {
        let Self { client, request, turn, .. } = self;
        drop(turn);
        TryOutcome::Busy(Some(operator::describe(&client, &request.name, holder).await))
    }

    fn no_lease(&self) -> Error {
        self.client.cluster.unavailable("its leases end as soon as they are made")
    }

    /// Puts our key into the queue and says what is ahead of it. With `only_if_free`, writes nothing if there
    /// is any contender.
    async fn enqueue(&self, only_if_free: bool) -> Result<Enqueued> {
        let lease = self.client.leases.shared(self.request.ttl).await?;
        let key = OwnedKey { key: self.keys.of(lease.id), owner: self.request.owner(), created: 0 };
        let condition = match only_if_free {
            true => Compare::none_newer(self.keys.range(), 0),
            false => Compare::created(&key.key, 0),
        };
        let mut contender = Contender::new(&self.client, key, lease, self.turn.clone());
        let Some(contenders) = self.put(&mut contender, condition).await? else {
            return Ok(Enqueued::TryAgain);
        };
        let is_ours = |kv: &&KeyValue| {
            kv.key == contender.key.key
                && Record::of(kv).is_some_and(|record| record.owner == self.record.owner)
        };
        // Put by this request, or by one before it that we had no answer to.
        if let Some(ours) = contenders.iter().find(is_ours) {
            (contender.key.created, contender.written) = (ours.create_revision, ours.create_revision);
            let position = QueuePosition::of(&contender.key, &contenders);
            return Ok(Enqueued::At(contender, position));
        }
        contender.is_gone = !contender.may_come_late;
        if !only_if_free {
            // The key is that of a lock that was detached, or could not be given back: another lease gives us
            // another key.
            self.client.leases.retire(&contender.lease);
        }
        // Without a contender only names below this one are held: the queue tells.
        Ok(contenders.into_iter().next().filter(|_| only_if_free).map_or(Enqueued::TryAgain, Enqueued::Busy))
    }

    /// One transaction that may create our key, beside a keep-alive where the lease needs one. Returns the
    /// contenders after it; `None` if the lease has ended.
    async fn put(&self, contender: &mut Contender, condition: Compare) -> Result<Option<Vec<KeyValue>>> {
        let (cluster, lease) = (&self.client.cluster, contender.lease.clone());
        let put = Operation::put(&contender.key.key, self.record.to_bytes(), Some(lease.id));
        let txn = cluster.txn(vec![condition], vec![put, self.keys.read()], vec![self.keys.read()]);
        contender.may_come_late = true;
        let (answer, kept) = tokio::join!(txn, lease.refresh());
        let kept = match (&answer, kept) {
            (Ok(answer), Ok(())) => lease.confirm(answer.stamp).await,
            (_, kept) => kept,
        };
        match (answer, kept) {
            (Err(RequestError::NoLease(_)), _) | (Ok(_), Err(RequestError::NoLease(_))) => {
                contender.is_gone = true;
                self.client.leases.retire(&lease);
                Ok(None)
            }
            (Err(error), _) => {
                let error = Error::from(error);
                // There was a lease: if only this request failed, the caller waits on.
                if let Error::Unavailable { source, .. } = &error {
                    self.request.seen.obstacle(Some(source.to_string().into()));
                }
                Err(error)
            }
            // Without a keep-alive that counts the lease is as old as it was, and so is our validity.
            (Ok(answer), _) => {
                contender.may_come_late = answer.repeated;
                Ok(Some(self.keys.contenders(answer.value.into_kvs())))
            }
        }
    }

    /// Waits until nobody is ahead (`true`) or our key is gone, alone or with its lease (`false`). Only
    /// reads: may be dropped anywhere.
    async fn wait(&self, contender: &Contender, mut holder: KeyValue, mut ahead: Vec<u8>) -> Result<bool> {
        let clock = &self.client.cluster.clock;
        self.note(&holder).await;
        let mut failing: Option<Moment> = None;
        let mut watch = None;
        // Each look keeps the lease alive, too.
        let recheck = RECHECK.min(contender.lease.term / 3);
        loop {
            if watch.is_none() {
                // Open before the look that decides: nothing that happens in between is missed.
                watch = self.watch(&ahead).await;
            }
            match self.look(contender).await {
                Ok(QueuePosition::First) => return Ok(true),
                Ok(QueuePosition::Gone) | Err(RequestError::NoLease(_)) => return Ok(false),
                Ok(QueuePosition::Behind { holder: now, ahead: next }) => {
                    failing = None;
                    if now.create_revision != holder.create_revision {
                        holder = now;
                        self.note(&holder).await;
                    }
                    if next != ahead {
                        (ahead, watch) = (next, None);
                        continue;
                    }
                }
                Err(error) => {
                    let (error, now) = (Error::from(error), clock.now());
                    let outlasted = now.since(*failing.get_or_insert(now)) > PATIENCE;
                    if !error.is_transient() || outlasted || contender.lease.is_over(now) {
                        return Err(error);
                    }
                    watch = None;
                }
            }
            let _ = clock.within(Some(clock.now().plus(jittered(recheck))), changed(&mut watch)).await;
        }
    }

    /// What is ahead of our key now, and that our lease lives.
    async fn look(&self, contender: &Contender) -> Result<QueuePosition, RequestError> {
        let read = self.client.cluster.read(vec![self.keys.read()]);
        let (answer, kept) = tokio::join!(read, contender.lease.refresh());
        kept?;
        let answer = answer?;
        contender.lease.confirm(answer.stamp).await?;
        Ok(QueuePosition::of(&contender.key, &self.keys.contenders(answer.value.into_kvs())))
    }

    /// Watches the key ahead of ours from now on. From a revision of the past it could take 100 ms longer:
    /// the server catches up with such watches in a loop of its own.
    async fn watch(&self, ahead: &[u8]) -> Option<Watch> {
        let cluster = &self.client.cluster;
        let mut watch = cluster.watch(ahead, 0).await?;
        let soon = cluster.clock.now().plus(cluster.config.timeout);
        let opened = cluster.clock.within(Some(soon), watch.next()).await;
        (opened == Some(WatchEvent::Open)).then_some(watch)
    }

    async fn note(&self, kv: &KeyValue) {
        self.request.seen.note(operator::describe(&self.client, &self.request.name, kv).await);
    }

    fn grant(&self, contender: Contender) -> Result<Grant> {
        let Some(token) = record::token(contender.key.created) else {
            let store = self.client.cluster.config.label.clone();
            return Err(Error::Backend { store, source: "its revision is no token".into() });
        };
        let (sent, term, identity) = (contender.lease.sent(), self.request.ttl, self.request.identity);
        // The lease, from whose last request validity counts, may be older than this attempt.
        let pushed = sent < self.started;
        let hold = Held::new(&self.client, &self.request, contender, sent.plus(term));
        Ok(Grant { identity, token, sent, term: Some(term), pushed, hold })
    }
}

/// Waits until a watch has seen a change of its key, or has ended.
async fn changed(watch: &mut Option<Watch>) {
    let Some(open) = watch else { return tokio::time::sleep(jittered(PAUSE)).await };
    loop {
        match open.next().await {
            WatchEvent::Open => {}
            // The holder's record has changed: an operator may have sent us away.
            WatchEvent::Put(_) | WatchEvent::Deleted => return,
            WatchEvent::Ended => {
                *watch = None;
                return tokio::time::sleep(jittered(PAUSE)).await;
            }
        }
    }
}
