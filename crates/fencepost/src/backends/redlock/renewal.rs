//! Extends held locks: many of them by one request to each node, and each of them if a majority of nodes still has it. Only
//! then it is made anew where it is gone: a lock that was given back, or revoked, must not come back.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::oneshot;

use super::claim::valid_until;
use super::fleet::{Fleet, Heard, Line, Question, Reach, late};
use super::keys::Keys;
use super::mending::Mending;
use super::node::{Link, Script};
use super::quorum::{Extended, Extension, Kept, MAX_NODES, Nodes, majority};
use super::trace::{Sent, Trace};
use super::{milliseconds, revocation};
use crate::backend::Renewal;
use crate::backends::common::batch::Batches;
use crate::backends::redis::driver::connection::Call;
use crate::backends::redis::driver::resp::{Part, Ready, Value};
use crate::runtime::clock::Moment;
use crate::runtime::sync::lock;
use crate::{FencingToken, Loss, Owner, Result, Verdict};

/// How much later than meant a node acts at most, because its clock may go more slowly than ours.
pub(super) const SLACK: Duration = Duration::from_millis(100);

/// Renewals that go to the nodes together.
pub(super) type Renewals = Batches<(Renewing, Count)>;

/// What has come of one of them so far.
type Count = Arc<Mutex<Counting>>;

type Outcome = Result<Renewal, Vec<Verdict>>;

/// One lock in a batch of renewals.
#[derive(Debug)]
pub(super) struct Renewing {
    pub(super) keys: Arc<Keys>,
    pub(super) value: Arc<str>,
    pub(super) owner: Owner,
    pub(super) token: FencingToken,
    pub(super) term: Duration,
    pub(super) trace: Arc<Trace>,
}

/// Extends a lock: with others that are to be, if this is the keeper.
pub(super) async fn renew(fleet: &Arc<Fleet>, renewals: &Arc<Renewals>, one: Renewing) -> Result<Renewal> {
    let (term, (count, outcome)) = (one.term, Counting::of(fleet, &one));
    let all = fleet.clone();
    renewals.send((one, count.clone()), move |batch| Batch::send_to_all(&all, batch));
    let timeout = fleet.config.timeout.min((term / 3).max(Duration::from_millis(20)));
    match tokio::time::timeout(timeout, outcome).await {
        Ok(Ok(Ok(renewal))) => Ok(renewal),
        Ok(Ok(Err(verdicts))) => Err(fleet.no_majority(verdicts)),
        Ok(Err(_)) | Err(_) => Err(fleet.no_majority(lock(&count).verdicts())),
    }
}

/// Several locks that are extended by one request to each node.
pub(super) struct Batch {
    pub(super) fleet: Arc<Fleet>,
    line: Arc<Line>,
    sent: Moment,
    /// The earliest end of validity among them: no node may act later, or it could lengthen what was lost.
    until: Moment,
    pub(super) locks: Vec<Arc<Extending>>,
    /// What all nodes are told of them.
    keys: Ready,
    arguments: Ready,
}

pub(super) struct Extending {
    pub(super) renewing: Renewing,
    /// How long a node keeps the key.
    pub(super) life: Duration,
    count: Count,
}

#[derive(Debug)]
pub(super) struct Counting {
    extension: Extension<Moment, KeptBy>,
    /// What nodes said or ran into that have not kept it.
    objections: Vec<(usize, Verdict)>,
    /// What was found in the lock's place.
    found: String,
    /// The nodes that have lost it and are not being mended yet.
    gone: Nodes,
    /// A majority has it.
    extended: bool,
    decided: Option<oneshot::Sender<Outcome>>,
}

/// What each of the nodes said, in one piece: there is one of it for every renewal of every lock.
#[derive(Clone, Copy, Debug)]
struct KeptBy {
    nodes: [Kept; MAX_NODES],
    count: usize,
}

impl KeptBy {
    /// Nothing of `count` nodes yet.
    fn open(count: usize) -> Self {
        Self { nodes: [Kept::Open; MAX_NODES], count }
    }
}

impl AsRef<[Kept]> for KeptBy {
    fn as_ref(&self) -> &[Kept] {
        &self.nodes[..self.count]
    }
}

impl AsMut<[Kept]> for KeptBy {
    fn as_mut(&mut self) -> &mut [Kept] {
        &mut self.nodes[..self.count]
    }
}

impl Counting {
    /// Nothing yet, and where the outcome will be told.
    fn of(fleet: &Fleet, one: &Renewing) -> (Count, oneshot::Receiver<Outcome>) {
        let (decided, outcome) = oneshot::channel();
        let until = lock(&one.trace.0).until;
        let counting = Self {
            extension: Extension::new(KeptBy::open(fleet.len()), until),
            objections: Vec::new(),
            found: String::new(),
            gone: Nodes::default(),
            extended: false,
            decided: Some(decided),
        };
        (Arc::new(Mutex::new(counting)), outcome)
    }

    /// What each node said.
    fn verdicts(&self) -> Vec<Verdict> {
        let verdict =
            |(node, kept): (usize, &Kept)| match self.objections.iter().rfind(|(other, _)| *other == node) {
                Some((_, verdict)) => verdict.clone(),
                None if *kept == Kept::Yes => Verdict::Granted,
                None => late(),
            };
        self.extension.nodes.as_ref().iter().enumerate().map(verdict).collect()
    }
}

impl Batch {
    fn send_to_all(fleet: &Arc<Fleet>, locks: Vec<(Renewing, Count)>) {
        for locks in by_haste(locks, fleet.clock.now(), fleet.config.timeout) {
            Self::new(fleet, locks).send_everywhere();
        }
    }

    fn new(fleet: &Arc<Fleet>, mut locks: Vec<(Renewing, Count)>) -> Arc<Self> {
        let (sent, line) = (fleet.clock.now(), fleet.line());
        // The order in which their traces are locked: the same in each batch.
        locks.sort_unstable_by_key(|(one, _)| Arc::as_ptr(&one.trace));
        let prepare = |(renewing, count): (Renewing, Count)| {
            let life = fleet.config.key_life(renewing.term);
            Arc::new(Extending { life, renewing, count })
        };
        Self::of(fleet, line, sent, locks.into_iter().map(prepare).collect())
    }

    fn of(fleet: &Arc<Fleet>, line: Arc<Line>, sent: Moment, locks: Vec<Arc<Extending>>) -> Arc<Self> {
        let until = locks.iter().map(|one| lock(&one.renewing.trace.0).until).min().unwrap_or(sent);
        let (mut keys, mut arguments) = (Ready::default(), Ready::default());
        for Extending { renewing, life, .. } in locks.iter().map(|one| &**one) {
            keys.push(renewing.keys.lock());
            keys.push(renewing.keys.counter());
            arguments.push(&renewing.value);
            arguments.push(&milliseconds(*life));
            arguments.push_number(renewing.token.get());
        }
        Arc::new(Self { fleet: fleet.clone(), line, sent, until, locks, keys, arguments })
    }

    fn send_everywhere(self: Arc<Self>) {
        let (fleet, n) = (&self.fleet, self.fleet.len());
        let insist = self.line.up().0 < majority(n);
        for node in 0..n {
            let verdict = match fleet.reach(&self.line, node, self.sent, insist) {
                Reach::Up(link) => match fleet.put_late(&self, &link, 0) {
                    Ok(()) => continue,
                    Err(why) => Verdict::Unreachable { why },
                },
                Reach::Opening => {
                    self.clone().when_up(node);
                    continue;
                }
                Reach::Down(verdict) => verdict,
            };
            self.clone().hear(node, Heard::Not(verdict));
        }
    }

    /// Sends to a node that is being connected to as soon as it is.
    fn when_up(self: Arc<Self>, node: usize) {
        tokio::spawn(async move {
            let verdict = loop {
                let changed = self.line.changed();
                tokio::pin!(changed);
                changed.as_mut().enable();
                match self.fleet.reach(&self.line, node, self.fleet.clock.now(), false) {
                    Reach::Up(link) => match self.fleet.put_late(&self, &link, 0) {
                        Ok(()) => return,
                        Err(why) => break Verdict::Unreachable { why },
                    },
                    Reach::Down(verdict) => break verdict,
                    Reach::Opening => changed.await,
                }
            };
            self.hear(node, Heard::Not(verdict));
        });
    }

    /// Makes a lock anew on nodes that have lost it, as far as they can be reached; the next renewal sees to the rest.
    fn mend(self: &Arc<Self>, index: usize, nodes: Nodes) {
        let mending = Arc::new(Mending { batch: self.clone(), index });
        for node in nodes.iter() {
            if let Reach::Up(link) = self.fleet.reach(&self.line, node, self.fleet.clock.now(), false) {
                let _ = self.fleet.put_late(&mending, &link, 0);
            }
        }
    }
}

impl Question for Batch {
    fn script(&self) -> Script {
        Script::Hold
    }

    fn send(&self, link: &Link, sent: Moment, call: Call) -> Result<(), String> {
        // No later than the end of the validity, so by the earliest that the node's clock can show.
        let left = u64::try_from(self.until.since(sent).as_micros()).unwrap_or(u64::MAX);
        let not_after = link.node.time_at_least(sent).saturating_add(left).to_string();
        let node_key = [self.fleet.config.node_key.as_str()];
        let keys = [Part::Words(&node_key), Part::Ready(&self.keys)];
        let terms = [link.votes.as_str(), &not_after, "extend"];
        let arguments = [Part::Words(&terms), Part::Ready(&self.arguments)];
        link.eval_parts(Script::Hold, &keys, &arguments, sent, call)
    }

    fn send_late(&self, link: &Arc<Link>, sent: Moment, call: Call) -> Result<(), String> {
        if sent >= self.until {
            return Err("a lease ended meanwhile".to_owned());
        }
        // One that was given back costs the others nothing: this makes nothing anew.
        let mut traces: Vec<_> = self.locks.iter().filter_map(|one| Some((one.trace()?, one.life))).collect();
        if traces.is_empty() {
            return Err("given back meanwhile".to_owned());
        }
        for (trace, life) in &mut traces {
            trace.over(link, sent, self.until.plus(SLACK), self.until.plus(*life));
        }
        self.send(link, sent, call)
    }

    /// One name that this user may not touch must not cost all others their renewal.
    fn halves(&self) -> Option<[Arc<Self>; 2]> {
        let (one, other) = self.locks.split_at(self.locks.len() / 2);
        let half =
            |locks: &[Arc<Extending>]| Self::of(&self.fleet, self.line.clone(), self.sent, locks.to_vec());
        (!one.is_empty()).then(|| [half(one), half(other)])
    }

    fn hear(self: Arc<Self>, node: usize, heard: Heard) {
        let now = self.fleet.clock.now();
        match &heard {
            Heard::Reply(Value::List(items)) if items.len() == self.locks.len() + 1 => {
                if let Some(time) = items[0].as_int().and_then(|time| u64::try_from(time).ok()) {
                    self.fleet.nodes[node].read_clock(time, self.sent, now, &self.fleet.config);
                }
                for (index, (one, item)) in self.locks.iter().zip(&items[1..]).enumerate() {
                    let (kept, objection, found) = match item {
                        Value::Int(1) => (Kept::Yes, None, None),
                        Value::Int(0) => {
                            lock(&one.count).gone.insert(node);
                            (Kept::No, Some(Verdict::Held { by: "nobody any more".to_owned() }), None)
                        }
                        Value::Text(text) => {
                            let found = String::from_utf8_lossy(text).into_owned();
                            (Kept::No, Some(Verdict::Held { by: "somebody else".to_owned() }), Some(found))
                        }
                        odd => {
                            let why = format!("an odd answer: {odd:?}");
                            (Kept::Silent, Some(Verdict::Unreachable { why }), None)
                        }
                    };
                    let decided = one.hear(node, kept, objection, found, self.sent, now);
                    let gone = one.gone();
                    if !gone.is_empty() {
                        self.mend(index, gone);
                    }
                    // Whoever hears of it may end what can be sent for this lock.
                    tell(decided);
                }
            }
            heard => {
                let verdict = match heard {
                    Heard::Not(verdict) => verdict.clone(),
                    Heard::Reply(odd) => Verdict::Unreachable { why: format!("an odd answer: {odd:?}") },
                };
                for one in &self.locks {
                    tell(one.hear(node, Kept::Silent, Some(verdict.clone()), None, self.sent, now));
                }
            }
        }
    }
}

/// Those that have time, and those that have little: a batch must be answered before the first of its leases ends, and
/// one that is about to must not take the time of others. Whose time is over is left out.
fn by_haste(locks: Vec<(Renewing, Count)>, now: Moment, timeout: Duration) -> Vec<Vec<(Renewing, Count)>> {
    let (mut calm, mut hasty) = (Vec::with_capacity(locks.len()), Vec::new());
    for one in locks {
        match one.0.trace.held().map(|trace| trace.until.since(now)) {
            Some(left) if left >= timeout => calm.push(one),
            Some(left) if !left.is_zero() => hasty.push(one),
            _ => {}
        }
    }
    [calm, hasty].into_iter().filter(|locks| !locks.is_empty()).collect()
}

impl Extending {
    fn trace(&self) -> Option<MutexGuard<'_, Sent>> {
        self.renewing.trace.held()
    }

    /// The nodes to mend, told once: none before a majority is known to have the lock.
    fn gone(&self) -> Nodes {
        let mut counting = lock(&self.count);
        if counting.extended { std::mem::take(&mut counting.gone) } else { Nodes::default() }
    }

    fn hear(
        &self,
        node: usize,
        kept: Kept,
        objection: Option<Verdict>,
        found: Option<String>,
        sent: Moment,
        now: Moment,
    ) -> Option<Decided> {
        let mut counting = lock(&self.count);
        counting.objections.extend(objection.map(|verdict| (node, verdict)));
        if let Some(found) = found {
            counting.found = found;
        }
        let term = self.renewing.term;
        let outcome = match counting.extension.hear(node, kept, now) {
            Extended::Wait => return None,
            Extended::Yes => {
                let mut trace = lock(&self.renewing.trace.0);
                trace.until = trace.until.max(valid_until(sent, term));
                counting.extended = true;
                Ok(Renewal::Renewed { sent, term: Some(term) })
            }
            Extended::Lost => Ok(Renewal::Lost(loss(&counting.found, self.renewing.owner))),
            Extended::Failed => Err(counting.verdicts()),
        };
        Some((counting.decided.take()?, outcome))
    }
}

/// An outcome, and who waits for it.
type Decided = (oneshot::Sender<Outcome>, Outcome);

fn tell(decided: Option<Decided>) {
    if let Some((waiting, outcome)) = decided {
        let _ = waiting.send(outcome);
    }
}

/// Why a lock is not ours any more, by what was found in its place.
pub(super) fn loss(found: &str, owner: Owner) -> Loss {
    match revocation::read(found) {
        Some((revoked, reason)) if revoked == owner => Loss::ForceReleased { reason: reason.to_owned() },
        _ => Loss::Taken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::redlock::config::Config;
    use crate::backends::redlock::node::tests::mute_link;
    use crate::runtime::clock::Clock;
    use crate::url::StoreUrl;

    fn fleet() -> Arc<Fleet> {
        let config = Config::from_url(StoreUrl::parse("redlock://a,b,c").unwrap()).unwrap();
        Arc::new(Fleet::new(config, Clock::system()).unwrap())
    }

    fn renewing(fleet: &Fleet, until: Moment) -> (Renewing, Count) {
        let one = Renewing {
            keys: Arc::new(Keys::new("", "a")),
            value: "value".into(),
            owner: Owner::fresh(),
            token: FencingToken::new(1).unwrap(),
            term: Duration::from_secs(30),
            trace: Arc::new(Trace::new(Vec::new(), until, until, until)),
        };
        let count = Counting::of(fleet, &one).0;
        (one, count)
    }

    #[test]
    fn a_lease_that_is_about_to_end_does_not_hurry_others() {
        let (at, fleet) = (|seconds| Moment::at(Duration::from_secs(seconds)), fleet());
        let locks = [101, 130, 100, 102, 99].map(|end| renewing(&fleet, at(end))).into_iter().collect();
        let groups = by_haste(locks, at(100), Duration::from_secs(2));
        let ends = |group: &Vec<(Renewing, Count)>| {
            group.iter().map(|(one, _)| lock(&one.trace.0).until).collect::<Vec<_>>()
        };
        assert_eq!(groups.iter().map(ends).collect::<Vec<_>>(), [vec![at(130), at(102)], vec![at(101)]]);
    }

    #[tokio::test]
    async fn a_lock_that_is_given_back_does_not_keep_others_from_being_extended() {
        let fleet = fleet();
        let until = fleet.clock.now().plus(Duration::from_secs(30));
        let [first, second] = [renewing(&fleet, until), renewing(&fleet, until)];
        let traces = [first.0.trace.clone(), second.0.trace.clone()];
        let batch = Batch::new(&fleet, vec![first, second]);
        let (link, _theirs) = mute_link(&fleet.nodes[0]);
        lock(&traces[0].0).closed = true;
        fleet.put_late(&batch, &link, 0).unwrap();
        assert_eq!(traces.each_ref().map(|trace| lock(&trace.0).links().len()), [0, 1]);
        lock(&traces[1].0).closed = true;
        fleet.put_late(&batch, &link, 0).unwrap_err();
    }
}
