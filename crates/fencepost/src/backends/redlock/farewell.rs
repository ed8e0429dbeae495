//! Gives a lock back on all nodes that may have it: after it was held, or after an attempt that came to nothing. What was
//! to be taken over from somebody is given back to that one.
//!
//! The request goes over the connection that carried what it undoes, so it arrives behind it. Where that connection
//! has ended, what was sent over it may still arrive, so giving back is repeated over a new one, in the background,
//! until the node can have nothing of it any more.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use super::fleet::{Fleet, Heard, Question, Reach, late};
use super::keys::Keys;
use super::node::{Link, Script};
use super::quorum::{Nodes, majority};
use crate::backends::redis::driver::batch::Step;
use crate::backends::redis::driver::connection::Call;
use crate::backends::redis::driver::resp::Value;
use crate::runtime::background::BackgroundTask;
use crate::runtime::clock::Moment;
use crate::runtime::keeper::Keeper;
use crate::runtime::sync::lock;
use crate::{Result, Verdict};

/// A waiter's place in the queues.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) entry: Arc<str>,
    /// The nodes that were asked to note it, over any connection.
    pub(super) nodes: Nodes,
}

impl Place {
    pub(super) fn asked(&mut self, links: &[Arc<Link>]) {
        links.iter().for_each(|link| self.nodes.insert(link.node.index));
    }
}

/// What is given back, and for how long it matters.
#[derive(Clone, Debug)]
pub(super) struct Parting {
    pub(super) keys: Arc<Keys>,
    pub(super) value: Arc<str>,
    /// What the key shall be again, instead of free: the lock was being taken over, and was not.
    pub(super) before: Option<Arc<str>>,
    /// Tell the next waiter. Not after an attempt that came to nothing: nobody can use that.
    pub(super) wake: bool,
    /// What a waiter leaves, too.
    pub(super) place: Option<Place>,
    /// After this, no node takes what was sent before.
    pub(super) settled_at: Moment,
    /// After this, every node has forgotten it by itself.
    pub(super) over_at: Moment,
}

pub(super) struct Farewell {
    fleet: Arc<Fleet>,
    keeper: Arc<Keeper>,
    parting: Parting,
    state: Mutex<State>,
    decided: Notify,
    /// Until a majority has nothing of it any more.
    errand: Mutex<Option<BackgroundTask>>,
}

/// What is known of each node.
struct State(Vec<Known>);

#[derive(Clone, Default)]
struct Known {
    /// Requests that are not answered yet. A node may have one over each of several connections.
    open: usize,
    /// One had no answer, and is being made up for.
    made_up: bool,
    /// That has come to its end.
    settled: bool,
    /// The best answer so far.
    answer: Option<Answer>,
}

#[derive(Clone)]
enum Answer {
    /// The lock was ours.
    Ours,
    NotOurs,
    /// There was none.
    Unknown(Verdict),
}

impl Farewell {
    /// Sends it over the given connections; a node may have several. Never waits.
    pub(super) fn say(
        fleet: &Arc<Fleet>,
        keeper: &Arc<Keeper>,
        parting: Parting,
        links: &[Arc<Link>],
    ) -> Arc<Self> {
        let mut known = vec![Known::default(); fleet.len()];
        for link in links {
            known[link.node.index].open += 1;
        }
        let state = Mutex::new(State(known));
        let farewell = Arc::new(Self {
            fleet: fleet.clone(),
            keeper: keeper.clone(),
            parting,
            state,
            decided: Notify::new(),
            errand: Mutex::new(Some(fleet.background.begin())),
        });
        for link in links {
            if let Err(why) = fleet.put(&farewell, link) {
                farewell.clone().hear(link.node.index, Heard::Not(Verdict::Unreachable { why }));
            }
        }
        // Earlier attempts asked nodes, too, whose connections may be gone by now.
        let elsewhere = farewell.parting.place.as_ref().map_or(Nodes::default(), |place| place.nodes);
        for node in elsewhere.iter().filter(|node| links.iter().all(|link| link.node.index != *node)) {
            farewell.make_up(node);
        }
        farewell.settle();
        farewell
    }

    /// Waits until a majority has answered: whether the lock was still ours.
    pub(super) async fn accepted(&self) -> Result<bool> {
        let wait = async {
            loop {
                let decided = self.decided.notified();
                tokio::pin!(decided);
                decided.as_mut().enable();
                if let Some(outcome) = self.outcome() {
                    return outcome;
                }
                decided.await;
            }
        };
        match tokio::time::timeout(self.fleet.config.timeout, wait).await {
            Ok(Some(ours)) => Ok(ours),
            Ok(None) | Err(_) => Err(self.fleet.no_majority(self.verdicts())),
        }
    }

    /// The outer `None`: not decided yet. The inner: too few answers.
    fn outcome(&self) -> Option<Option<bool>> {
        let nodes = &lock(&self.state).0;
        let (mut ours, mut open, mut unknown) = (0, 0, 0);
        for node in nodes {
            match &node.answer {
                Some(Answer::Ours) => ours += 1,
                _ if node.open > 0 => open += 1,
                Some(Answer::Unknown(_)) => unknown += 1,
                Some(Answer::NotOurs) | None => {}
            }
        }
        let enough = majority(nodes.len());
        if ours >= enough {
            Some(Some(true))
        } else if ours + open + unknown < enough {
            Some(Some(false))
        } else if open == 0 {
            Some(None)
        } else {
            None
        }
    }

    fn verdicts(&self) -> Vec<Verdict> {
        let verdict = |node: &Known| match &node.answer {
            Some(Answer::Ours | Answer::NotOurs) => Verdict::Granted,
            Some(Answer::Unknown(verdict)) => verdict.clone(),
            None => late(),
        };
        lock(&self.state).0.iter().map(verdict).collect()
    }

    /// Ends the errand when it is done at a majority.
    fn settle(&self) {
        let is_open = |node: &&Known| node.open > 0 || node.made_up && !node.settled;
        let open = lock(&self.state).0.iter().filter(is_open).count();
        if open + majority(self.fleet.len()) <= self.fleet.len() {
            lock(&self.errand).take();
        }
    }

    /// Goes on in the background until a node has answered for good.
    fn make_up(self: &Arc<Self>, node: usize) {
        if std::mem::replace(&mut lock(&self.state).0[node].made_up, true) {
            return;
        }
        let farewell = self.clone();
        self.keeper.spawn(async move {
            farewell.repeat(node).await;
            lock(&farewell.state).0[node].settled = true;
            farewell.settle();
        });
    }

    async fn repeat(&self, node: usize) {
        let (fleet, parting) = (&self.fleet, &self.parting);
        let mut pause = Duration::from_millis(50);
        let line = fleet.line();
        while fleet.clock.now() < parting.over_at {
            if let Reach::Up(link) = fleet.reach(&line, node, fleet.clock.now(), false) {
                let (sender, answer) = tokio::sync::oneshot::channel();
                let call: Call = Box::new(move |reply| drop(sender.send(reply)));
                let sent = fleet.clock.now();
                let put = parting.send(&link, true, sent, call);
                match tokio::time::timeout(fleet.config.timeout, answer).await {
                    // Before that, what was sent over the ended connection may still arrive behind this.
                    Ok(Ok(Some(Value::Int(_)))) if put.is_ok() && sent > parting.settled_at => return,
                    Ok(Ok(Some(Value::Error(text)))) if text.starts_with("NOSCRIPT") => {
                        link.load(Script::Turn, sent, fleet.clock.now());
                    }
                    _ => {}
                }
            }
            tokio::time::sleep(crate::wait::jittered(pause)).await;
            pause = (pause * 2).min(Duration::from_secs(2));
        }
    }
}

impl Parting {
    fn send(&self, link: &Link, alone: bool, sent: Moment, call: Call) -> Result<(), String> {
        let keys = [self.keys.lock(), self.keys.queue()];
        let give_back = |arguments: &[&str], call| {
            link.step(&Step { keys: &keys, arguments, needs_end: false, alone, pushes: false }, sent, call)
        };
        if let Some(before) = &self.before {
            return give_back(&["back", &self.value, before], call);
        }
        match (&self.place, self.wake) {
            (None, true) => give_back(&["free", &self.value], call),
            (place, wake) => {
                let entry = place.as_ref().map_or("", |place| &place.entry);
                give_back(&["leave", &self.value, entry, if wake { "wake" } else { "quiet" }], call)
            }
        }
    }
}

impl Question for Farewell {
    fn script(&self) -> Script {
        Script::Turn
    }

    fn send(&self, link: &Link, sent: Moment, call: Call) -> Result<(), String> {
        self.parting.send(link, false, sent, call)
    }

    fn send_late(&self, link: &Arc<Link>, sent: Moment, call: Call) -> Result<(), String> {
        self.parting.send(link, true, sent, call)
    }

    fn halves(&self) -> Option<[Arc<Self>; 2]> {
        None
    }

    fn hear(self: Arc<Self>, node: usize, heard: Heard) {
        let answer = match heard {
            Heard::Reply(Value::Int(1)) => Answer::Ours,
            Heard::Reply(_) => Answer::NotOurs,
            Heard::Not(verdict) => {
                self.make_up(node);
                Answer::Unknown(verdict)
            }
        };
        {
            let known = &mut lock(&self.state).0[node];
            known.open = known.open.saturating_sub(1);
            // Whichever request came first found the lock.
            let better = matches!(
                (&known.answer, &answer),
                (None, _) | (_, Answer::Ours) | (Some(Answer::NotOurs), Answer::Unknown(_))
            );
            if better {
                known.answer = Some(answer);
            }
        }
        self.decided.notify_waiters();
        self.settle();
    }
}
