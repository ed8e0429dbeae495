//! Detached locks: taking one over, renewing it and giving it back by its handle.
//!
//! All three look first. They write nothing unless a majority of the nodes has the lock under the handle's
//! owner, and their counters say that its token is the handle's. A client that takes the lock over then moves
//! it, node by node, to an identity of its own: of two such clients at most one has a majority. A client
//! without one puts back what it has moved, so a lock that nobody took over is still the handle's.
//!
//! What one sees of a lock that others are taking over may say nothing yet. It is lost if somebody has a
//! majority, or if so many nodes have nothing that the handle cannot have one again. Before that all three
//! look again, for a while.

use std::sync::Arc;
use std::time::Duration;

use super::hold::{Held, HeldLock, InFlight};
use super::nodes::Nodes;
use super::quarantine::Standing;
use super::quorum::{Extended, majority, tokens};
use super::read::{self, NodeReading};
use super::record;
use super::release::{Release, ReleaseRequest, Then};
use super::renewal::{self, LeaseChange};
use super::session::Session;
use crate::backend::{Grant, Identity, Renewal, Request};
use crate::backends::common::backoff::Backoff;
use crate::backends::redis::keys::KeySet;
use crate::backends::redis::record as entries;
use crate::runtime::clock::Moment;
use crate::runtime::lease::valid_until;
use crate::{Error, Handle, Loss, Result, Verdict};

/// The pauses between two looks while others are taking the lock over.
const PAUSE: Backoff = Backoff::new(Duration::from_millis(4), Duration::from_millis(250));

/// The lock of a handle, as a majority of the nodes has it.
#[derive(Clone)]
struct Detached {
    keys: Arc<KeySet>,
    /// What its key holds, without a revocation.
    value: Arc<str>,
    /// Why an operator wants it back, if one does.
    revoked: Option<String>,
    /// Until when a majority keeps it.
    valid_until: Moment,
    sessions: Vec<Arc<Session>>,
}

impl Detached {
    /// Gives it back on the nodes that were looked at.
    fn release(&self, nodes: &Arc<Nodes>, then: Then) -> Arc<Release> {
        let life = nodes.config.key_life(nodes.config.max_ttl);
        let (keys, value) = (self.keys.clone(), self.value.clone());
        let request = ReleaseRequest::new(keys, value, then, nodes.clock.now(), life);
        Release::send(nodes, request, &self.sessions)
    }
}

/// What a look came to.
enum Look {
    Found(Detached),
    Lost(Loss),
    /// Others are taking the lock over, as it seems.
    Split(Vec<Verdict>),
}

/// Looks for the lock of a handle, again and again for a while.
struct Search<'a> {
    nodes: &'a Arc<Nodes>,
    handle: &'a Handle,
    deadline: Moment,
    backoff: Backoff,
}

impl<'a> Search<'a> {
    fn new(nodes: &'a Arc<Nodes>, handle: &'a Handle) -> Result<Self> {
        nodes.check_name(handle.name())?;
        Ok(Self { nodes, handle, deadline: nodes.deadline(), backoff: PAUSE })
    }

    /// Pauses; the error when the time is over.
    async fn pause(&mut self, verdicts: Vec<Verdict>) -> Result<()> {
        let pause = self.backoff.pause();
        if self.nodes.clock.now().plus(pause) >= self.deadline {
            return Err(self.nodes.no_majority(verdicts));
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// The same when others were in the way.
    async fn pause_for_others(&mut self) -> Result<()> {
        self.pause(vec![not_ours(); self.nodes.len()]).await
    }

    /// Looks until it is clear whose the lock is. Writes nothing.
    async fn find(&mut self) -> Result<Result<Detached, Loss>> {
        loop {
            match self.look().await? {
                Look::Found(found) => return Ok(Ok(found)),
                Look::Lost(why) => return Ok(Err(why)),
                Look::Split(verdicts) => self.pause(verdicts).await?,
            }
        }
    }

    async fn look(&self) -> Result<Look> {
        let (nodes, names) = (self.nodes, std::slice::from_ref(self.handle.name()));
        let sessions = read::sessions(nodes).await?;
        let mut sent = nodes.clock.now();
        let mut readings = read::read(nodes, &sessions, names).await?;
        if greet(nodes, &sessions, &readings) {
            sent = nodes.clock.now();
            readings = read::read(nodes, &sessions, names).await?;
        }
        let (mut ours, mut counters): (Vec<_>, Vec<u64>) = Default::default();
        let (mut others, mut verdicts) = (Vec::new(), Vec::with_capacity(nodes.len()));
        for reading in &readings {
            let entry = match reading.as_ref().map(|reading| (&reading.standing, reading.entries.first())) {
                Ok((Standing::Votes, entry)) => entry,
                // A key on a node that does not vote counts for nothing.
                Err(verdict) | Ok((Standing::GreetFirst(verdict) | Standing::Refused(verdict), _)) => {
                    verdicts.push(verdict.clone());
                    continue;
                }
            };
            let value = entry.and_then(|entry| entry.value.as_deref()).unwrap_or_default();
            let is_ours = entries::Record::parse(value).is_some_and(|one| one.owner == self.handle.owner());
            match entry.filter(|_| is_ours).and_then(|entry| Some((entry, entry.counter()?))) {
                Some((entry, counter)) => {
                    ours.push(entry);
                    counters.push(counter);
                    verdicts.push(Verdict::Granted);
                }
                None => {
                    others.push(value);
                    verdicts.push(not_ours());
                }
            }
        }
        let n = nodes.len();
        if let Some(why) = loss_for_good(n, &others, self.handle) {
            return Ok(Look::Lost(why));
        }
        if ours.len() < majority(n) {
            let foreign = others.iter().filter(|value| !value.is_empty()).count();
            return match ours.len() + foreign < majority(n) {
                true => Err(nodes.no_majority(verdicts)),
                false => Ok(Look::Split(verdicts)),
            };
        }
        let (tokens, token) = (tokens(n, &counters), self.handle.token().get());
        if tokens.first() != Some(&token) {
            return match tokens.contains(&token) {
                // Nodes that cannot be asked know whether it is.
                true => Err(nodes.no_majority(verdicts)),
                false => Ok(Look::Lost(Loss::Taken)),
            };
        }
        // A majority has it until the majority-th longest of its keys ends.
        let left = ours.iter().map(|entry| u64::try_from(entry.ttl).map(Duration::from_millis));
        let mut left: Vec<_> = left.map(|left| left.unwrap_or(nodes.config.max_ttl)).collect();
        left.sort_unstable_by(|a, b| b.cmp(a));
        let revocations = ours.iter().filter_map(|entry| record::revocation(entry.value.as_deref()?));
        let reasons: Vec<_> = revocations.map(|(_, reason)| reason).collect();
        Ok(Look::Found(Detached {
            keys: nodes.keys(self.handle.name()),
            value: ours[0].victim().unwrap_or_default().into(),
            // If less than a majority of the nodes was revoked, nothing was.
            revoked: (n - reasons.len() < majority(n)).then(|| reasons[0].to_owned()),
            valid_until: valid_until(sent, left[majority(n) - 1]),
            sessions: sessions.into_iter().flatten().collect(),
        }))
    }
}

fn not_ours() -> Verdict {
    Verdict::Held { by: "somebody else, or nobody".to_owned() }
}

/// Greets the nodes that may vote then: their quarantine is over, or their node key is gone.
fn greet(
    nodes: &Nodes,
    sessions: &[Result<Arc<Session>, Verdict>],
    readings: &[Result<NodeReading, Verdict>],
) -> bool {
    let mut greeted = false;
    for (session, reading) in sessions.iter().zip(readings) {
        if let (Ok(session), Ok(NodeReading { standing: Standing::GreetFirst(_), .. })) = (session, reading) {
            session.greet(&nodes.config, nodes.clock.now());
            greeted = true;
        }
    }
    greeted
}

/// Why the lock of a handle is lost for good, by what nodes have in its place: nothing where that is empty.
/// `None` if it may be the handle's again: others are taking it over, and one without a majority puts it
/// back.
fn loss_for_good<S: AsRef<str>>(n: usize, found: &[S], handle: &Handle) -> Option<Loss> {
    let count = |value: &str| found.iter().filter(|other| other.as_ref() == value).count();
    if count("") > n - majority(n) {
        return Some(Loss::Expired);
    }
    let mut others = found.iter().map(AsRef::as_ref).filter(|value| !value.is_empty());
    let taken = others.find(|value| count(value) >= majority(n))?;
    Some(record::loss(taken, handle.owner()))
}

/// Renews the lock of a handle, which keeps its identity.
pub(super) async fn renew(nodes: &Arc<Nodes>, handle: &Handle, term: Duration) -> Result<Renewal> {
    nodes.config.check_ttl(term)?;
    let mut search = Search::new(nodes, handle)?;
    loop {
        let found = match search.find().await? {
            Ok(Detached { revoked: Some(reason), .. }) => {
                return Ok(Renewal::Lost(Loss::ForceReleased { reason }));
            }
            Ok(found) => found,
            Err(why) => return Ok(Renewal::Lost(why)),
        };
        let (keys, value) = (found.keys.clone(), found.value.clone());
        let in_flight = InFlight::none(found.valid_until);
        let lock = HeldLock::new(keys, value, handle.owner(), handle.token(), in_flight);
        let renewal = renewal::renew(nodes, lock.clone(), term).await;
        // Whoever has the handle may give the lock back from now on, or take it over.
        let repaired = {
            let mut in_flight = lock.in_flight();
            in_flight.closed = true;
            in_flight.repaired
        };
        if repaired {
            // The replies to a first look come after what makes the lock anew. A second look sees what was
            // freed before that.
            let _ = search.look().await;
            if let Ok(Look::Lost(why @ Loss::Expired)) = search.look().await {
                // It was given back meanwhile, and made anew where that had freed it first.
                found.release(nodes, Then::Quiet);
                return Ok(Renewal::Lost(why));
            }
        }
        match renewal? {
            // By those who are taking it over, or for good: the next look tells.
            Renewal::Lost(Loss::Taken | Loss::Expired) => search.pause_for_others().await?,
            renewal => return Ok(renewal),
        }
    }
}

/// Gives the lock of a handle back: whether it still was the handle's.
pub(super) async fn release(nodes: &Arc<Nodes>, handle: &Handle) -> Result<bool> {
    let mut search = Search::new(nodes, handle)?;
    loop {
        let Ok(found) = search.find().await? else { return Ok(false) };
        if found.release(nodes, Then::Wake).accepted().await? {
            return Ok(true);
        }
        search.pause_for_others().await?;
    }
}

/// Takes the lock of a handle over, under the identity of the request. After others were in the way it is a
/// new one each time: what puts one try back must not touch the next.
pub(super) async fn attach(nodes: &Arc<Nodes>, handle: &Handle, request: &Request) -> Result<Grant> {
    nodes.config.check_ttl(request.ttl)?;
    let mut search = Search::new(nodes, handle)?;
    nodes.connect_keeper();
    let (mut identity, mut before) = (request.identity, None::<Detached>);
    loop {
        let found = match search.find().await? {
            Ok(Detached { revoked: Some(reason), .. }) => {
                return Err(Error::lost(handle.name(), Loss::ForceReleased { reason }));
            }
            Ok(found) => found,
            Err(why) => {
                if let (Some(before), Loss::Expired) = (before, &why) {
                    // What a try put back of a lock that was given back meanwhile.
                    before.release(nodes, Then::Quiet);
                }
                return Err(Error::lost(handle.name(), why));
            }
        };
        match take_over(nodes, handle, request, identity, &found).await? {
            Ok(grant) => return Ok(grant),
            Err(verdicts) => search.pause(verdicts).await?,
        }
        before = Some(found);
        identity = Identity::fresh(handle.name());
    }
}

/// Moves the lock to an identity. What nodes said if others were in the way and none of them is known to have
/// it.
async fn take_over(
    nodes: &Arc<Nodes>,
    handle: &Handle,
    request: &Request,
    identity: Identity,
    found: &Detached,
) -> Result<Result<Grant, Vec<Verdict>>> {
    let (slot, owner, token) = (nodes.slot(), identity.owner(), handle.token());
    let pushes = nodes.router.open(owner, request.signal.clone());
    let note = match &*request.note {
        "" => entries::holder(handle.name(), &found.value, -1).note.unwrap_or_default(),
        note => note.to_owned(),
    };
    let until = valid_until(nodes.clock.now(), request.ttl);
    let give_up_at = nodes.deadline().min(until);
    let value = entries::entry(owner, &slot.channel, &note).into();
    let lock = HeldLock::new(found.keys.clone(), value, owner, token, InFlight::none(until));
    let (from, ttl) = (found.value.clone(), request.ttl);
    let change = renewal::take_over(nodes, &slot, lock.clone(), from.clone(), ttl, give_up_at);
    let mut moved = Moved { nodes, handle, change: &change, from: Some(from) };
    if let Some((Extended::Yes, sent)) = nodes.clock.within(Some(give_up_at), change.decision()).await {
        moved.from = None;
        let hold = Held { nodes: nodes.clone(), lock, entry: None, _pushes: pushes, _slot: slot };
        let (term, hold) = (Some(ttl), Arc::new(hold));
        return Ok(Ok(Grant { identity, token, sent, term, pushed: false, hold }));
    }
    let found = change.found();
    if let Some(why) = loss_for_good(nodes.len(), &found, handle) {
        return Err(Error::lost(handle.name(), why));
    }
    match found.is_empty() {
        true => Err(nodes.no_majority(change.verdicts())),
        false => Ok(Err(change.verdicts())),
    }
}

/// A lock that was moved, and is put back unless it has become a guard. Freed instead if the lock is lost for
/// good: whoever has a majority keeps that, or puts it back, so this lets nobody in. And a lock that was
/// given back must not come back.
struct Moved<'a> {
    nodes: &'a Arc<Nodes>,
    handle: &'a Handle,
    change: &'a LeaseChange,
    from: Option<Arc<str>>,
}

impl Drop for Moved<'_> {
    fn drop(&mut self) {
        let Some(from) = self.from.take() else { return };
        // Ends what may be sent first: what is found after that changes nothing.
        let (mut request, sessions) = self.change.held.close(Then::Restore(from), None);
        if loss_for_good(self.nodes.len(), &self.change.found(), self.handle).is_some() {
            request.then = Then::Quiet;
        }
        if !sessions.is_empty() {
            Release::send(self.nodes, request, &sessions);
        }
    }
}
