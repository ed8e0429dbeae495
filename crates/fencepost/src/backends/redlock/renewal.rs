//! Changes the leases of locks that nodes have. Many held locks are extended by one request to each node, and
//! each of them if a majority of nodes still has it. Only then it is made anew where it is gone: a lock that
//! was given back, or revoked, must not come back. Taking a detached lock over goes the same way.

use std::sync::Arc;
use std::time::Duration;

use super::hold::HeldLock;
use super::nodes::{Nodes, RuntimeSlot};
use super::quorum::{Extended, Extension, Kept, NodeSet};
use super::record;
use super::request::{Delivery, Progress, QuorumRequest, late};
use super::session::{Script, Session};
use crate::backend::Renewal;
use crate::backends::common::batch::Batches;
use crate::backends::redis::driver::resp::{Part, Ready, Value};
use crate::backends::redis::milliseconds;
use crate::runtime::clock::Moment;
use crate::runtime::lease::valid_until;
use crate::{Result, Verdict};

/// How much later than meant a node acts at most, because its clock may go more slowly than ours.
const SLACK: Duration = Duration::from_millis(100);

/// Renewals that go to the nodes together.
pub(super) type Renewals = Batches<Arc<LeaseChange>>;

/// Extends a lock: together with others that are due, if this is the keeper.
pub(super) async fn renew(nodes: &Arc<Nodes>, held: Arc<HeldLock>, term: Duration) -> Result<Renewal> {
    let change = LeaseChange::new(nodes, held, term);
    let all = nodes.clone();
    nodes.renewals.send(change.clone(), move |batch| send_batch(&all, batch));
    let timeout = nodes.config.timeout.min((term / 3).max(Duration::from_millis(20)));
    match tokio::time::timeout(timeout, change.decision()).await {
        Ok((Extended::Yes, sent)) => Ok(Renewal::Renewed { sent, term: Some(term) }),
        Ok((Extended::Lost, _)) => {
            let found = change.found();
            let taken = found.iter().rfind(|value| !value.is_empty());
            let loss = record::loss(taken.map_or("", String::as_str), change.held.owner);
            Ok(Renewal::Lost(loss))
        }
        Ok((Extended::Failed | Extended::Wait, _)) | Err(_) => Err(nodes.no_majority(change.verdicts())),
    }
}

/// Moves a detached lock from the value `from` to that of `held`, until `deadline`.
pub(super) fn take_over(
    nodes: &Arc<Nodes>,
    slot: &Arc<RuntimeSlot>,
    held: Arc<HeldLock>,
    from: Arc<str>,
    term: Duration,
    deadline: Moment,
) -> Arc<LeaseChange> {
    let change = LeaseChange::new(nodes, held, term);
    let (sent, changes) = (nodes.clock.now(), vec![change.clone()]);
    let request = LeaseRequest::new(nodes, slot, Verb::Move { from }, sent, deadline, changes);
    nodes.ask(slot, &request, NodeSet::all(nodes.len()));
    change
}

/// A batch must be answered before the first of its leases ends. So leases that are about to end go in a
/// batch of their own, and take no time of the others. Those that have ended are left out.
fn send_batch(nodes: &Arc<Nodes>, changes: Vec<Arc<LeaseChange>>) {
    let (slot, now) = (nodes.slot(), nodes.clock.now());
    for changes in by_time_left(changes, now, nodes.config.timeout) {
        let request = LeaseRequest::extend(nodes, &slot, changes);
        nodes.ask(&slot, &request, NodeSet::all(nodes.len()));
    }
}

fn by_time_left(
    mut changes: Vec<Arc<LeaseChange>>,
    now: Moment,
    timeout: Duration,
) -> Vec<Vec<Arc<LeaseChange>>> {
    let left = |change: &LeaseChange| change.held.while_held().map(|sent| sent.valid_until.since(now));
    changes.retain(|change| left(change).is_some_and(|left| !left.is_zero()));
    let (calm, hasty): (Vec<_>, Vec<_>) =
        changes.into_iter().partition(|change| left(change).is_some_and(|left| left >= timeout));
    [calm, hasty].into_iter().filter(|changes| !changes.is_empty()).collect()
}

/// One lock whose lease is being changed, and what the nodes replied.
#[derive(Debug)]
pub(super) struct LeaseChange {
    pub(super) held: Arc<HeldLock>,
    term: Duration,
    /// How long a node keeps the key.
    life: Duration,
    progress: Progress<Replies>,
}

#[derive(Debug)]
struct Replies {
    extension: Extension<Moment>,
    verdicts: Vec<Option<Verdict>>,
    /// What was found in the lock's place; empty where nothing was.
    found: Vec<String>,
    /// The nodes that have lost the lock and are not being repaired yet.
    gone: NodeSet,
    /// And when the request was sent that it answers.
    decision: Option<(Extended, Moment)>,
}

impl LeaseChange {
    /// Replies count until the validity of the lock ends.
    fn new(nodes: &Nodes, held: Arc<HeldLock>, term: Duration) -> Arc<Self> {
        let (n, until) = (nodes.len(), held.in_flight().valid_until);
        let progress = Progress::new(Replies {
            extension: Extension::new(vec![Kept::Open; n], until),
            verdicts: vec![None; n],
            found: Vec::new(),
            gone: NodeSet::default(),
            decision: None,
        });
        Arc::new(Self { held, term, life: nodes.config.key_life(term), progress })
    }

    /// Waits for the decision, and says when the request was sent.
    pub(super) async fn decision(&self) -> (Extended, Moment) {
        self.progress.until(|replies| replies.decision).await
    }

    /// What was found in the lock's place, by node; empty where nothing was.
    pub(super) fn found(&self) -> Vec<String> {
        self.progress.lock().found.clone()
    }

    pub(super) fn verdicts(&self) -> Vec<Verdict> {
        self.progress.lock().verdicts.iter().map(|said| said.clone().unwrap_or_else(late)).collect()
    }

    /// Counts what a node replied to a request that was first sent at `sent`.
    fn count(&self, node: usize, reply: Result<Value, Verdict>, sent: Moment, now: Moment) {
        let held_by = |by: &str| Verdict::Held { by: by.to_owned() };
        let mut replies = self.progress.lock();
        let (kept, verdict) = match reply {
            Ok(Value::Int(1)) => (Kept::Yes, Verdict::Granted),
            Ok(Value::Int(0)) => {
                replies.gone.insert(node);
                replies.found.push(String::new());
                (Kept::No, held_by("nobody any more"))
            }
            Ok(Value::Text(text)) => {
                replies.found.push(String::from_utf8_lossy(&text).into_owned());
                (Kept::No, held_by("somebody else"))
            }
            Ok(odd) => (Kept::Silent, odd_reply(&odd)),
            Err(verdict) => (Kept::Silent, verdict),
        };
        replies.verdicts[node] = Some(verdict);
        let outcome = replies.extension.on_reply(node, kept, now);
        if outcome == Extended::Wait {
            return;
        }
        if outcome == Extended::Yes {
            let mut sent_for = self.held.in_flight();
            sent_for.valid_until = sent_for.valid_until.max(valid_until(sent, self.term));
        }
        replies.decision = Some((outcome, sent));
    }

    /// The nodes to repair, each once: none before a majority is known to have the lock.
    fn to_repair(&self) -> NodeSet {
        let mut replies = self.progress.lock();
        match replies.decision {
            Some((Extended::Yes, _)) => std::mem::take(&mut replies.gone),
            _ => NodeSet::default(),
        }
    }
}

/// What a request does with the locks that it names.
#[derive(Clone, Debug)]
enum Verb {
    Extend,
    /// Makes the lock anew where it is gone.
    Repair,
    /// Moves the lock from another value to this one.
    Move {
        from: Arc<str>,
    },
}

/// One request to each node for several locks.
struct LeaseRequest {
    nodes: Arc<Nodes>,
    slot: Arc<RuntimeSlot>,
    verb: Verb,
    /// Before the first of them was sent: the new leases count from here.
    sent: Moment,
    /// No node may act later.
    deadline: Moment,
    changes: Vec<Arc<LeaseChange>>,
    /// What all nodes are told of the locks.
    keys: Ready,
    arguments: Ready,
}

impl LeaseRequest {
    /// No node may act after the validity of one of the locks, or it could lengthen what was lost.
    fn extend(nodes: &Arc<Nodes>, slot: &Arc<RuntimeSlot>, mut changes: Vec<Arc<LeaseChange>>) -> Arc<Self> {
        // The order in which they are locked: the same in each batch.
        changes.sort_unstable_by_key(|change| Arc::as_ptr(&change.held));
        let ends = changes.iter().map(|change| change.held.in_flight().valid_until);
        let sent = nodes.clock.now();
        let deadline = ends.min().unwrap_or(sent);
        Self::new(nodes, slot, Verb::Extend, sent, deadline, changes)
    }

    fn new(
        nodes: &Arc<Nodes>,
        slot: &Arc<RuntimeSlot>,
        verb: Verb,
        sent: Moment,
        deadline: Moment,
        changes: Vec<Arc<LeaseChange>>,
    ) -> Arc<Self> {
        let (mut keys, mut arguments) = (Ready::default(), Ready::default());
        for LeaseChange { held, life, .. } in changes.iter().map(|change| &**change) {
            let [lock, counter, _] = held.keys.each();
            keys.push(lock);
            keys.push(counter);
            if let Verb::Move { from } = &verb {
                arguments.push(from);
            }
            arguments.push(&held.value);
            arguments.push(&milliseconds(*life));
            if !matches!(verb, Verb::Move { .. }) {
                arguments.push_number(held.token.get());
            }
        }
        let (nodes, slot) = (nodes.clone(), slot.clone());
        Arc::new(Self { nodes, slot, verb, sent, deadline, changes, keys, arguments })
    }

    /// Counts what a node replied of each lock.
    fn count(&self, node: usize, replies: impl Iterator<Item = Result<Value, Verdict>>) {
        let now = self.nodes.clock.now();
        for (change, reply) in self.changes.iter().zip(replies) {
            change.count(node, reply, self.sent, now);
            if matches!(self.verb, Verb::Extend) {
                self.repair(change);
            }
            // Whoever hears of it may end what can be sent for this lock.
            change.progress.notify();
        }
    }

    /// Makes a lock anew where it is gone, once a majority has it, no later than its validity ends.
    fn repair(&self, change: &Arc<LeaseChange>) {
        let gone = change.to_repair();
        if !gone.is_empty() {
            let deadline = change.held.in_flight().valid_until;
            let request = self.with(Verb::Repair, deadline, vec![change.clone()]);
            self.nodes.ask(&self.slot, &request, gone);
        }
    }

    /// Another request for some of the locks.
    fn with(&self, verb: Verb, deadline: Moment, changes: Vec<Arc<LeaseChange>>) -> Arc<Self> {
        Self::new(&self.nodes, &self.slot, verb, self.sent, deadline, changes)
    }
}

impl QuorumRequest for LeaseRequest {
    fn script(&self) -> Script {
        match self.verb {
            Verb::Extend | Verb::Repair => Script::Hold,
            Verb::Move { .. } => Script::Attach,
        }
    }

    fn send(&self, session: &Arc<Session>, Delivery { sent, call, .. }: Delivery) -> Result<(), String> {
        if sent >= self.deadline {
            return Err("a lease ended meanwhile".to_owned());
        }
        // A lock that was given back costs the others nothing: this makes nothing anew.
        let held = self.changes.iter().filter_map(|change| Some((change.held.while_held()?, change.life)));
        let mut held: Vec<_> = held.collect();
        if held.is_empty() {
            return Err("given back meanwhile".to_owned());
        }
        for (in_flight, life) in &mut held {
            in_flight.add(session, sent, self.deadline.plus(SLACK), self.deadline.plus(*life));
            in_flight.repaired |= matches!(self.verb, Verb::Repair);
        }
        let not_after = session.node.at_least(self.deadline, sent);
        let node_key = [self.nodes.config.node_key.as_str()];
        let keys = [Part::Words(&node_key), Part::Ready(&self.keys)];
        let terms: &[&str] = match self.verb {
            Verb::Extend => &[&session.votes, &not_after, "extend"],
            Verb::Repair => &[&session.votes, &not_after, "mend"],
            Verb::Move { .. } => &[&session.votes, &not_after],
        };
        session.eval(self.script(), &keys, &[Part::Words(terms), Part::Ready(&self.arguments)], sent, call)
    }

    /// One name that this user may not touch must not cost all others their renewal.
    fn halves(&self) -> Option<[Arc<Self>; 2]> {
        let (one, other) = self.changes.split_at(self.changes.len() / 2);
        let half =
            |changes: &[Arc<LeaseChange>]| self.with(self.verb.clone(), self.deadline, changes.to_vec());
        (!one.is_empty()).then(|| [half(one), half(other)])
    }

    fn on_reply(self: Arc<Self>, node: usize, sent: Moment, reply: Result<Value, Verdict>) {
        let reply = match (&self.verb, reply) {
            // The next renewal asks again.
            (Verb::Repair, _) => return,
            // The counter does not matter: the look has told the token, and the key is enough to keep a lock.
            (Verb::Move { .. }, Ok(Value::Int(_))) => Ok(vec![Value::Int(1)]),
            (Verb::Move { .. }, Ok(Value::List(mut found))) if found.len() == 1 => {
                let nothing = found[0].as_text() == Some("");
                Ok(vec![if nothing { Value::Int(0) } else { found.remove(0) }])
            }
            (Verb::Extend, Ok(Value::List(mut items))) if items.len() == self.changes.len() + 1 => {
                if let Some(time) = items[0].as_int().and_then(|time| u64::try_from(time).ok()) {
                    let now = self.nodes.clock.now();
                    self.nodes.each[node].read_clock(time, sent, now, &self.nodes.config);
                }
                items.remove(0);
                Ok(items)
            }
            (_, Ok(odd)) => Err(odd_reply(&odd)),
            (_, Err(verdict)) => Err(verdict),
        };
        match reply {
            Ok(items) => self.count(node, items.into_iter().map(Ok)),
            Err(verdict) => self.count(node, std::iter::repeat_with(|| Err(verdict.clone()))),
        }
    }
}

fn odd_reply(reply: &Value) -> Verdict {
    Verdict::Unreachable { why: format!("an odd answer: {reply:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::redlock::config::Config;
    use crate::backends::redlock::hold::tests::lock_until;
    use crate::backends::redlock::session::GreetMode;
    use crate::backends::redlock::session::tests::mute;
    use crate::runtime::clock::Clock;
    use crate::url::StoreUrl;

    fn nodes() -> Arc<Nodes> {
        let config = Config::from_url(StoreUrl::parse("redlock://a,b,c").unwrap()).unwrap();
        Arc::new(Nodes::new(config, Clock::system(), GreetMode::MEET).unwrap())
    }

    fn change(nodes: &Nodes, until: Moment) -> Arc<LeaseChange> {
        LeaseChange::new(nodes, lock_until(until), Duration::from_secs(30))
    }

    #[test]
    fn a_lease_that_is_about_to_end_does_not_hurry_others() {
        let (at, nodes) = (|seconds| Moment::at(Duration::from_secs(seconds)), nodes());
        let changes = [101, 130, 100, 102, 99].map(|end| change(&nodes, at(end))).to_vec();
        let groups = by_time_left(changes, at(100), Duration::from_secs(2));
        let ends = |group: &Vec<Arc<LeaseChange>>| {
            group.iter().map(|change| change.held.in_flight().valid_until).collect::<Vec<_>>()
        };
        assert_eq!(groups.iter().map(ends).collect::<Vec<_>>(), [vec![at(130), at(102)], vec![at(101)]]);
    }

    #[tokio::test]
    async fn a_lock_that_is_given_back_does_not_keep_others_from_being_extended() {
        let nodes = nodes();
        let until = nodes.clock.now().plus(Duration::from_secs(30));
        let changes = [change(&nodes, until), change(&nodes, until)];
        let request = LeaseRequest::extend(&nodes, &nodes.slot(), changes.to_vec());
        let (session, _theirs) = mute(&nodes.each[0]);
        let send = || {
            let sent = nodes.clock.now();
            request.send(&session, Delivery { sent, alone: false, call: Box::new(drop) })
        };
        changes[0].held.in_flight().closed = true;
        send().unwrap();
        assert_eq!(changes.each_ref().map(|change| change.held.in_flight().sessions().len()), [0, 1]);
        changes[1].held.in_flight().closed = true;
        send().unwrap_err();
    }
}
