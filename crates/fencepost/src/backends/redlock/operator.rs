//! What operators ask: who holds what, on which nodes; and to take a lock away.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::acquire_request::{AcquireRequest, Kind};
use super::attempt::{Decision, QuorumAttempt};
use super::nodes::Nodes;
use super::quarantine::Standing;
use super::quorum::{majority, tokens};
use super::read::{self, Entry, NodeReading};
use super::record;
use super::release::{Release, Then};
use super::retry::AskOrder;
use super::session::Session;
use super::waiters::waiters;
use crate::backend::{ForceRelease, Revoked};
use crate::backends::common::foreign;
use crate::backends::redis::keys::{KeySet, names, pattern};
use crate::backends::redis::milliseconds;
use crate::report::NodeView;
use crate::{Error, FencingToken, Holder, Listing, Name, Owner, Result, Verdict};

/// The channel of a holder within its value.
const CHANNEL: std::ops::Range<usize> = 37..53;
/// Locks that are read together.
const PAGE: usize = 500;
/// How often others may be in the way of a revocation.
const TRIES: usize = 8;

pub(super) async fn list(nodes: &Arc<Nodes>, prefix: &str) -> Result<Listing> {
    let mut names = BTreeSet::new();
    let sessions = read::sessions(nodes).await?;
    let mut scanned = Vec::with_capacity(sessions.len());
    for session in &sessions {
        scanned.push(match session {
            Ok(session) => scan(nodes, session, prefix, &mut names).await,
            Err(verdict) => Err(verdict.clone()),
        });
    }
    read::enough(nodes, &scanned)?;
    let names: Vec<Name> = names.into_iter().collect();
    let mut holders = Vec::new();
    for page in names.chunks(PAGE) {
        let readings = read::read(nodes, &sessions, page).await?;
        for (index, name) in page.iter().enumerate() {
            holders.extend(holder(name, &readings, index).map(|(holder, _)| holder));
        }
    }
    Ok(holders.into())
}

/// The names of the locks on one node.
async fn scan(
    nodes: &Nodes,
    session: &Arc<Session>,
    prefix: &str,
    found: &mut BTreeSet<Name>,
) -> Result<(), Verdict> {
    let start = &nodes.config.start;
    let pattern = pattern(start, prefix);
    let mut cursor = "0".to_owned();
    loop {
        let scan: [&[&str]; 1] = [&["SCAN", &cursor, "MATCH", &pattern, "COUNT", "1000"]];
        let page = read::ask(nodes, session, &scan).await?;
        let Some(next) = names(page.first(), start, found) else { return Ok(()) };
        cursor = next;
        if cursor == "0" {
            return Ok(());
        }
    }
}

/// Whether a majority votes. What a greeting settles is settled when somebody asks for a lock.
pub(super) async fn check(nodes: &Arc<Nodes>) -> Result<()> {
    let sessions = read::sessions(nodes).await?;
    let readings = read::read(nodes, &sessions, &[]).await?;
    let votes = |reading: Result<NodeReading, Verdict>| match reading?.standing {
        Standing::Refused(verdict) => Err(verdict),
        Standing::Votes | Standing::GreetFirst(_) => Ok(()),
    };
    read::enough(nodes, &readings.into_iter().map(votes).collect::<Vec<_>>())
}

pub(super) async fn show(nodes: &Arc<Nodes>, name: &Name) -> Result<Option<Holder>> {
    nodes.check_name(name)?;
    let sessions = read::sessions(nodes).await?;
    let readings = read::read(nodes, &sessions, std::slice::from_ref(name)).await?;
    let Some((mut holder, value)) = holder(name, &readings, 0) else { return Ok(None) };
    for (node, reading) in nodes.each.iter().zip(&readings) {
        let entry = reading.as_ref().ok().and_then(|reading| reading.entries.first());
        let problem = match reading.as_ref().map(|reading| &reading.standing) {
            Ok(Standing::Votes) => None,
            Err(verdict) | Ok(Standing::Refused(verdict) | Standing::GreetFirst(verdict)) => Some(verdict),
        };
        holder.nodes.push(NodeView {
            node: node.label().to_owned(),
            holds: entry.is_some_and(|entry| entry.victim() == Some(&value)),
            counter: entry.and_then(|entry| entry.counter),
            expires_in_ms: entry.and_then(|entry| u64::try_from(entry.ttl).ok()),
            problem: problem.map(ToString::to_string),
        });
    }
    holder.queue = waiters(nodes, &sessions, name).await;
    Ok(Some(holder))
}

/// Who holds a lock, or may: with the nodes that cannot be asked, or may have lost its key, it could have a
/// majority. Also its value, as it was before it was revoked.
fn holder(name: &Name, readings: &[Result<NodeReading, Verdict>], index: usize) -> Option<(Holder, String)> {
    let n = readings.len();
    let entries: Vec<&Entry> = readings.iter().flatten().filter_map(|one| one.entries.get(index)).collect();
    let may_have_lost_it = |reading: &&NodeReading| {
        !reading.votes() && reading.entries.get(index).is_some_and(|entry| entry.value.is_none())
    };
    let silent = n - entries.len() + readings.iter().flatten().filter(may_have_lost_it).count();
    // A revoked lock is still its victim's.
    let count = |victim: &str| entries.iter().filter(|entry| entry.victim() == Some(victim)).count();
    let victim = entries.iter().filter_map(|entry| entry.victim()).max_by_key(|victim| count(victim))?;
    if count(victim) + silent < majority(n) {
        return None;
    }
    let owned: Vec<_> = entries.iter().filter(|entry| entry.victim() == Some(victim)).collect();
    // A majority is gone when the majority-th longest of its keys is.
    let mut ttls: Vec<i64> = owned.iter().map(|entry| entry.ttl).collect();
    ttls.sort_unstable_by(|a, b| b.cmp(a));
    let ttl = ttls.get(majority(n) - 1).or(ttls.last()).copied().unwrap_or(-1);
    let counters: Vec<u64> = owned.iter().filter_map(|entry| entry.counter()).collect();
    let counter = tokens(n, &counters).first().copied();
    // What most of its nodes say of it: whether it was revoked.
    let values = owned.iter().filter_map(|entry| entry.value.as_deref());
    let value = values
        .max_by_key(|value| owned.iter().filter(|entry| entry.value.as_deref() == Some(value)).count())?;
    Some((record::holder(name, value, ttl, counter), victim.to_owned()))
}

pub(super) async fn force_release(
    nodes: &Arc<Nodes>,
    name: &Name,
    how: &ForceRelease,
) -> Result<Option<Revoked>> {
    nodes.check_name(name)?;
    let keys = nodes.keys(name);
    let mut first: Option<String> = None;
    // Repeated if others are in the way, as long as the same one holds the lock.
    for _ in 0..TRIES {
        let sessions = read::sessions(nodes).await?;
        let readings = read::read(nodes, &sessions, std::slice::from_ref(name)).await?;
        let Some((holder, seen)) = holder(name, &readings, 0) else { return Ok(None) };
        if !how.means(&holder) || first.as_ref().is_some_and(|first| *first != seen) {
            return Err(Error::changed(name, holder));
        }
        if holder.owner.is_none() && !how.now {
            return Err(foreign::cannot_be_asked(name, "freeing it"));
        }
        if seen.is_empty() {
            let [lock, ..] = keys.each();
            return Err(Error::unsupported(
                format!("force-releasing lock `{name}`, whose key is of another type,"),
                format!("look at the key `{lock}` on each node and delete it by hand if it is safe to"),
            ));
        }
        let attempt = revoke(nodes, name, &keys, &holder, &seen, &how.reason);
        if let Decision::Won { token } = attempt.decision().await
            && let Some(token) = FencingToken::new(token)
        {
            if how.now {
                let request = attempt.undo(nodes.config.max_ttl, Then::Wake);
                Release::send(nodes, request, &attempt.sessions()).accepted().await?;
            }
            return Ok(Some(Revoked::new(holder, token, how.now)));
        }
        // Its keys stay: where they replaced the victim's, freeing them would let somebody else in while the
        // victim is still valid. They end with its lease.
        let failure = attempt.failure();
        if failure.obstacle.is_none() {
            return Err(nodes.no_majority(failure.verdicts));
        }
        first = Some(seen);
    }
    Err(Error::Unavailable {
        store: nodes.config.label.clone(),
        source: format!("other clients were in the way of revoking lock `{name}`; try again").into(),
    })
}

/// Asks the nodes to take the lock away from whoever has the value `seen`.
fn revoke(
    nodes: &Arc<Nodes>,
    name: &Name,
    keys: &Arc<KeySet>,
    holder: &Holder,
    seen: &str,
    reason: &str,
) -> Arc<QuorumAttempt> {
    let left = holder.expires_in.unwrap_or(nodes.config.max_ttl).max(Duration::from_millis(1));
    let victim = holder.owner.map(|owner| owner.to_string()).unwrap_or_default();
    let request = AcquireRequest {
        name: name.clone(),
        keys: keys.clone(),
        value: record::revoked(seen, reason, Owner::fresh(), holder.token).into(),
        // How long its replies are worth waiting for. The key lives as long as the victim's did.
        ttl: nodes.config.max_ttl,
        px: milliseconds(left),
        kind: Kind::Revoke {
            channel: seen.get(CHANNEL).unwrap_or_default().to_owned(),
            message: format!("revoked {victim} {reason}"),
            seen: seen.to_owned(),
        },
    };
    QuorumAttempt::start(nodes, &nodes.slot(), request, AskOrder::AtOnce, 0, nodes.config.timeout)
}
