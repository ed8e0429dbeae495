//! A lock held on a majority of nodes: how it is extended, and how it is given back.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::ballot::Ballot;
use super::claim::valid_until;
use super::farewell::{Farewell, Parting};
use super::fleet::{Fleet, Heard, Line, Question, Reach, late};
use super::keys::Keys;
use super::node::{Link, Script};
use super::quorum::{Extended, Extension, Kept};
use super::{Store, milliseconds};
use crate::backend::{Hold, Renewal, lock};
use crate::backends::batch::Batches;
use crate::backends::redis::connection::Call;
use crate::backends::redis::inbox::LetterBox;
use crate::backends::redis::resp::Value;
use crate::clock::Moment;
use crate::keeper::Keeper;
use crate::{FencingToken, Loss, Owner, Result, Verdict};

/// How much later than meant a node acts at most, because its clock is read from afar.
const SLACK: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Held {
    fleet: Arc<Fleet>,
    keeper: Arc<Keeper>,
    renewals: Arc<Renewals>,
    owner: Owner,
    token: FencingToken,
    keys: Arc<Keys>,
    value: Arc<str>,
    /// The entry in the queues by which it was waited for.
    entry: Option<Arc<str>>,
    trace: Arc<Trace>,
    /// Open for revocations while the lock is held, on the channel that the value names.
    _letters: LetterBox,
    _line: Arc<Line>,
}

/// What was sent for a held lock, and until when it matters.
#[derive(Debug)]
pub(super) struct Trace(Mutex<Sent>);

#[derive(Debug)]
struct Sent {
    /// By node: over which connections it was asked for something that makes or keeps the lock.
    links: Vec<Vec<Arc<Link>>>,
    /// The end of the term that is valid now. No extension may begin to count after it.
    until: Moment,
    /// When a node acts on the last request at the latest, and when it has forgotten it.
    settled_at: Moment,
    over_at: Moment,
    /// From now on nothing may be sent that makes or keeps the lock.
    given_back: bool,
}

impl Sent {
    /// Notes that a request is being sent over a link.
    fn over(&mut self, link: &Arc<Link>, sent: Moment) {
        let links = &mut self.links[link.node.index];
        // What an ended one carried cannot arrive any more.
        links.retain(|other| !other.has_ended() || sent <= self.settled_at);
        if !links.iter().any(|other| Arc::ptr_eq(other, link)) {
            links.push(link.clone());
        }
    }
}

impl Trace {
    pub(super) fn new(
        links: Vec<Option<Arc<Link>>>,
        until: Moment,
        settled_at: Moment,
        over_at: Moment,
    ) -> Self {
        let links = links.into_iter().map(|link| link.into_iter().collect()).collect();
        Self(Mutex::new(Sent { links, until, settled_at, over_at, given_back: false }))
    }

    /// Keeps the lock from being given back while something is sent that keeps it; `None` if it has been.
    fn held(&self) -> Option<MutexGuard<'_, Sent>> {
        let sent = lock(&self.0);
        (!sent.given_back).then_some(sent)
    }
}

impl Held {
    pub(super) fn new(
        store: &Store,
        ballot: &Ballot,
        owner: Owner,
        token: FencingToken,
        letters: LetterBox,
        line: Arc<Line>,
        entry: Option<Arc<str>>,
    ) -> Self {
        let (paper, life) = (&ballot.paper, store.fleet.config.key_life(ballot.paper.ttl));
        let over_at = ballot.give_up_at.plus(life);
        let until = valid_until(ballot.sent, paper.ttl);
        let trace = Trace::new(ballot.links(), until, ballot.give_up_at, over_at);
        Self::assemble(
            store,
            owner,
            token,
            paper.keys.clone(),
            paper.value.clone(),
            trace,
            letters,
            line,
            entry,
        )
    }

    #[allow(clippy::too_many_arguments)] // all its fields
    pub(super) fn assemble(
        store: &Store,
        owner: Owner,
        token: FencingToken,
        keys: Arc<Keys>,
        value: Arc<str>,
        trace: Trace,
        letters: LetterBox,
        line: Arc<Line>,
        entry: Option<Arc<str>>,
    ) -> Self {
        Self {
            fleet: store.fleet.clone(),
            keeper: store.keeper.clone(),
            renewals: store.renewals.clone(),
            owner,
            token,
            keys,
            value,
            entry,
            trace: Arc::new(trace),
            _letters: letters,
            _line: line,
        }
    }
}

#[async_trait]
impl Hold for Held {
    async fn renew(&self, term: Duration) -> Result<Renewal> {
        self.fleet.config.check_ttl(term)?;
        let (answer, outcome) = oneshot::channel();
        let one = Renewing {
            keys: self.keys.clone(),
            value: self.value.clone(),
            owner: self.owner,
            token: self.token.to_string(),
            term,
            trace: self.trace.clone(),
            answer,
        };
        let fleet = self.fleet.clone();
        self.renewals.send(one, move |batch| Batch::send_to_all(&fleet, batch));
        let timeout = self.fleet.config.timeout.min((term / 3).max(Duration::from_millis(20)));
        match tokio::time::timeout(timeout, outcome).await {
            Ok(Ok(Ok(renewal))) => Ok(renewal),
            Ok(Ok(Err(verdicts))) => Err(self.fleet.no_majority(verdicts)),
            Ok(Err(_)) | Err(_) => Err(crate::Error::Unavailable {
                store: self.fleet.config.label.clone(),
                source: format!("no majority of the nodes answered within {timeout:?}").into(),
            }),
        }
    }

    async fn release(&self) -> Result<bool> {
        let (parting, links) = {
            let mut sent = lock(&self.trace.0);
            sent.given_back = true;
            let parting = Parting {
                keys: self.keys.clone(),
                value: self.value.clone(),
                wake: true,
                entry: self.entry.clone(),
                settled_at: sent.settled_at,
                over_at: sent.over_at,
            };
            (parting, sent.links.clone())
        };
        Farewell::say(&self.fleet, &self.keeper, parting, &links).accepted().await
    }

    async fn detach(&self, term: Duration) -> Result<Renewal> {
        self.renew(term).await
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Renewals that go to the nodes together.
pub(super) type Renewals = Batches<Renewing>;

/// One lock in a batch of renewals.
#[derive(Debug)]
pub(super) struct Renewing {
    keys: Arc<Keys>,
    value: Arc<str>,
    owner: Owner,
    token: String,
    term: Duration,
    trace: Arc<Trace>,
    answer: oneshot::Sender<Result<Renewal, Vec<Verdict>>>,
}

/// Several locks that are extended by one request to each node.
struct Batch {
    fleet: Arc<Fleet>,
    sent: Moment,
    /// The earliest end of validity among them: no node may act later, or it could make a lock anew that was lost.
    until: Moment,
    locks: Vec<Extending>,
}

struct Extending {
    renewing: Renewing,
    px: String,
    count: Mutex<Counting>,
}

struct Counting {
    extension: Extension<Moment>,
    verdicts: Vec<Verdict>,
    /// What was found in the lock's place.
    found: String,
    decided: Option<oneshot::Sender<Result<Renewal, Vec<Verdict>>>>,
}

impl Batch {
    fn send_to_all(fleet: &Arc<Fleet>, locks: Vec<Renewing>) {
        let (n, sent, line) = (fleet.len(), fleet.clock.now(), fleet.line());
        let mut locks = locks;
        // Whose time is over must not take the time of others.
        locks.retain(|one| one.trace.held().is_some_and(|trace| trace.until > sent));
        // The order in which their traces are locked: the same in each batch.
        locks.sort_unstable_by_key(|one| Arc::as_ptr(&one.trace));
        let until = locks.iter().map(|one| lock(&one.trace.0).until).min().unwrap_or(sent);
        let prepare = |mut renewing: Renewing| {
            let life = fleet.config.key_life(renewing.term);
            let (unused, _) = oneshot::channel();
            let answer = std::mem::replace(&mut renewing.answer, unused);
            let until = {
                let mut trace = lock(&renewing.trace.0);
                trace.settled_at = trace.settled_at.max(until.plus(SLACK));
                trace.over_at = trace.over_at.max(until.plus(life));
                trace.until
            };
            let counting = Counting {
                extension: Extension::new(vec![Kept::Open; n], until),
                verdicts: vec![late(); n],
                found: String::new(),
                decided: Some(answer),
            };
            Extending { px: milliseconds(life), renewing, count: Mutex::new(counting) }
        };
        let locks = locks.into_iter().map(prepare).collect();
        let batch = Arc::new(Self { fleet: fleet.clone(), sent, until, locks });
        let insist = line.up().len() < super::quorum::majority(n);
        for node in 0..n {
            let verdict = match fleet.reach(&line, node, sent, insist) {
                Reach::Up(link) => match fleet.put_late(&batch, &link, 0) {
                    Ok(()) => continue,
                    Err(why) => Verdict::Unreachable { why },
                },
                Reach::Opening => {
                    batch.clone().when_up(&line, node);
                    continue;
                }
                Reach::Down(verdict) => verdict,
            };
            batch.clone().hear(node, Heard::Not(verdict));
        }
    }

    /// Sends to a node that is being connected to as soon as it is.
    fn when_up(self: Arc<Self>, line: &Arc<Line>, node: usize) {
        let line = line.clone();
        tokio::spawn(async move {
            let verdict = loop {
                let changed = line.changed();
                tokio::pin!(changed);
                changed.as_mut().enable();
                match self.fleet.reach(&line, node, self.fleet.clock.now(), false) {
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
}

impl Question for Batch {
    fn script(&self) -> Script {
        Script::Hold
    }

    fn send(&self, link: &Link, sent: Moment, call: Call) -> Result<(), String> {
        // No later than the end of the validity, so by the earliest that the node's clock can show.
        let left = u64::try_from(self.until.since(sent).as_micros()).unwrap_or(u64::MAX);
        let not_after = link.node.time_at_least(sent).saturating_add(left).to_string();
        let node_key = self.fleet.config.node_key();
        let mut keys = Vec::with_capacity(1 + 2 * self.locks.len());
        keys.push(node_key.as_str());
        let mut arguments = Vec::with_capacity(3 + 3 * self.locks.len());
        arguments.extend([link.votes.as_str(), &not_after, "extend"]);
        for one in &self.locks {
            keys.extend([one.renewing.keys.lock.as_str(), &one.renewing.keys.counter]);
            arguments.extend([&*one.renewing.value, &one.px, &one.renewing.token]);
        }
        link.eval(Script::Hold, &keys, &arguments, sent, call)
    }

    fn send_late(&self, link: &Arc<Link>, sent: Moment, call: Call) -> Result<(), String> {
        if sent >= self.until {
            return Err("a lease ended meanwhile".to_owned());
        }
        let traces: Option<Vec<_>> = self.locks.iter().map(|one| one.renewing.trace.held()).collect();
        let Some(mut traces) = traces else { return Err("a lock was given back meanwhile".to_owned()) };
        traces.iter_mut().for_each(|trace| trace.over(link, sent));
        self.send(link, sent, call)
    }

    fn hear(self: Arc<Self>, node: usize, heard: Heard) {
        let now = self.fleet.clock.now();
        match &heard {
            Heard::Reply(Value::List(items)) if items.len() == self.locks.len() + 1 => {
                if let Some(time) = items[0].as_int().and_then(|time| u64::try_from(time).ok()) {
                    self.fleet.nodes[node].read_clock(time, self.sent, now, &self.fleet.config);
                }
                for (one, item) in self.locks.iter().zip(&items[1..]) {
                    let (kept, verdict, found) = match item {
                        Value::Int(1) => (Kept::Yes, Verdict::Granted, None),
                        Value::Text(text) => {
                            let found = String::from_utf8_lossy(text).into_owned();
                            (Kept::No, Verdict::Held { by: "somebody else".to_owned() }, Some(found))
                        }
                        _ => {
                            let why = "it has lost the lock and may not make it anew".to_owned();
                            (Kept::Silent, Verdict::Unreachable { why }, None)
                        }
                    };
                    one.hear(node, kept, verdict, found, self.sent, now);
                }
            }
            heard => {
                let verdict = match heard {
                    Heard::Not(verdict) => verdict.clone(),
                    Heard::Reply(odd) => Verdict::Unreachable { why: format!("an odd answer: {odd:?}") },
                };
                for one in &self.locks {
                    one.hear(node, Kept::Silent, verdict.clone(), None, self.sent, now);
                }
            }
        }
    }
}

impl Extending {
    fn hear(
        &self,
        node: usize,
        kept: Kept,
        verdict: Verdict,
        found: Option<String>,
        sent: Moment,
        now: Moment,
    ) {
        let mut counting = lock(&self.count);
        counting.verdicts[node] = verdict;
        if let Some(found) = found {
            counting.found = found;
        }
        let term = self.renewing.term;
        let outcome = match counting.extension.hear(node, kept, now) {
            Extended::Wait => return,
            Extended::Yes => {
                let mut trace = lock(&self.renewing.trace.0);
                trace.until = trace.until.max(valid_until(sent, term));
                Ok(Renewal::Renewed { sent, term: Some(term) })
            }
            Extended::Lost => Ok(Renewal::Lost(loss(&counting.found, self.renewing.owner))),
            Extended::Failed => Err(counting.verdicts.clone()),
        };
        if let Some(decided) = counting.decided.take() {
            let _ = decided.send(outcome);
        }
    }
}

/// Why a lock is not ours any more, by what was found in its place.
pub(super) fn loss(found: &str, owner: Owner) -> Loss {
    match super::revocation::read(found) {
        Some((revoked, reason)) if revoked == owner => Loss::ForceReleased { reason: reason.to_owned() },
        _ => Loss::Taken,
    }
}
