//! Detached locks: taking one over, renewing it and giving it back by its handle.
//!
//! All three look first, and write nothing unless a majority of the nodes has the lock under the handle's
//! owner, and their counters say that its token is the handle's. Who takes the lock over then moves it, node
//! by node, to an identity of its own: of two that do, one at most has a majority. Whoever has none puts back
//! what it has moved, so that a lock that nobody took over is still the handle's.
//!
//! So what one sees of a lock that others are taking over may say nothing yet: it is lost if somebody has a
//! majority, or so many nodes have nothing that the handle cannot have one again. Before that all three look
//! again, for a while.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;

use super::claim::valid_until;
use super::contest::{Contest, Standing};
use super::farewell::{Farewell, Parting};
use super::fleet::{Fleet, Heard, Question, Reach, late};
use super::hold::Held;
use super::keys::Keys;
use super::node::{Link, Script};
use super::operator::{self, Entry, Said};
use super::quorum::{Extended, Extension, Kept, majority, tokens};
use super::renewal::{self, Renewing, loss};
use super::trace::Trace;
use super::{Store, milliseconds, revocation};
use crate::backend::{Grant, Identity, Renewal, Request};
use crate::backends::redis::driver::connection::Call;
use crate::backends::redis::driver::resp::Value;
use crate::backends::redis::record::{self, Record};
use crate::runtime::clock::Moment;
use crate::runtime::sync::lock;
use crate::wait::random;
use crate::{Error, Handle, Loss, Result, Verdict};

/// The lock that a handle is about, as a majority of the nodes has it.
#[derive(Clone)]
struct Found {
    keys: Arc<Keys>,
    /// What its key holds, without a revocation.
    value: String,
    /// Why an operator wants it back, if one does.
    revoked: Option<String>,
    /// Until when a majority keeps it.
    until: Moment,
    links: Vec<Arc<Link>>,
}

/// How long to look again, and how soon, while others are taking the lock over and none of them has it.
struct Patience {
    deadline: Moment,
    contest: Contest,
}

/// About what a node takes to answer: the first pause is some of that.
const ROUND_TRIP: Duration = Duration::from_millis(2);

impl Patience {
    fn new(fleet: &Fleet) -> Self {
        Self { deadline: fleet.clock.now().plus(fleet.config.timeout), contest: Contest::default() }
    }

    /// A random pause, longer each time; the error when the time is over.
    async fn pause(&mut self, fleet: &Fleet, verdicts: Vec<Verdict>) -> Result<()> {
        let pause = self.contest.pause(Standing::Split, ROUND_TRIP, random());
        if fleet.clock.now().plus(pause) >= self.deadline {
            return Err(fleet.no_majority(verdicts));
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

/// Why the lock of a handle is lost for good, by what nodes have in its place: nothing where that is empty.
/// `None` if it may be the handle's again: others are taking it over, and who gets no majority puts it back.
fn settled<S: AsRef<str>>(n: usize, found: &[S], handle: &Handle) -> Option<Loss> {
    let count = |value: &str| found.iter().filter(|other| other.as_ref() == value).count();
    if count("") > n - majority(n) {
        return Some(Loss::Expired);
    }
    let taken =
        found.iter().map(AsRef::as_ref).find(|value| !value.is_empty() && count(value) >= majority(n));
    taken.map(|value| loss(value, handle.owner()))
}

/// What a look came to.
enum Sight {
    Found(Found),
    Lost(Loss),
    /// Others are taking it over, as it seems.
    Split(Vec<Verdict>),
}

/// Looks for the lock of a handle, revoked or not, until it is clear whose it is. Writes nothing.
async fn find(store: &Store, handle: &Handle, patience: &mut Patience) -> Result<Result<Found, Loss>> {
    loop {
        match see(store, handle).await? {
            Sight::Found(found) => return Ok(Ok(found)),
            Sight::Lost(why) => return Ok(Err(why)),
            Sight::Split(verdicts) => patience.pause(&store.fleet, verdicts).await?,
        }
    }
}

async fn see(store: &Store, handle: &Handle) -> Result<Sight> {
    let (fleet, name) = (&store.fleet, handle.name());
    let links = operator::links(store).await?;
    let names = std::slice::from_ref(name);
    let mut sent = fleet.clock.now();
    let mut look = operator::look(store, &links, names).await?;
    if look.iter().zip(&links).filter(|(said, link)| greeted(fleet, said, link)).count() > 0 {
        sent = fleet.clock.now();
        look = operator::look(store, &links, names).await?;
    }
    let (mut ours, mut counters): (Vec<&Entry>, Vec<u64>) = Default::default();
    let (mut others, mut verdicts) = (Vec::new(), Vec::with_capacity(look.len()));
    for (said, link) in look.iter().zip(&links) {
        let (said, link) = match (said, link) {
            (Ok(said), Ok(link)) => (said, link),
            (Err(verdict), _) | (_, Err(verdict)) => {
                verdicts.push(verdict.clone());
                continue;
            }
        };
        if !said.votes {
            // A key on a node that does not vote counts for nothing.
            let standing = fleet.config.standing(&said.node_key, &link.votes, link.node.time(sent));
            verdicts.push(standing.unwrap_or_else(|| fleet.unsettled(&said.node_key)));
            continue;
        }
        let entry = said.entries.first();
        let value = entry.and_then(|entry| entry.value.as_deref()).unwrap_or_default();
        let is_ours = Record::parse(value).is_some_and(|record| record.owner == handle.owner());
        let Some((entry, counter)) = entry.filter(|_| is_ours).and_then(|one| Some((one, one.counter()?)))
        else {
            others.push(value);
            verdicts.push(Verdict::Held { by: "somebody else, or nobody".to_owned() });
            continue;
        };
        ours.push(entry);
        counters.push(counter);
        verdicts.push(Verdict::Granted);
    }
    let n = fleet.len();
    if let Some(why) = settled(n, &others, handle) {
        return Ok(Sight::Lost(why));
    }
    if ours.len() < majority(n) {
        let foreign = others.iter().filter(|value| !value.is_empty()).count();
        return match ours.len() + foreign < majority(n) {
            true => Err(fleet.no_majority(verdicts)),
            false => Ok(Sight::Split(verdicts)),
        };
    }
    let (tokens, token) = (tokens(n, &counters), handle.token().get());
    if tokens.first() != Some(&token) {
        return match tokens.contains(&token) {
            // Nodes that cannot be asked know whether it is.
            true => Err(fleet.no_majority(verdicts)),
            false => Ok(Sight::Lost(Loss::Taken)),
        };
    }
    // A majority has it until the majority-th longest of its keys ends.
    let left = |entry: &&Entry| u64::try_from(entry.ttl).map_or(fleet.config.max_ttl, Duration::from_millis);
    let mut lefts: Vec<_> = ours.iter().map(left).collect();
    lefts.sort_unstable_by(|a, b| b.cmp(a));
    let revoked = ours.iter().filter_map(|entry| revocation::read(entry.value.as_deref()?));
    let reasons: Vec<_> = revoked.map(|(_, reason)| reason).collect();
    Ok(Sight::Found(Found {
        keys: Arc::new(Keys::new(&fleet.config.start, name.as_str())),
        value: ours[0].value.as_deref().map(revocation::victim).unwrap_or_default().to_owned(),
        // Where less than a majority of the nodes could be revoked, nothing was.
        revoked: (n - reasons.len() < majority(n)).then(|| reasons[0].to_owned()),
        until: valid_until(sent, lefts[majority(n) - 1]),
        links: links.into_iter().flatten().collect(),
    }))
}

/// Greets a node that may vote then: its quarantine is over, or its node key is gone.
fn greeted(fleet: &Fleet, said: &Result<Said, Verdict>, link: &Result<Arc<Link>, Verdict>) -> bool {
    let (Ok(said), Ok(link)) = (said, link) else { return false };
    let now = fleet.clock.now();
    if said.votes || fleet.config.standing(&said.node_key, &link.votes, link.node.time(now)).is_some() {
        return false;
    }
    link.greet(&fleet.config, now);
    true
}

/// Renews the lock of a handle, which keeps its identity.
pub(super) async fn renew(store: &Store, handle: &Handle, term: Duration) -> Result<Renewal> {
    let mut patience = Patience::new(&store.fleet);
    loop {
        let found = match find(store, handle, &mut patience).await? {
            Ok(Found { revoked: Some(reason), .. }) => {
                return Ok(Renewal::Lost(Loss::ForceReleased { reason }));
            }
            Ok(found) => found,
            Err(why) => return Ok(Renewal::Lost(why)),
        };
        let trace = Arc::new(Trace::new(Vec::new(), found.until, found.until, found.until));
        let one = Renewing {
            keys: found.keys,
            value: found.value.into(),
            owner: handle.owner(),
            token: handle.token(),
            term,
            trace: trace.clone(),
        };
        let (keys, value, links) = (one.keys.clone(), one.value.clone(), found.links);
        let renewal = renewal::renew(&store.fleet, &store.renewals, one).await;
        // Whoever has the handle may give the lock back from now on, or take it over.
        let mended = {
            let mut trace = lock(&trace.0);
            trace.closed = true;
            trace.mended
        };
        if mended {
            // The answers to a first look come behind what makes it anew. A second one sees what was freed
            // before that.
            let _ = see(store, handle).await;
            if let Ok(Sight::Lost(why @ Loss::Expired)) = see(store, handle).await {
                // It was given back meanwhile, and made anew where that had freed it first.
                forget(store, keys, value, &links);
                return Ok(Renewal::Lost(why));
            }
        }
        match renewal? {
            // By those who are taking it over, or for good: the next look tells.
            Renewal::Lost(Loss::Taken | Loss::Expired) => {
                patience.pause(&store.fleet, in_the_way(&store.fleet)).await?;
            }
            renewal => return Ok(renewal),
        }
    }
}

/// Gives the lock of a handle back: whether it still was the handle's.
pub(super) async fn release(store: &Store, handle: &Handle) -> Result<bool> {
    let mut patience = Patience::new(&store.fleet);
    loop {
        let Ok(found) = find(store, handle, &mut patience).await? else { return Ok(false) };
        let (fleet, now) = (&store.fleet, store.fleet.clock.now());
        let parting = Parting {
            keys: found.keys,
            value: found.value.into(),
            before: None,
            wake: true,
            place: None,
            settled_at: now,
            over_at: now.plus(fleet.config.key_life(fleet.config.max_ttl)),
        };
        if Farewell::say(fleet, &store.keeper, parting, &found.links).accepted().await? {
            return Ok(true);
        }
        patience.pause(fleet, in_the_way(fleet)).await?;
    }
}

/// Frees what was put back, or made anew, of a lock that was given back meanwhile and cannot have a majority
/// again.
fn forget(store: &Store, keys: Arc<Keys>, value: Arc<str>, links: &[Arc<Link>]) {
    let (fleet, now) = (&store.fleet, store.fleet.clock.now());
    let parting = Parting {
        keys,
        value,
        before: None,
        wake: false,
        place: None,
        settled_at: now,
        over_at: now.plus(fleet.config.key_life(fleet.config.max_ttl)),
    };
    Farewell::say(fleet, &store.keeper, parting, links);
}

/// What to say of the nodes when others were in the way to the end.
fn in_the_way(fleet: &Fleet) -> Vec<Verdict> {
    vec![Verdict::Held { by: "somebody else, or nobody".to_owned() }; fleet.len()]
}

/// Takes the lock of a handle over, under the identity of the request or, after others were in the way, a new
/// one: what puts a try back must not touch the next.
pub(super) async fn attach(store: &Store, handle: &Handle, request: &Request) -> Result<Grant> {
    store.warm_up();
    let mut patience = Patience::new(&store.fleet);
    let (mut identity, mut before) = (request.identity, None);
    loop {
        let found = match find(store, handle, &mut patience).await? {
            Ok(Found { revoked: Some(reason), .. }) => {
                return Err(Error::lost(handle.name(), Loss::ForceReleased { reason }));
            }
            Ok(found) => found,
            Err(why) => {
                if let (Some(Found { keys, value, links, .. }), Loss::Expired) = (before, &why) {
                    forget(store, keys, value.into(), &links);
                }
                return Err(Error::lost(handle.name(), why));
            }
        };
        before = Some(found.clone());
        match take_over(store, handle, request, identity, found).await? {
            Ok(grant) => return Ok(grant),
            Err(verdicts) => patience.pause(&store.fleet, verdicts).await?,
        }
        identity = Identity::fresh(handle.name());
    }
}

/// Moves the lock to an identity. What nodes said if others were in the way, and none of them is known to
/// have it.
async fn take_over(
    store: &Store,
    handle: &Handle,
    request: &Request,
    identity: Identity,
    found: Found,
) -> Result<Result<Grant, Vec<Verdict>>> {
    let (fleet, name) = (&store.fleet, handle.name());
    let (line, owner) = (fleet.line(), identity.owner());
    let letters = fleet.inbox.open(owner, request.signal.clone());
    let note = match &*request.note {
        "" => record::holder(name, &found.value, -1).note.unwrap_or_default(),
        note => note.to_owned(),
    };
    let (sent, life) = (fleet.clock.now(), fleet.config.key_life(request.ttl));
    let until = valid_until(sent, request.ttl);
    let (sender, decided) = oneshot::channel();
    let moving = Arc::new(Moving {
        fleet: fleet.clone(),
        keys: found.keys,
        from: found.value.into(),
        to: record::entry(owner, &line.channel, &note).into(),
        px: milliseconds(life),
        give_up_at: sent.plus(fleet.config.timeout).min(until),
        state: Mutex::new(State {
            extension: Extension::new(vec![Kept::Open; fleet.len()], until),
            verdicts: vec![late(); fleet.len()],
            found: Vec::new(),
            decided: Some(sender),
            over: false,
        }),
    });
    let mut attaching = Attaching { store, handle, moving: &moving, links: Vec::new(), life };
    attaching.ask(&line);
    let outcome = fleet.clock.within(Some(moving.give_up_at), decided).await;
    let (found, verdicts) = {
        let mut state = lock(&moving.state);
        state.over = true;
        (state.found.clone(), state.verdicts.clone())
    };
    if let Some(Ok(Extended::Yes)) = outcome {
        let links = std::mem::take(&mut attaching.links);
        let trace = Trace::new(links, until, moving.give_up_at, moving.give_up_at.plus(life));
        let (token, keys, value) = (handle.token(), moving.keys.clone(), moving.to.clone());
        let hold = Held::assemble(store, owner, token, keys, value, trace, letters, line, None);
        let term = Some(request.ttl);
        return Ok(Ok(Grant { identity, token, sent, term, pushed: false, hold: Arc::new(hold) }));
    }
    if let Some(why) = settled(fleet.len(), &found, handle) {
        return Err(Error::lost(name, why));
    }
    match found.is_empty() {
        true => Err(fleet.no_majority(verdicts)),
        false => Ok(Err(verdicts)),
    }
}

/// A lock on its way from the handle's value to another one.
struct Moving {
    fleet: Arc<Fleet>,
    keys: Arc<Keys>,
    from: Arc<str>,
    to: Arc<str>,
    px: String,
    give_up_at: Moment,
    state: Mutex<State>,
}

struct State {
    extension: Extension<Moment>,
    verdicts: Vec<Verdict>,
    /// What was found in the lock's place, by node; empty where nothing was.
    found: Vec<String>,
    decided: Option<oneshot::Sender<Extended>>,
    /// Nothing more is sent: what was moved stays, or is put back behind all that was sent before.
    over: bool,
}

/// Puts back what was moved, unless the links that were asked have been taken for a guard. Frees it where the
/// lock is lost for good: whoever has a majority keeps that, or puts it back, so nobody is let in by it; and
/// what was given back must not come back.
struct Attaching<'a> {
    store: &'a Store,
    handle: &'a Handle,
    moving: &'a Arc<Moving>,
    links: Vec<Arc<Link>>,
    life: Duration,
}

impl Attaching<'_> {
    fn ask(&mut self, line: &Arc<super::fleet::Line>) {
        let (fleet, moving) = (&self.store.fleet, self.moving);
        for node in 0..fleet.len() {
            let verdict = match fleet.reach(line, node, fleet.clock.now(), false) {
                Reach::Up(link) => {
                    self.links.push(link.clone());
                    match fleet.put(moving, &link) {
                        Ok(()) => continue,
                        Err(why) => Verdict::Unreachable { why },
                    }
                }
                other => other.verdict(),
            };
            moving.clone().hear(node, Heard::Not(verdict));
        }
    }
}

impl Drop for Attaching<'_> {
    fn drop(&mut self) {
        if self.links.is_empty() {
            return;
        }
        let moving = self.moving;
        let lost = {
            let mut state = lock(&moving.state);
            state.over = true;
            settled(state.verdicts.len(), &state.found, self.handle).is_some()
        };
        let parting = Parting {
            keys: moving.keys.clone(),
            value: moving.to.clone(),
            before: (!lost).then(|| moving.from.clone()),
            wake: false,
            place: None,
            settled_at: moving.give_up_at,
            over_at: moving.give_up_at.plus(self.life),
        };
        Farewell::say(&self.store.fleet, &self.store.keeper, parting, &self.links);
    }
}

impl Question for Moving {
    fn script(&self) -> Script {
        Script::Attach
    }

    fn send(&self, link: &Link, sent: Moment, call: Call) -> Result<(), String> {
        if sent >= self.give_up_at {
            return Err("its time is over".to_owned());
        }
        let left = u64::try_from(self.give_up_at.since(sent).as_micros()).unwrap_or(u64::MAX);
        let not_after = link.node.time(sent).saturating_add(left).to_string();
        let keys = [self.fleet.config.node_key.as_str(), self.keys.lock(), self.keys.counter()];
        let arguments = [&*link.votes, &not_after, &self.from, &self.to, &self.px];
        link.eval(Script::Attach, &keys, &arguments, sent, call)
    }

    fn send_late(&self, link: &Arc<Link>, sent: Moment, call: Call) -> Result<(), String> {
        let state = lock(&self.state);
        if state.over {
            return Err("it is over".to_owned());
        }
        self.send(link, sent, call)
    }

    fn halves(&self) -> Option<[Arc<Self>; 2]> {
        None
    }

    fn hear(self: Arc<Self>, node: usize, heard: Heard) {
        let mut state = lock(&self.state);
        let (kept, verdict) = match heard {
            // Whatever the counter is: the look has told the token, and to keep a lock the key is enough.
            Heard::Reply(Value::Int(_)) => (Kept::Yes, Verdict::Granted),
            Heard::Reply(reply) => {
                if let Some([Value::Text(found)]) = reply.as_list() {
                    state.found.push(String::from_utf8_lossy(found).into_owned());
                }
                (Kept::No, Verdict::Held { by: "somebody else, or nobody".to_owned() })
            }
            Heard::Not(verdict) => (Kept::Silent, verdict),
        };
        state.verdicts[node] = verdict;
        let outcome = state.extension.hear(node, kept, self.fleet.clock.now());
        if outcome != Extended::Wait
            && let Some(decided) = state.decided.take()
        {
            let _ = decided.send(outcome);
        }
    }
}
