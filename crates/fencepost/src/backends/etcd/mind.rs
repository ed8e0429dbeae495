//! Looking after a held lock: a task for each says when its key is gone or revoked, and deletes it when its time is up.
//!
//! The lease is shared, so it may live on while one of its locks is not renewed any more. Such a key goes here when its ttl
//! has passed; the lease is what ends it when this process cannot.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::watch;

use super::client::Fault;
use super::hold::{Held, Stake};
use super::link::{Sight, Watch};
use super::proto::{Compare, KeyValue, PutRequest, Request};
use super::record::Record;
use super::session::Session;
use crate::Loss;

/// A lock that is held for less is not worth a watch of its own.
const BRIEF: Duration = Duration::from_millis(20);
/// Before a watch that ended is opened again.
const PAUSE: Duration = Duration::from_millis(100);

impl Held {
    /// Looks after the lock until it ends. With the record of a lock that was waited for, writes down since when it is
    /// held.
    pub(super) fn mind(self: &Arc<Self>, waited: Option<Record>) {
        let (held, done, session) = (Arc::downgrade(self), self.done.subscribe(), self.session.clone());
        session.keeper.spawn(mind(held, done, waited, session.clone()));
    }

    async fn note_grant(&self, record: Record) {
        let (key, value) = (self.key.clone(), record.granted().to_bytes());
        let put = PutRequest { key, value, lease: 0, ignore_lease: true };
        let unchanged = Compare::written(&self.key, self.created);
        match self.session.client.txn(vec![unchanged], vec![Request::Put(put)], vec![]).await {
            Ok(answer) if answer.value.succeeded => self.note_written(answer.value.revision()),
            Err(Fault::Error(error)) => {
                tracing::debug!(%error, "since when a lock is held could not be written down");
            }
            _ => {}
        }
    }

    /// Its ttl has passed without a renewal: the key goes, also if its lease lives on.
    fn expire(self: &Arc<Self>) {
        if let Some(Stake { uses, mine, seat: Some(seat), .. }) = self.end() {
            self.session.leave(uses, mine, self.ours(), seat);
        }
    }

    /// Passes on what has become of the key; `true` if it is gone.
    fn report(&self, found: Option<&KeyValue>) -> bool {
        let Some(why) = self.loss(found) else { return false };
        let gone = why == Loss::Taken;
        self.signal.raise(why);
        if gone {
            drop(self.end());
        }
        gone
    }
}

async fn mind(
    held: Weak<Held>,
    mut done: watch::Receiver<bool>,
    waited: Option<Record>,
    session: Arc<Session>,
) {
    let clock = &session.clock;
    tokio::select! {
        _ = done.wait_for(|done| *done) => return,
        () = clock.sleep_until(clock.now().plus(BRIEF)) => {}
    }
    let Some(lock) = held.upgrade() else { return };
    if let Some(record) = waited {
        lock.note_grant(record).await;
    }
    lock.end_turn();
    let (key, mut from) = (lock.key.clone(), lock.since + 1);
    drop(lock);
    loop {
        let watch = session.client.watch(&key, from).await;
        let watched = watch_over(&held, watch, &session);
        tokio::select! {
            _ = done.wait_for(|done| *done) => return,
            over = watched => if over {
                return;
            },
        }
        // Whatever ended the watch: see what there is, and watch from there.
        tokio::select! {
            _ = done.wait_for(|done| *done) => return,
            () = clock.sleep_until(clock.now().plus(crate::wait::jittered(PAUSE))) => {}
        }
        let Some(held) = held.upgrade() else { return };
        if held.until() <= clock.now() {
            return held.expire();
        }
        let answer = session.client.txn(vec![], vec![held.read()], vec![]).await;
        if session.client.is_stranger() && !*done.borrow() {
            held.report(None);
            return;
        }
        let Ok(answer) = answer else { continue };
        from = answer.value.revision() + 1;
        if !*done.borrow() && held.report(answer.value.into_kvs().first()) {
            return;
        }
    }
}

/// Watches until the lock has ended (`true`) or the watch has (`false`).
async fn watch_over(held: &Weak<Held>, watch: Option<Watch>, session: &Session) -> bool {
    let Some(mut watch) = watch else { return false };
    loop {
        let Some(until) = held.upgrade().map(|held| held.until()) else { return true };
        let sight = session.clock.within(Some(until), watch.next()).await;
        let Some(held) = held.upgrade() else { return true };
        let gone = match sight {
            Some(Sight::Open) => false,
            Some(Sight::Put(kv)) => held.report(Some(&kv)),
            Some(Sight::Deleted) => held.report(None),
            Some(Sight::Ended) => return false,
            // It may have been renewed meanwhile.
            None if held.until() > session.clock.now() => false,
            None => {
                held.expire();
                true
            }
        };
        if gone {
            return true;
        }
    }
}
