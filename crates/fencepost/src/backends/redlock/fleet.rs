//! All nodes of a deployment, and the connections to them: a set for each runtime that uses the store, the keeper's among
//! them, because a connection belongs to the runtime whose task drives it.
//!
//! Nobody waits here. A node whose connection is not there is being connected to in the background, and a request for
//! it goes out when it is; one that cannot be reached is left alone for a while.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::runtime;
use tokio::sync::Notify;
use uuid::Uuid;

use super::config::{Config, NEW};
use super::node::{Condition, Link, Node, Script};
use super::quorum::majority;
use crate::backends::redis::driver::connection::Call;
use crate::backends::redis::driver::connector::Connector as Dial;
use crate::backends::redis::driver::pool::Pool;
use crate::backends::redis::driver::push::PushRouter as Inbox;
use crate::backends::redis::driver::resp::Value;
use crate::report::NoMajority;
use crate::runtime::background::BackgroundTasks;
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::sync::lock;
use crate::{Error, NodeReport, Result, Verdict, format_duration};

/// How long a node is left alone after a failed connect: from here, doubling, to there.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// And one that is not usable as it is configured.
const RETRY_REFUSED: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Fleet {
    pub(super) config: Config,
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) clock: Clock,
    pub(super) background: BackgroundTasks,
    lines: Mutex<HashMap<runtime::Id, Arc<Line>>>,
    /// What the channels of this store are made of. Of the operating system's: what a process draws by itself, processes
    /// that were forked from it draw, too.
    channels: Uuid,
}

/// The connections of one runtime.
#[derive(Debug)]
pub(super) struct Line {
    /// Where the nodes push messages for this line.
    pub(super) channel: String,
    slots: Vec<Mutex<Slot>>,
    /// What drives the connections.
    pool: Arc<Pool>,
    /// Some slot has changed.
    changed: Notify,
    runtime: runtime::Handle,
}

/// The connection to one node.
#[derive(Debug)]
enum Slot {
    Up(Arc<Link>),
    Opening,
    Down { why: Verdict, retry_at: Moment, failures: u32 },
}

/// Whether a node can be asked.
pub(super) enum Reach {
    Up(Arc<Link>),
    Opening,
    Down(Verdict),
}

impl Reach {
    /// What to say of a node that was not asked, or not yet.
    pub(super) fn verdict(self) -> Verdict {
        match self {
            Self::Up(_) => Verdict::Granted,
            Self::Down(verdict) => verdict,
            Self::Opening => late(),
        }
    }
}

/// What to say of a node whose answer did not come.
pub(super) fn late() -> Verdict {
    Verdict::Unreachable { why: "it did not answer in time".to_owned() }
}

/// What a node answered to a question.
pub(super) enum Heard {
    Reply(Value),
    Not(Verdict),
}

/// Something that is asked of several nodes, and that hears their answers where they are read.
pub(super) trait Question: Send + Sync + 'static {
    /// Which script it calls.
    fn script(&self) -> Script;

    /// Puts the request into the connection's buffer; never waits.
    fn send(&self, link: &Link, sent: Moment, call: Call) -> Result<(), String>;

    /// The same later than all others, and alone: because the node did not act on it the first time, or was not connected. Fails if
    /// what is asked for has been given back meanwhile. Whoever gives it back does so before this, or behind what this sends.
    fn send_late(&self, link: &Arc<Link>, sent: Moment, call: Call) -> Result<(), String>;

    /// Two questions that ask for the same, for a node that refuses to be asked for all of it in one request; `None` if
    /// there is nothing to part.
    fn halves(&self) -> Option<[Arc<Self>; 2]>;

    /// Takes in what a node answered. Called without any lock held, once for every request sent.
    fn hear(self: Arc<Self>, node: usize, heard: Heard);
}

impl Fleet {
    pub(super) fn new(config: Config, clock: Clock) -> Result<Self> {
        let nodes = config.nodes.iter().cloned().enumerate();
        let nodes = nodes.map(|(index, node)| Ok(Arc::new(Node::new(index, Dial::new(node)?))));
        Ok(Self {
            nodes: nodes.collect::<Result<_>>()?,
            config,
            inbox: Arc::default(),
            clock,
            background: BackgroundTasks::default(),
            lines: Mutex::default(),
            channels: Uuid::new_v4(),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The line of the current runtime.
    pub(super) fn line(&self) -> Arc<Line> {
        let runtime = runtime::Handle::current();
        let mut lines = lock(&self.lines);
        if let Some(line) = lines.get(&runtime.id()) {
            return line.clone();
        }
        // Runtimes come and go, in tests above all. A line that somebody waits or holds a lock on keeps its channel.
        lines.retain(|_, line| Arc::strong_count(line) > 1 || line.is_up());
        // The same each time for a runtime, also after a close: waiters and holders have told the nodes this one.
        let hash = Sha256::digest(format!("{} {}", self.channels, runtime.id()));
        let channel = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let never =
            || Mutex::new(Slot::Down { why: not_yet(), retry_at: Moment::at(Duration::ZERO), failures: 0 });
        let slots = self.nodes.iter().map(|_| never()).collect();
        let line = Arc::new(Line {
            channel,
            slots,
            pool: Arc::default(),
            changed: Notify::new(),
            runtime: runtime.clone(),
        });
        lines.insert(runtime.id(), line.clone());
        line
    }

    /// Looks whether a node can be asked, and sees to it that it soon can. With `insist` also if it has just failed.
    pub(super) fn reach(self: &Arc<Self>, line: &Arc<Line>, node: usize, now: Moment, insist: bool) -> Reach {
        let mut slot = lock(&line.slots[node]);
        let (old, failures) = match &*slot {
            Slot::Up(link) => match link.condition(now, self.config.timeout) {
                Condition::Good => return Reach::Up(link.clone()),
                Condition::Out(verdict) => return Reach::Down(verdict),
                Condition::Ended => (Some(link.clone()), 0),
                // It did connect before, but does not answer: that is a failure, too.
                Condition::Stuck => (Some(link.clone()), 1),
            },
            Slot::Opening => return Reach::Opening,
            Slot::Down { why, retry_at, .. } if now < *retry_at && !insist => {
                return Reach::Down(why.clone());
            }
            Slot::Down { failures, .. } => (None, *failures),
        };
        *slot = Slot::Opening;
        let (fleet, line_) = (self.clone(), line.clone());
        line.runtime.spawn(async move {
            // Ends what was asked over the old one, which may call anybody: so not under a lock.
            if let Some(old) = old {
                old.close();
            }
            fleet.open(&line_, node, failures).await;
        });
        Reach::Opening
    }

    async fn open(&self, line: &Line, node: usize, failures: u32) {
        let (config, timeout) = (&self.config, self.config.timeout);
        let connect = self.nodes[node].connect(
            config,
            &line.pool,
            &line.channel,
            "meet",
            self.inbox.clone(),
            &self.clock,
        );
        let opened = match tokio::time::timeout(timeout, connect).await {
            Ok(Ok(link)) => {
                self.find_twins();
                Ok(link)
            }
            Ok(Err(error)) => Err(Verdict::of(&error)),
            Err(_) => Err(Verdict::Unreachable {
                why: format!("it did not answer a greeting within {}", format_duration(timeout)),
            }),
        };
        let slot = match opened {
            Ok(link) => Slot::Up(Arc::new(link)),
            Err(why) => {
                let pause = match &why {
                    Verdict::Refused { .. } => RETRY_REFUSED,
                    _ => (RETRY.0 * (1 << failures.min(8))).min(RETRY.1),
                };
                if failures == 0 {
                    tracing::warn!(node = self.nodes[node].label(), verdict = %why, "a node cannot be used for now");
                }
                let retry_at = self.clock.now().plus(crate::wait::jittered(pause));
                Slot::Down { why, retry_at, failures: failures + 1 }
            }
        };
        *lock(&line.slots[node]) = slot;
        line.changed.notify_waiters();
    }

    /// Finds servers that are in the list under two names: they would have two votes. The first name has one.
    pub(super) fn find_twins(&self) {
        let runs: Vec<_> = self.nodes.iter().map(|node| node.run()).collect();
        for (index, node) in self.nodes.iter().enumerate() {
            let twin = (0..index).find(|&other| runs[other].is_some() && runs[other] == runs[index]);
            node.set_twin(twin.map(|twin| &*self.nodes[twin]));
        }
    }

    /// Asks a node something over a connection. Fails if that has ended; else the question hears exactly once.
    pub(super) fn put<Q: Question>(
        self: &Arc<Self>,
        question: &Arc<Q>,
        link: &Arc<Link>,
    ) -> Result<(), String> {
        let sent = self.clock.now();
        question.send(link, sent, self.ear(question, link, sent, 0))
    }

    /// The same for a question that was put to others before. Fails also if it has settled itself.
    pub(super) fn put_late<Q: Question>(
        self: &Arc<Self>,
        question: &Arc<Q>,
        link: &Arc<Link>,
        again: u8,
    ) -> Result<(), String> {
        let sent = self.clock.now();
        question.send_late(link, sent, self.ear(question, link, sent, again))
    }

    /// What hears the answer to a question sent for the `again`-th time.
    fn ear<Q: Question>(
        self: &Arc<Self>,
        question: &Arc<Q>,
        link: &Arc<Link>,
        sent: Moment,
        again: u8,
    ) -> Call {
        let (fleet, asked, over) = (self.clone(), question.clone(), link.clone());
        Box::new(move |reply: Option<Value>| fleet.heard(&asked, &over, sent, again, reply))
    }

    fn heard<Q: Question>(
        self: &Arc<Self>,
        question: &Arc<Q>,
        link: &Arc<Link>,
        sent: Moment,
        again: u8,
        reply: Option<Value>,
    ) {
        let verdict = match reply {
            None => Verdict::Unreachable { why: link.why_ended() },
            Some(reply) => match self.judge(&**question, link, sent, again, &reply) {
                Judged::Answer => return question.clone().hear(link.node.index, Heard::Reply(reply)),
                // The script did nothing, so it can be sent once more.
                Judged::Again(_) if self.put_late(question, link, again + 1).is_ok() => return,
                Judged::Part(halves) => {
                    for half in halves {
                        if let Err(why) = self.put_late(&half, link, 0) {
                            half.hear(link.node.index, Heard::Not(Verdict::Unreachable { why }));
                        }
                    }
                    return;
                }
                Judged::Again(verdict) | Judged::Not(verdict) => verdict,
            },
        };
        question.clone().hear(link.node.index, Heard::Not(verdict));
    }

    /// Whether a reply is an answer, or says why there is none.
    fn judge<Q: Question>(
        &self,
        question: &Q,
        link: &Link,
        sent: Moment,
        again: u8,
        reply: &Value,
    ) -> Judged<Q> {
        let now = self.clock.now();
        let may_repeat = again < 2;
        match reply {
            Value::Error(text) if text.starts_with("NOSCRIPT") && may_repeat => {
                link.load(question.script(), sent, now);
                Judged::Again(Verdict::Unreachable { why: "it had forgotten the script".to_owned() })
            }
            Value::Error(text) if text.contains("WRONGTYPE") => Judged::Answer,
            // Of all that went in one call, one was not allowed. Whatever is sent again goes alone.
            Value::Error(text) if text.starts_with("NOPERM") && again == 0 => match question.halves() {
                Some(halves) => Judged::Part(halves),
                None => Judged::Again(Verdict::of(&link.node.dial.refusal(text))),
            },
            Value::Error(text) => Judged::Not(Verdict::of(&link.node.dial.refusal(text))),
            Value::List(items) => match (items.first().and_then(Value::as_text), &items[..]) {
                (Some("LATE"), [_, Value::Int(time)]) => {
                    link.node.read_clock(u64::try_from(*time).unwrap_or(0), sent, now, &self.config);
                    let late = Verdict::Unreachable { why: "the request reached it too late".to_owned() };
                    match link.node.objection(now) {
                        // Its clock has leapt: it would vote now, but with leases that ended early.
                        Some(verdict) => Judged::Not(verdict),
                        None if may_repeat => Judged::Again(late),
                        None => Judged::Not(late),
                    }
                }
                (Some("NODE"), [_, said]) => {
                    let said = said.as_text().unwrap_or_default();
                    match self.config.standing(said, &link.votes, link.node.time(now)) {
                        None => {
                            let verdict = self.unsettled(said);
                            if !may_repeat {
                                return Judged::Not(verdict);
                            }
                            link.greet(&self.config, now);
                            Judged::Again(verdict)
                        }
                        Some(verdict) => Judged::Not(verdict),
                    }
                }
                _ => Judged::Answer,
            },
            _ => Judged::Answer,
        }
    }

    /// What to say of a node that has to be greeted before it votes, if it is not.
    pub(super) fn unsettled(&self, said: &str) -> Verdict {
        // By our estimate of its clock a quarantine is over where the node says that it is not.
        let (left, why) = if said.is_empty() {
            (self.config.quarantine, NEW)
        } else {
            (Duration::from_millis(1), "its quarantine is ending")
        };
        Verdict::Quarantined { left, why: why.to_owned() }
    }

    /// What an operator can do if the nodes are new, as far as they know, and none of those that answered has ever voted.
    fn next_step(&self, verdicts: &[Verdict]) -> Option<&'static str> {
        let is_new = |verdict: &&Verdict| matches!(verdict, Verdict::Quarantined { why, .. } if why == NEW);
        let is_silent = |verdict: &&Verdict| matches!(verdict, Verdict::Unreachable { .. });
        let (new, silent) =
            (verdicts.iter().filter(is_new).count(), verdicts.iter().filter(is_silent).count());
        (new >= majority(self.len()) && new + silent == self.len()).then_some(
            "if these servers have never been used for locks, declare them with `fencepost init`, and they vote at once",
        )
    }

    /// What to say when no majority votes: a configuration error if that alone is the reason.
    pub(super) fn no_majority(&self, verdicts: Vec<Verdict>) -> Error {
        let refused = verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Refused { .. })).count();
        let next = self.next_step(&verdicts);
        let labels = self.nodes.iter().map(|node| node.label().to_owned());
        let nodes = labels.zip(verdicts).map(|(node, verdict)| NodeReport { node, verdict }).collect();
        let none = NoMajority { nodes, next };
        if refused > self.len() - majority(self.len()) {
            Error::config(none.to_string())
        } else {
            Error::Unavailable { store: self.config.label.clone(), source: Box::new(none) }
        }
    }

    /// Waits until the nodes that can be connected to are, as far as the deadline allows. Goes on a little after a
    /// majority is there, to find what is wrong with the others.
    pub(super) async fn settle(self: &Arc<Self>, line: &Arc<Line>, deadline: Moment) -> Vec<Reach> {
        let mut patience = deadline;
        loop {
            let changed = line.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let now = self.clock.now();
            let reaches: Vec<_> = (0..self.len()).map(|node| self.reach(line, node, now, false)).collect();
            let up = reaches.iter().filter(|reach| matches!(reach, Reach::Up(_))).count();
            let opening = reaches.iter().any(|reach| matches!(reach, Reach::Opening));
            if up >= majority(self.len()) {
                patience = patience.min(now.plus(GRACE));
            }
            if !opening || self.clock.within(Some(patience), changed).await.is_none() {
                return reaches;
            }
        }
    }

    /// Ends all connections.
    pub(super) fn close(&self) {
        let lines = std::mem::take(&mut *lock(&self.lines));
        for slot in lines.values().flat_map(|line| &line.slots) {
            let down = Slot::Down { why: not_yet(), retry_at: Moment::at(Duration::ZERO), failures: 0 };
            // In a statement of its own: what hears of the end may look at this slot.
            let slot = std::mem::replace(&mut *lock(slot), down);
            if let Slot::Up(link) = slot {
                link.close();
            }
        }
    }
}

/// How long a connect waits for the rest of the nodes when a majority is there.
const GRACE: Duration = Duration::from_millis(100);

enum Judged<Q> {
    Answer,
    /// It did nothing, because of a part of what it was asked for.
    Part([Arc<Q>; 2]),
    /// It did nothing, and may if it is asked again. The verdict if it is not.
    Again(Verdict),
    Not(Verdict),
}

fn not_yet() -> Verdict {
    Verdict::Unreachable { why: "it has not answered yet".to_owned() }
}

impl Line {
    /// Whether a connection is open. Those of a runtime that is gone have ended.
    fn is_up(&self) -> bool {
        self.up().0 > 0
    }

    /// Completes when a connection has come up or failed after this was called.
    pub(super) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    /// How many nodes are connected, and how many of them keep up.
    pub(super) fn up(&self) -> (usize, usize) {
        let (mut up, mut keeping_up) = (0, 0);
        for slot in &self.slots {
            if let Slot::Up(link) = &*lock(slot)
                && let Some(keeps_up) = link.keeps_up()
            {
                up += 1;
                keeping_up += usize::from(keeps_up);
            }
        }
        (up, keeping_up)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::redlock::node::tests::mute_link;
    use crate::url::StoreUrl;

    fn fleet() -> Arc<Fleet> {
        let config = Config::from_url(StoreUrl::parse("redlock://a,b,c").unwrap()).unwrap();
        Arc::new(Fleet::new(config, Clock::system()).unwrap())
    }

    #[tokio::test]
    async fn who_hears_that_a_connection_was_closed_may_look_at_all_of_them() {
        let fleet = fleet();
        let line = fleet.line();
        let (link, _theirs) = mute_link(&fleet.nodes[0]);
        *lock(&line.slots[0]) = Slot::Up(link.clone());
        let (sender, free) = std::sync::mpsc::channel();
        let slots = line.clone();
        let call: Call = Box::new(move |_| sender.send(slots.slots[0].try_lock().is_ok()).unwrap());
        link.eval(Script::Hold, &[], &[], fleet.clock.now(), call).unwrap();
        fleet.close();
        assert!(free.try_recv().unwrap(), "calls are made with no lock held");
    }

    #[test]
    fn the_line_of_a_runtime_that_is_gone_is_forgotten() {
        let fleet = fleet();
        let runtime = || runtime::Builder::new_current_thread().build().unwrap();
        let (first, second, third) = (runtime(), runtime(), runtime());
        let _theirs = {
            let _inside = first.enter();
            let (link, theirs) = mute_link(&fleet.nodes[0]);
            *lock(&fleet.line().slots[0]) = Slot::Up(link);
            theirs
        };
        second.block_on(async { drop(fleet.line()) });
        assert_eq!(lock(&fleet.lines).len(), 2, "the first is in use");
        drop(first);
        third.block_on(async { drop(fleet.line()) });
        assert_eq!(lock(&fleet.lines).len(), 1, "nobody can use it any more");
    }
}
