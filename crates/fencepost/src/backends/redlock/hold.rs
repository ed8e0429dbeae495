//! A lock held on a majority of nodes: what was sent for it, and how it is extended, given back and lost.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;

use super::nodes::{Nodes, RuntimeSlot};
use super::release::{QueueEntry, Release, ReleaseRequest, Then};
use super::renewal;
use super::session::Session;
use crate::backend::{Hold, Renewal};
use crate::backends::redis::keys::KeySet;
use crate::backends::redis::push::PushSlot;
use crate::runtime::clock::Moment;
use crate::runtime::sync::lock;
use crate::{FencingToken, Owner, Result};

/// A lock that nodes have, or are asked to extend or to move to this value.
#[derive(Debug)]
pub(super) struct HeldLock {
    pub(super) keys: Arc<KeySet>,
    pub(super) value: Arc<str>,
    pub(super) owner: Owner,
    pub(super) token: FencingToken,
    in_flight: Mutex<InFlight>,
}

/// What was sent for a lock. Giving it back undoes all of that, and nothing is sent after it.
#[derive(Debug)]
pub(super) struct InFlight {
    /// The sessions that carried requests which make or keep the lock, and when a node acts on those of each
    /// at the latest.
    sessions: Vec<(Arc<Session>, Moment)>,
    /// The end of the term that is valid now. No extension may begin to count after it.
    pub(super) valid_until: Moment,
    /// When a node acts on the last request at the latest, and when it has forgotten it.
    settled_at: Moment,
    over_at: Moment,
    /// The lock was given back, or detached: nothing more may be sent that makes or keeps it.
    pub(super) closed: bool,
    /// Something was sent that makes the lock anew on a node that has lost it.
    pub(super) repaired: bool,
}

impl InFlight {
    /// Of a request over `sessions`, on which nodes act until `settled_at`, and which they have forgotten by
    /// `over_at`.
    pub(super) fn new(
        sessions: Vec<Arc<Session>>,
        valid_until: Moment,
        settled_at: Moment,
        over_at: Moment,
    ) -> Self {
        let sessions = sessions.into_iter().map(|session| (session, settled_at)).collect();
        Self { sessions, valid_until, settled_at, over_at, closed: false, repaired: false }
    }

    /// Nothing was sent yet.
    pub(super) fn none(valid_until: Moment) -> Self {
        let never = Moment::at(Duration::ZERO);
        Self::new(Vec::new(), valid_until, never, never)
    }

    /// Notes that a request is being sent at `now`, on which a node acts until `settled_at`, and which it has
    /// forgotten by `over_at`.
    pub(super) fn add(&mut self, session: &Arc<Session>, now: Moment, settled_at: Moment, over_at: Moment) {
        self.settled_at = self.settled_at.max(settled_at);
        self.over_at = self.over_at.max(over_at);
        match self.sessions.iter_mut().find(|(other, _)| Arc::ptr_eq(other, session)) {
            Some((_, latest)) => *latest = settled_at.max(*latest),
            None => {
                // What an ended session carried can arrive for a while.
                self.sessions.retain(|(other, settled_at)| !other.has_ended() || now <= *settled_at);
                self.sessions.push((session.clone(), settled_at));
            }
        }
    }

    pub(super) fn sessions(&self) -> Vec<Arc<Session>> {
        self.sessions.iter().map(|(session, _)| session.clone()).collect()
    }
}

impl HeldLock {
    pub(super) fn new(
        keys: Arc<KeySet>,
        value: Arc<str>,
        owner: Owner,
        token: FencingToken,
        in_flight: InFlight,
    ) -> Arc<Self> {
        Arc::new(Self { keys, value, owner, token, in_flight: Mutex::new(in_flight) })
    }

    pub(super) fn in_flight(&self) -> MutexGuard<'_, InFlight> {
        lock(&self.in_flight)
    }

    /// Keeps the lock from being given back while something is sent that keeps it; `None` if it has been.
    pub(super) fn while_held(&self) -> Option<MutexGuard<'_, InFlight>> {
        Some(self.in_flight()).filter(|in_flight| !in_flight.closed)
    }

    /// Ends what may be sent for the lock, and says how to give it back, over which sessions.
    pub(super) fn close(&self, then: Then, entry: Option<QueueEntry>) -> (ReleaseRequest, Vec<Arc<Session>>) {
        let mut sent = self.in_flight();
        sent.closed = true;
        let (keys, value) = (self.keys.clone(), self.value.clone());
        let (settled_at, over_at) = (sent.settled_at, sent.over_at);
        (ReleaseRequest { keys, value, then, entry, settled_at, over_at }, sent.sessions())
    }
}

#[derive(Debug)]
pub(super) struct Held {
    pub(super) nodes: Arc<Nodes>,
    pub(super) lock: Arc<HeldLock>,
    /// The place in the queues in which it was waited for.
    pub(super) entry: Option<QueueEntry>,
    /// Open for revocations while the lock is held, on the channel of this runtime, which the lock's value
    /// names.
    pub(super) _pushes: PushSlot,
    pub(super) _slot: Arc<RuntimeSlot>,
}

#[async_trait]
impl Hold for Held {
    async fn renew(&self, term: Duration) -> Result<Renewal> {
        self.nodes.config.check_ttl(term)?;
        renewal::renew(&self.nodes, self.lock.clone(), term).await
    }

    async fn release(&self) -> Result<bool> {
        let (request, sessions) = self.lock.close(Then::Wake, self.entry.clone());
        Release::send(&self.nodes, request, &sessions).accepted().await
    }

    async fn detach(&self, term: Duration) -> Result<Renewal> {
        let renewal = self.renew(term).await?;
        // Whoever has the handle may give the lock back from now on: nothing may follow that makes it anew.
        self.lock.in_flight().closed |= matches!(renewal, Renewal::Renewed { .. });
        Ok(renewal)
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::backends::redlock::config::Config;
    use crate::backends::redlock::node::Node;
    use crate::backends::redlock::session::tests::mute;
    use crate::url::StoreUrl;

    /// A lock that no node was asked for yet.
    pub(in super::super) fn lock_until(until: Moment) -> Arc<HeldLock> {
        let (keys, token) = (KeySet::new("", "a", ["fence", "waiters"]), FencingToken::new(1).unwrap());
        HeldLock::new(Arc::new(keys), "value".into(), Owner::fresh(), token, InFlight::none(until))
    }

    #[tokio::test]
    async fn ended_sessions_are_forgotten_once_nothing_of_them_can_arrive() {
        let config = Config::from_url(StoreUrl::parse("redlock://a,b,c").unwrap()).unwrap();
        let node = Arc::new(Node::new(0, config.nodes[0].clone()).unwrap());
        let at = |seconds| Moment::at(Duration::from_secs(seconds));
        let held = lock_until(at(10));
        let mut sent = held.in_flight();
        for second in 0..100 {
            let (session, _theirs) = mute(&node);
            sent.add(&session, at(second), at(second + 5), at(second + 30));
            session.close();
        }
        assert_eq!(sent.sessions().len(), 6, "those that were used in the last five seconds");
        assert_eq!((sent.settled_at, sent.over_at), (at(104), at(129)));
    }
}
