//! Gives a lock back on all nodes that may have it: after it was held, or after an attempt that failed. A
//! lock that was being taken over is given back to its former value.
//!
//! The request goes over the session that carried what it undoes, so it arrives after it. If that session has
//! ended, what it carried may still arrive. So the request is repeated over a new session, in the background,
//! until the node can have nothing of it any more.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;

use super::nodes::{Availability, Nodes};
use super::quorum::{NodeSet, majority};
use super::request::{Delivery, Progress, QuorumRequest, late};
use super::session::{Script, Session};
use crate::backends::common::backoff::Backoff;
use crate::backends::redis::driver::batch::{Sharing, Step};
use crate::backends::redis::driver::resp::Value;
use crate::backends::redis::keys::KeySet;
use crate::runtime::background::BackgroundTask;
use crate::runtime::clock::Moment;
use crate::runtime::sync::lock;
use crate::{Result, Verdict};

/// The pauses between repeated requests to a node.
const PAUSE: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));

/// The place of a waiter in the queues.
#[derive(Clone, Debug)]
pub(super) struct QueueEntry {
    pub(super) entry: Arc<str>,
    /// The nodes that were asked to note it, over any session.
    pub(super) nodes: NodeSet,
}

/// What is given back, and for how long it matters.
#[derive(Clone, Debug)]
pub(super) struct ReleaseRequest {
    pub(super) keys: Arc<KeySet>,
    pub(super) value: Arc<str>,
    pub(super) then: Then,
    /// What a waiter leaves, too.
    pub(super) entry: Option<QueueEntry>,
    /// No node acts on what was sent before after this.
    pub(super) settled_at: Moment,
    /// Every node has forgotten it by itself after this.
    pub(super) over_at: Moment,
}

impl ReleaseRequest {
    /// For what no node acts on after `settled_at`, and keeps for `life` then.
    pub(super) fn new(
        keys: Arc<KeySet>,
        value: Arc<str>,
        then: Then,
        settled_at: Moment,
        life: Duration,
    ) -> Self {
        Self { keys, value, then, entry: None, settled_at, over_at: settled_at.plus(life) }
    }
}

#[derive(Clone, Debug)]
pub(super) enum Then {
    /// The next waiter is woken.
    Wake,
    /// Nobody is woken: after an attempt that failed nobody could use that.
    Quiet,
    /// The key gets this value again.
    Restore(Arc<str>),
}

pub(super) struct Release {
    nodes: Arc<Nodes>,
    request: ReleaseRequest,
    progress: Progress<Vec<NodeState>>,
    /// Until a majority has nothing of it any more.
    task: Mutex<Option<BackgroundTask>>,
}

#[derive(Clone, Default)]
struct NodeState {
    /// Requests without a reply. A node may have one over each of several sessions.
    open: usize,
    repeating: Repeating,
    /// The best reply so far: whether the lock was still ours.
    reply: Option<Result<bool, Verdict>>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Repeating {
    #[default]
    No,
    Yes,
    Done,
}

impl Release {
    /// Sends it over these sessions; a node may have several. Never waits.
    pub(super) fn send(nodes: &Arc<Nodes>, request: ReleaseRequest, sessions: &[Arc<Session>]) -> Arc<Self> {
        let mut states = vec![NodeState::default(); nodes.len()];
        for session in sessions {
            states[session.node.index].open += 1;
        }
        let release = Arc::new(Self {
            nodes: nodes.clone(),
            request,
            progress: Progress::new(states),
            task: Mutex::new(Some(nodes.background.begin())),
        });
        for session in sessions {
            nodes.send(&release, session);
        }
        // Earlier attempts asked nodes, too, whose sessions may be gone by now.
        let queues = release.request.entry.as_ref().map_or(NodeSet::default(), |entry| entry.nodes);
        for node in queues.iter().filter(|node| sessions.iter().all(|session| session.node.index != *node)) {
            release.repeat(node);
        }
        release.end_task();
        release
    }

    /// Waits until a majority has replied: whether the lock was still ours.
    pub(super) async fn accepted(&self) -> Result<bool> {
        let accepted = self.progress.until(|states| outcome(states));
        match tokio::time::timeout(self.nodes.config.timeout, accepted).await {
            Ok(Some(ours)) => Ok(ours),
            Ok(None) | Err(_) => {
                let states = self.progress.lock().clone();
                let verdict = |state: NodeState| match state.reply {
                    Some(reply) => reply.map_or_else(|verdict| verdict, |_| Verdict::Granted),
                    None => late(),
                };
                Err(self.nodes.no_majority(states.into_iter().map(verdict).collect()))
            }
        }
    }

    /// Ends the background task when a majority has nothing of it any more.
    fn end_task(&self) {
        let is_open = |state: &&NodeState| state.open > 0 || state.repeating == Repeating::Yes;
        let open = self.progress.lock().iter().filter(is_open).count();
        if open + majority(self.nodes.len()) <= self.nodes.len() {
            lock(&self.task).take();
        }
    }

    /// Repeats it in the background until a node has nothing of it any more.
    fn repeat(self: &Arc<Self>, node: usize) {
        {
            let repeating = &mut self.progress.lock()[node].repeating;
            if *repeating != Repeating::No {
                return;
            }
            *repeating = Repeating::Yes;
        }
        let release = self.clone();
        self.nodes.keeper.spawn(async move {
            let (slot, mut backoff) = (release.nodes.slot(), PAUSE);
            let clock = &release.nodes.clock;
            while clock.now() < release.request.over_at {
                if let Availability::Open(session) = release.nodes.session(&slot, node, clock.now(), false)
                    && release.send_again(&session).await
                {
                    break;
                }
                backoff.sleep().await;
            }
            release.progress.lock()[node].repeating = Repeating::Done;
            release.end_task();
        });
    }

    /// Whether a node has nothing of it any more. Before `settled_at`, what was sent over an ended session
    /// may still arrive after this.
    async fn send_again(&self, session: &Arc<Session>) -> bool {
        let (sender, reply) = oneshot::channel();
        let sent = self.nodes.clock.now();
        let delivery = Delivery { sent, alone: true, call: Box::new(move |reply| drop(sender.send(reply))) };
        if QuorumRequest::send(self, session, delivery).is_err() {
            return false;
        }
        match tokio::time::timeout(self.nodes.config.timeout, reply).await {
            Ok(Ok(Some(Value::Int(_)))) => sent > self.request.settled_at,
            Ok(Ok(Some(Value::Error(text)))) if text.starts_with("NOSCRIPT") => {
                session.load(Script::Ops, self.nodes.clock.now());
                false
            }
            _ => false,
        }
    }
}

/// Whether the lock was ours on a majority. The outer `None`: not decided yet. The inner: too few replies.
fn outcome(states: &[NodeState]) -> Option<Option<bool>> {
    let (mut ours, mut open, mut unknown) = (0, 0, 0);
    for state in states {
        match &state.reply {
            Some(Ok(true)) => ours += 1,
            _ if state.open > 0 => open += 1,
            Some(Err(_)) => unknown += 1,
            Some(Ok(false)) | None => {}
        }
    }
    let enough = majority(states.len());
    if ours >= enough {
        Some(Some(true))
    } else if ours + open + unknown < enough {
        Some(Some(false))
    } else {
        (open == 0).then_some(None)
    }
}

impl QuorumRequest for Release {
    fn script(&self) -> Script {
        Script::Ops
    }

    fn send(&self, session: &Arc<Session>, Delivery { sent, alone, call }: Delivery) -> Result<(), String> {
        let ReleaseRequest { keys, value, then, entry, .. } = &self.request;
        let [lock, _, queue] = keys.each();
        let entry = entry.as_ref().map_or("", |entry| &entry.entry);
        let arguments: &[&str] = match then {
            Then::Restore(before) => &["back", value, before],
            Then::Wake if entry.is_empty() => &["free", value],
            Then::Wake => &["leave", value, entry, "wake"],
            Then::Quiet => &["leave", value, entry, "quiet"],
        };
        let sharing = Sharing::of_one_server(alone);
        let step = Step { keys: &[lock, queue], arguments, needs_end: false, sharing, pushes: false };
        session.step(&step, sent, call)
    }

    fn on_reply(self: Arc<Self>, node: usize, _: Moment, reply: Result<Value, Verdict>) {
        let reply = reply.map(|value| value == Value::Int(1));
        if reply.is_err() {
            self.repeat(node);
        }
        {
            let state = &mut self.progress.lock()[node];
            state.open = state.open.saturating_sub(1);
            // Whichever request came first found the lock.
            let better =
                matches!((&state.reply, &reply), (None, _) | (_, Ok(true)) | (Some(Ok(false)), Err(_)));
            if better {
                state.reply = Some(reply);
            }
        }
        self.progress.notify();
        self.end_task();
    }
}
