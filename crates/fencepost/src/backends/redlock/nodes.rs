//! The nodes of a deployment, and the sessions with them: one set for each runtime that uses the store, the
//! keeper's among them, because a connection belongs to the runtime whose task drives it.
//!
//! Nobody waits for a node. A missing session is opened in the background, and a request goes out when it is
//! open. A node that cannot be reached is left alone for a while.

use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use tokio::runtime;
use tokio::sync::Notify;

use super::config::Config;
use super::node::Node;
use super::pool::Pool;
use super::quarantine;
use super::quorum::majority;
use super::renewal::Renewals;
use super::request::late;
use super::session::{GreetMode, Health, MOST_UNANSWERED, Session};
use crate::backends::common::backoff::Backoff;
use crate::backends::redis::driver::per_runtime::{PerRuntime, new_channel};
use crate::backends::redis::keys::{self, KeySet};
use crate::backends::redis::push::PushRouter;
use crate::runtime::background::BackgroundTasks;
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::keeper::Keeper;
use crate::runtime::sync::{lock, until};
use crate::wait::jittered;
use crate::{Error, Name, Result, Verdict, format_duration};

/// How long a node is left alone after a failed connect.
const RETRY: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
/// The same for a node that is not usable as it is configured.
const RETRY_REFUSED: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Nodes {
    pub(super) config: Config,
    pub(super) each: Vec<Arc<Node>>,
    pub(super) router: Arc<PushRouter>,
    pub(super) clock: Clock,
    pub(super) keeper: Arc<Keeper>,
    pub(super) background: BackgroundTasks,
    pub(super) renewals: Arc<Renewals>,
    greeting: GreetMode,
    slots: PerRuntime<RuntimeSlot>,
    keeper_connects: Once,
}

/// The sessions of one runtime.
#[derive(Debug)]
pub(super) struct RuntimeSlot {
    /// Where the nodes push messages for this runtime. Queues and held locks name it, so it stays the same
    /// while sessions come and go.
    pub(super) channel: String,
    sessions: Vec<Mutex<NodeSession>>,
    pool: Arc<Pool>,
    /// A session was opened, or could not be.
    changed: Notify,
    pub(super) runtime: runtime::Handle,
}

/// The session with one node.
#[derive(Debug)]
enum NodeSession {
    Open(Arc<Session>),
    /// So many requests wait for it.
    Opening {
        waiting: usize,
    },
    /// Without a back-off it has not failed yet.
    Down {
        why: Verdict,
        retry_at: Moment,
        backoff: Option<Backoff>,
    },
}

impl NodeSession {
    fn never() -> Self {
        let why = Verdict::Unreachable { why: "it has not answered yet".to_owned() };
        Self::Down { why, retry_at: Moment::at(Duration::ZERO), backoff: None }
    }
}

/// Whether a node can be asked.
pub(super) enum Availability {
    Open(Arc<Session>),
    Opening,
    Down(Verdict),
}

impl Nodes {
    pub(super) fn new(config: Config, clock: Clock, greeting: GreetMode) -> Result<Self> {
        let keeper = Keeper::of(&clock)?;
        let nodes = config.nodes.iter().cloned().enumerate();
        let each = nodes.map(|(index, node)| Node::new(index, node).map(Arc::new)).collect::<Result<_>>()?;
        Ok(Self {
            config,
            each,
            router: Arc::default(),
            clock,
            background: BackgroundTasks::default(),
            renewals: Arc::new(Renewals::new(keeper.clone())),
            keeper,
            greeting,
            slots: PerRuntime::default(),
            keeper_connects: Once::new(),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.each.len()
    }

    /// Refuses a name that cannot have keys.
    pub(super) fn check_name(&self, name: &Name) -> Result<()> {
        keys::check(&self.config.start, name)
    }

    /// The keys of one lock on a node: the lock, its token counter, and the queue of waiters that this node
    /// knows. The lock itself is `PREFIXlock:NAME`, where other Redlock clients look for it.
    pub(super) fn keys(&self, name: &Name) -> Arc<KeySet> {
        Arc::new(KeySet::new(&self.config.start, name.as_str(), ["fence", "waiters"]))
    }

    /// When a request that is sent now must be answered.
    pub(super) fn deadline(&self) -> Moment {
        self.clock.now().plus(self.config.timeout)
    }

    /// The error if too few nodes vote.
    pub(super) fn no_majority(&self, verdicts: Vec<Verdict>) -> Error {
        quarantine::no_majority(&self.config, verdicts)
    }

    /// The slot of the current runtime.
    pub(super) fn slot(&self) -> Arc<RuntimeSlot> {
        let make = || RuntimeSlot {
            channel: new_channel(),
            sessions: self.each.iter().map(|_| Mutex::new(NodeSession::never())).collect(),
            pool: Arc::default(),
            changed: Notify::new(),
            runtime: runtime::Handle::current(),
        };
        self.slots.current(|slot| slot.up().0 > 0, make)
    }

    /// Lets the keeper connect before its first renewal, which may be a hasty one.
    pub(super) fn connect_keeper(self: &Arc<Self>) {
        self.keeper_connects.call_once(|| {
            let nodes = self.clone();
            self.keeper.spawn(async move {
                nodes.sessions(nodes.deadline(), nodes.config.timeout).await;
            });
        });
    }

    /// Says whether a node can be asked, and opens a session if there is none. With `insist` also if that has
    /// just failed.
    pub(super) fn session(
        self: &Arc<Self>,
        slot: &Arc<RuntimeSlot>,
        node: usize,
        now: Moment,
        insist: bool,
    ) -> Availability {
        let mut session = lock(&slot.sessions[node]);
        let (old, backoff) = match &*session {
            NodeSession::Open(open) => match open.health(now, self.config.timeout) {
                Health::Good => return Availability::Open(open.clone()),
                Health::Out(verdict) => return Availability::Down(verdict),
                Health::Ended => (Some(open.clone()), None),
                // It did connect before, but does not answer: that is a failure, too.
                Health::Stuck => {
                    let mut backoff = RETRY;
                    backoff.pause();
                    (Some(open.clone()), Some(backoff))
                }
            },
            NodeSession::Opening { .. } => return Availability::Opening,
            NodeSession::Down { why, retry_at, .. } if now < *retry_at && !insist => {
                return Availability::Down(why.clone());
            }
            NodeSession::Down { backoff, .. } => (None, backoff.clone()),
        };
        *session = NodeSession::Opening { waiting: 0 };
        let (nodes, opening) = (self.clone(), slot.clone());
        slot.runtime.spawn(async move {
            // This calls whoever waits for replies of the old one, so no lock may be held.
            if let Some(old) = old {
                old.close();
            }
            nodes.open(&opening, node, backoff).await;
        });
        Availability::Opening
    }

    async fn open(&self, slot: &RuntimeSlot, node: usize, backoff: Option<Backoff>) {
        let (config, timeout, router) = (&self.config, self.config.timeout, self.router.clone());
        let node = &self.each[node];
        let open = Session::open(node, config, &self.clock, &slot.pool, &slot.channel, router, self.greeting);
        let opened = match tokio::time::timeout(timeout, open).await {
            Ok(opened) => opened.map_err(|error| Verdict::of(&error)),
            Err(_) => Err(Verdict::Unreachable {
                why: format!("it did not answer a greeting within {}", format_duration(timeout)),
            }),
        };
        let session = match opened {
            Ok(session) => {
                self.find_duplicates();
                NodeSession::Open(Arc::new(session))
            }
            Err(why) => {
                if backoff.is_none() {
                    tracing::warn!(node = node.label(), verdict = %why, "a node cannot be used for now");
                }
                let mut backoff = backoff.unwrap_or(RETRY);
                let mut pause = backoff.pause();
                if matches!(why, Verdict::Refused { .. }) {
                    pause = jittered(RETRY_REFUSED);
                }
                let retry_at = self.clock.now().plus(pause);
                NodeSession::Down { why, retry_at, backoff: Some(backoff) }
            }
        };
        let mut current = lock(&slot.sessions[node.index]);
        if matches!(*current, NodeSession::Opening { .. }) {
            *current = session;
        }
        drop(current);
        slot.changed.notify_waiters();
    }

    /// Finds servers that are in the list under two names: they would have two votes. The first name has one.
    fn find_duplicates(&self) {
        let runs: Vec<_> = self.each.iter().map(|node| node.run()).collect();
        for (index, node) in self.each.iter().enumerate() {
            let other = (0..index).find(|&other| runs[other].is_some() && runs[other] == runs[index]);
            node.set_duplicate(other.map(|other| &*self.each[other]));
        }
    }

    /// Waits for the session with one node.
    pub(super) async fn opened(
        self: &Arc<Self>,
        slot: &Arc<RuntimeSlot>,
        node: usize,
    ) -> Result<Arc<Session>, Verdict> {
        let opened = until(&slot.changed, || match self.session(slot, node, self.clock.now(), false) {
            Availability::Open(session) => Some(Ok(session)),
            Availability::Down(verdict) => Some(Err(verdict)),
            Availability::Opening => None,
        });
        opened.await
    }

    /// Waits until the nodes that can be reached are, as far as the deadline allows, and for at most `grace`
    /// when a majority is.
    pub(super) async fn sessions(
        self: &Arc<Self>,
        deadline: Moment,
        grace: Duration,
    ) -> Vec<Result<Arc<Session>, Verdict>> {
        let (slot, mut patience) = (self.slot(), deadline);
        loop {
            let changed = slot.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (now, mut opening) = (self.clock.now(), false);
            let mut sessions = Vec::with_capacity(self.len());
            for node in 0..self.len() {
                sessions.push(match self.session(&slot, node, now, false) {
                    Availability::Open(session) => Ok(session),
                    Availability::Down(verdict) => Err(verdict),
                    Availability::Opening => {
                        opening = true;
                        Err(late())
                    }
                });
            }
            if sessions.iter().flatten().count() >= majority(self.len()) {
                patience = patience.min(now.plus(grace));
            }
            if !opening || self.clock.within(Some(patience), changed).await.is_none() {
                return sessions;
            }
        }
    }

    /// Ends all sessions.
    pub(super) fn close(&self) {
        let slots = self.slots.all();
        for session in slots.iter().flat_map(|slot| &slot.sessions) {
            // In a statement of its own: whoever waits for a reply may look at this session.
            let closed = std::mem::replace(&mut *lock(session), NodeSession::never());
            if let NodeSession::Open(session) = closed {
                session.close();
            }
        }
    }
}

impl RuntimeSlot {
    /// How many nodes have an open session, and how many of them keep up. Sessions of a runtime that is gone
    /// have ended.
    pub(super) fn up(&self) -> (usize, usize) {
        let (mut up, mut keeping_up) = (0, 0);
        for session in &self.sessions {
            if let NodeSession::Open(session) = &*lock(session)
                && let Some(keeps_up) = session.keeps_up()
            {
                up += 1;
                keeping_up += usize::from(keeps_up);
            }
        }
        (up, keeping_up)
    }

    /// Whether one more request may wait for the session with a node. One that does not answer a greeting
    /// would gather all that is asked meanwhile.
    pub(super) fn may_wait(&self, node: usize) -> bool {
        match &mut *lock(&self.sessions[node]) {
            NodeSession::Opening { waiting } if *waiting < MOST_UNANSWERED => {
                *waiting += 1;
                true
            }
            NodeSession::Opening { .. } => false,
            NodeSession::Open(_) | NodeSession::Down { .. } => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::redis::driver::connection::Call;
    use crate::backends::redis::driver::resp::Value;
    use crate::backends::redlock::quorum::NodeSet;
    use crate::backends::redlock::request::{Delivery, QuorumRequest};
    use crate::backends::redlock::session::Script;
    use crate::backends::redlock::session::tests::mute;
    use crate::url::StoreUrl;

    fn nodes() -> Arc<Nodes> {
        let config = Config::from_url(StoreUrl::parse("redlock://a,b,c").unwrap()).unwrap();
        Arc::new(Nodes::new(config, Clock::system(), GreetMode::MEET).unwrap())
    }

    /// Counts the nodes that it hears of, and sends nothing.
    #[derive(Default)]
    struct Counted(std::sync::atomic::AtomicUsize);

    impl QuorumRequest for Counted {
        fn script(&self) -> Script {
            Script::Hold
        }

        fn send(&self, _: &Arc<Session>, _: Delivery) -> Result<(), String> {
            Ok(())
        }

        fn leaves_out_laggards(&self) -> bool {
            true
        }

        fn on_reply(self: Arc<Self>, _: usize, _: Moment, _: Result<Value, Verdict>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn a_node_that_does_not_answer_a_greeting_gathers_few_requests() {
        let nodes = nodes();
        let slot = nodes.slot();
        let open: Vec<_> = nodes.each.iter().take(2).map(mute).collect();
        for (node, (session, _)) in open.iter().enumerate() {
            *lock(&slot.sessions[node]) = NodeSession::Open(session.clone());
        }
        *lock(&slot.sessions[2]) = NodeSession::Opening { waiting: 0 };
        let request = Arc::<Counted>::default();
        for _ in 0..MOST_UNANSWERED + 10 {
            nodes.ask(&slot, &request, NodeSet::all(3));
        }
        assert_eq!(request.0.load(std::sync::atomic::Ordering::Relaxed), 10);
    }

    #[tokio::test]
    async fn who_hears_that_a_session_was_closed_may_look_at_all_of_them() {
        let nodes = nodes();
        let slot = nodes.slot();
        let (session, _theirs) = mute(&nodes.each[0]);
        *lock(&slot.sessions[0]) = NodeSession::Open(session.clone());
        let (sender, free) = std::sync::mpsc::channel();
        let other = slot.clone();
        let call: Call = Box::new(move |_| sender.send(other.sessions[0].try_lock().is_ok()).unwrap());
        session.eval(Script::Hold, &[], &[], nodes.clock.now(), call).unwrap();
        nodes.close();
        assert!(free.try_recv().unwrap(), "calls are made with no lock held");
    }

    #[test]
    fn the_slot_of_a_runtime_that_is_gone_is_forgotten() {
        let nodes = nodes();
        let runtime = || runtime::Builder::new_current_thread().build().unwrap();
        let (first, second, third) = (runtime(), runtime(), runtime());
        let _theirs = {
            let _inside = first.enter();
            let (session, theirs) = mute(&nodes.each[0]);
            *lock(&nodes.slot().sessions[0]) = NodeSession::Open(session);
            theirs
        };
        second.block_on(async { drop(nodes.slot()) });
        assert_eq!(nodes.slots.all().len(), 2, "the first is in use");
        drop(first);
        third.block_on(async { drop(nodes.slot()) });
        assert_eq!(nodes.slots.all().len(), 1, "nobody can use it any more");
    }
}
