//! Requests to several nodes. Replies are counted where they are read: a request carries a call, and only the
//! decision wakes the caller. Acquiring, extending, repairing, taking over and releasing all go this way.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use super::nodes::{Availability, Nodes, RuntimeSlot};
use super::quarantine::Standing;
use super::quorum::{NodeSet, majority};
use super::session::{Script, Session};
use crate::Verdict;
use crate::backends::redis::driver::connection::Call;
use crate::backends::redis::driver::resp::Value;
use crate::runtime::clock::Moment;
use crate::runtime::sync::{lock, until};

/// How often a request that did nothing is repeated over the same session.
const REPEATS: u8 = 2;

/// One request on its way to one node.
pub(super) struct Delivery {
    pub(super) sent: Moment,
    /// Not in one call with others: the node refused the call that it was part of.
    pub(super) alone: bool,
    pub(super) call: Call,
}

/// What is asked of several nodes.
pub(super) trait QuorumRequest: Send + Sync + 'static {
    fn script(&self) -> Script;

    /// Puts the request into the session's buffer; never waits. Fails if it is too late for it: whoever
    /// undoes the request does so before this, or over the same session after it.
    fn send(&self, session: &Arc<Session>, delivery: Delivery) -> Result<(), String>;

    /// Two requests that ask for the same, if a node refuses to be asked for all of it in one.
    fn halves(&self) -> Option<[Arc<Self>; 2]> {
        None
    }

    /// Whether a node that does not keep up is left out while a majority does. A lock that is held is renewed
    /// there all the same: late may be in time.
    fn leaves_out_laggards(&self) -> bool {
        false
    }

    /// Counts the reply of a node, or why there is none, to a request that was sent then. Called without any
    /// lock held, once for each node that was asked.
    fn on_reply(self: Arc<Self>, node: usize, sent: Moment, reply: Result<Value, Verdict>);
}

/// What a reply means.
enum Meaning<R> {
    /// The request counts it.
    Counts,
    /// The request did nothing, because of a part of it.
    Split([Arc<R>; 2]),
    /// The request did nothing, and may if it is repeated. The verdict if it is not.
    Repeat(Verdict),
    NoVote(Verdict),
}

impl Nodes {
    /// Asks these nodes; those with an opening session when it is open.
    pub(super) fn ask<R: QuorumRequest>(
        self: &Arc<Self>,
        slot: &Arc<RuntimeSlot>,
        request: &Arc<R>,
        nodes: NodeSet,
    ) {
        let (now, needed) = (self.clock.now(), majority(self.len()));
        let (up, keeping_up) = slot.up();
        // Told after all others were asked: they may decide, and the others have their say in the error.
        let mut silent = Vec::new();
        let leaves_out = request.leaves_out_laggards() && keeping_up >= needed;
        for node in nodes.iter() {
            let verdict = match self.session(slot, node, now, up < needed) {
                Availability::Open(session) if !leaves_out || session.keeps_up() != Some(false) => {
                    self.send(request, &session);
                    continue;
                }
                Availability::Opening if !leaves_out || slot.may_wait(node) => {
                    self.send_when_open(slot, request, node);
                    continue;
                }
                Availability::Open(_) | Availability::Opening => {
                    Verdict::Unreachable { why: "it has not answered many earlier requests".to_owned() }
                }
                Availability::Down(verdict) => verdict,
            };
            silent.push((node, verdict));
        }
        for (node, verdict) in silent {
            request.clone().on_reply(node, now, Err(verdict));
        }
    }

    fn send_when_open<R: QuorumRequest>(
        self: &Arc<Self>,
        slot: &Arc<RuntimeSlot>,
        request: &Arc<R>,
        node: usize,
    ) {
        let (nodes, opening, request) = (self.clone(), slot.clone(), request.clone());
        slot.runtime.spawn(async move {
            match nodes.opened(&opening, node).await {
                Ok(session) => nodes.send(&request, &session),
                Err(verdict) => request.on_reply(node, nodes.clock.now(), Err(verdict)),
            }
        });
    }

    /// Sends a request over a session. The request hears of it exactly once.
    pub(super) fn send<R: QuorumRequest>(self: &Arc<Self>, request: &Arc<R>, session: &Arc<Session>) {
        if let Err(why) = self.try_send(request, session, 0) {
            let verdict = Verdict::Unreachable { why };
            request.clone().on_reply(session.node.index, self.clock.now(), Err(verdict));
        }
    }

    fn try_send<R: QuorumRequest>(
        self: &Arc<Self>,
        request: &Arc<R>,
        session: &Arc<Session>,
        repeats: u8,
    ) -> Result<(), String> {
        let sent = self.clock.now();
        let (nodes, asked, over) = (self.clone(), request.clone(), session.clone());
        let call = Box::new(move |reply| nodes.receive(&asked, &over, sent, repeats, reply));
        request.send(session, Delivery { sent, alone: repeats > 0, call })
    }

    fn receive<R: QuorumRequest>(
        self: &Arc<Self>,
        request: &Arc<R>,
        session: &Arc<Session>,
        sent: Moment,
        repeats: u8,
        reply: Option<Value>,
    ) {
        let reply = match reply {
            None => Err(session.ended()),
            Some(value) => match self.judge(&**request, session, sent, repeats, &value) {
                Meaning::Counts => Ok(value),
                Meaning::Split(halves) => return halves.iter().for_each(|half| self.send(half, session)),
                Meaning::Repeat(verdict) => match self.try_send(request, session, repeats + 1) {
                    Ok(()) => return,
                    Err(_) => Err(verdict),
                },
                Meaning::NoVote(verdict) => Err(verdict),
            },
        };
        request.clone().on_reply(session.node.index, sent, reply);
    }

    fn judge<R: QuorumRequest>(
        &self,
        request: &R,
        session: &Session,
        sent: Moment,
        repeats: u8,
        value: &Value,
    ) -> Meaning<R> {
        let now = self.clock.now();
        let repeat =
            |verdict| if repeats < REPEATS { Meaning::Repeat(verdict) } else { Meaning::NoVote(verdict) };
        let refusal = |text: &str| Verdict::of(&session.node.connector.refusal(text));
        match value {
            Value::Error(text) if text.starts_with("NOSCRIPT") && repeats < REPEATS => {
                session.load(request.script(), now);
                Meaning::Repeat(Verdict::Unreachable { why: "it had forgotten the script".to_owned() })
            }
            Value::Error(text) if text.contains("WRONGTYPE") => Meaning::Counts,
            // One of all keys in the call was not allowed.
            Value::Error(text) if text.starts_with("NOPERM") && repeats == 0 => match request.halves() {
                Some(halves) => Meaning::Split(halves),
                None => Meaning::Repeat(refusal(text)),
            },
            Value::Error(text) => Meaning::NoVote(refusal(text)),
            Value::List(items) => match (items.first().and_then(Value::as_text), &items[..]) {
                (Some("LATE"), [_, Value::Int(time)]) => {
                    let time = u64::try_from(*time).unwrap_or(0);
                    session.node.read_clock(time, sent, now, &self.config);
                    let late = Verdict::Unreachable { why: "the request reached it too late".to_owned() };
                    // If its clock has leapt it would vote now, but with leases that ended early.
                    session.node.objection(now).map_or_else(|| repeat(late), Meaning::NoVote)
                }
                (Some("NODE"), [_, node_key]) => {
                    let node_key = node_key.as_text().unwrap_or_default();
                    match session.standing(node_key, &self.config, now) {
                        Standing::GreetFirst(verdict) => {
                            if repeats < REPEATS {
                                session.greet(&self.config, now);
                            }
                            repeat(verdict)
                        }
                        Standing::Votes => repeat(late()),
                        Standing::Refused(verdict) => Meaning::NoVote(verdict),
                    }
                }
                _ => Meaning::Counts,
            },
            _ => Meaning::Counts,
        }
    }
}

/// What to say of a node whose reply did not come.
pub(super) fn late() -> Verdict {
    Verdict::Unreachable { why: "it did not answer in time".to_owned() }
}

/// What is known of a request so far. Replies change it, and its caller waits for it.
#[derive(Debug)]
pub(super) struct Progress<S> {
    state: Mutex<S>,
    changed: Notify,
}

impl<S> Progress<S> {
    pub(super) fn new(state: S) -> Self {
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, S> {
        lock(&self.state)
    }

    /// Wakes the callers that wait, if any.
    pub(super) fn notify(&self) {
        self.changed.notify_waiters();
    }

    /// Waits until `find` finds something.
    pub(super) async fn until<T>(&self, mut find: impl FnMut(&S) -> Option<T>) -> T {
        until(&self.changed, || find(&self.lock())).await
    }
}
