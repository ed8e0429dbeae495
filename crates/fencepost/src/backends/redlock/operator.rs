//! What operators ask: who holds what, on which nodes; and to take a lock away.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::ballot::{Ballot, Outcome};
use super::contest::Manner;
use super::farewell::{Farewell, Parting};
use super::fleet::{Reach, late};
use super::keys::Keys;
use super::node::Link;
use super::paper::{Kind, Paper};
use super::quorum::{majority, tokens};
use super::{Store, milliseconds, revocation};
use crate::backend::{ForceRelease, Revoked};
use crate::backends::redis::driver::resp::Value;
use crate::backends::redis::keys;
use crate::report::NodeView;
use crate::runtime::clock::Moment;
use crate::{Error, FencingToken, Holder, Listing, Name, Owner, Result, Verdict};

/// The channel of a holder within its value.
const CHANNEL: std::ops::Range<usize> = 37..53;

/// What one node has of one lock.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Empty where nothing is known but that it is there.
    pub(super) value: Option<String>,
    pub(super) ttl: i64,
    pub(super) counter: Option<u64>,
}

impl Entry {
    /// Where the counter stood before a revocation raised it, as that says.
    pub(super) fn counter(&self) -> Option<u64> {
        let revoked = self.value.as_deref().filter(|value| revocation::victim(value) != *value);
        revoked.map_or(self.counter, revocation::token)
    }
}

/// What one node says: its node key, and what it has of each of several locks.
pub(super) struct Said {
    pub(super) node_key: String,
    pub(super) votes: bool,
    pub(super) entries: Vec<Entry>,
}

/// What each node says; or why it says nothing.
pub(super) type Look = Vec<Result<Said, Verdict>>;

pub(super) async fn list(store: &Store, prefix: &str) -> Result<Listing> {
    let mut names = BTreeSet::new();
    let links = links(store).await?;
    let mut scanned = Vec::with_capacity(links.len());
    for link in &links {
        scanned.push(match link {
            Ok(link) => scan(store, link, prefix, &mut names).await,
            Err(verdict) => Err(verdict.clone()),
        });
    }
    enough(store, &scanned)?;
    let names: Vec<Name> = names.into_iter().collect();
    let mut holders = Vec::new();
    for page in names.chunks(500) {
        let look = look(store, &links, page).await?;
        for (index, name) in page.iter().enumerate() {
            holders.extend(held(store, name, &look, index).map(|(holder, _)| holder));
        }
    }
    Ok(holders.into())
}

/// Whether a majority votes.
pub(super) async fn check(store: &Store) -> Result<()> {
    let links = links(store).await?;
    let (look, now) = (look(store, &links, &[]).await?, store.fleet.clock.now());
    let standing = |(said, link): (Result<Said, Verdict>, &Result<Arc<Link>, Verdict>)| match (said, link) {
        (Ok(said), Ok(link)) => {
            // What a greeting will settle is settled when somebody asks for a lock.
            let standing = store.fleet.config.standing(&said.node_key, &link.votes, link.node.time(now));
            standing.map_or(Ok(()), Err)
        }
        (Ok(_), Err(verdict)) => Err(verdict.clone()),
        (Err(verdict), _) => Err(verdict),
    };
    let nodes: Vec<_> = look.into_iter().zip(&links).map(standing).collect();
    enough(store, &nodes)
}

pub(super) async fn show(store: &Store, name: &Name) -> Result<Option<Holder>> {
    let links = links(store).await?;
    let look = look(store, &links, std::slice::from_ref(name)).await?;
    let Some((mut holder, value)) = held(store, name, &look, 0) else { return Ok(None) };
    let now = store.fleet.clock.now();
    for ((node, said), link) in store.fleet.nodes.iter().zip(&look).zip(&links) {
        let entry = said.as_ref().ok().and_then(|said| said.entries.first());
        let trouble = match (said, link) {
            (Err(verdict), _) => Some(verdict.to_string()),
            (Ok(said), Ok(link)) if !said.votes => Some(trouble(store, link, &said.node_key, now)),
            (Ok(_), _) => None,
        };
        holder.nodes.push(NodeView {
            node: node.label().to_owned(),
            holds: entry.is_some_and(|entry| entry.value.as_deref().map(revocation::victim) == Some(&value)),
            counter: entry.and_then(|entry| entry.counter),
            expires_in_ms: entry.and_then(|entry| u64::try_from(entry.ttl).ok()),
            trouble,
        });
    }
    Ok(Some(holder))
}

/// Why a node that can be asked does not vote, for people.
fn trouble(store: &Store, link: &Link, said: &str, now: Moment) -> String {
    let standing = store.fleet.config.standing(said, &link.votes, link.node.time(now));
    standing.map_or_else(|| "has to be greeted again before it votes".to_owned(), |why| why.to_string())
}

/// Connections to all nodes that can be reached in time. An error if they are no majority: what a minority says of a lock
/// means nothing.
pub(super) async fn links(store: &Store) -> Result<Vec<Result<Arc<Link>, Verdict>>> {
    let fleet = &store.fleet;
    let deadline = fleet.clock.now().plus(fleet.config.timeout);
    let reaches = fleet.settle(&fleet.line(), deadline).await;
    let links: Vec<_> = reaches
        .into_iter()
        .map(|reach| match reach {
            Reach::Up(link) => Ok(link),
            other => Err(other.verdict()),
        })
        .collect();
    enough(store, &links)?;
    Ok(links)
}

fn enough<T>(store: &Store, nodes: &[Result<T, Verdict>]) -> Result<()> {
    if nodes.iter().flatten().count() >= majority(nodes.len()) {
        return Ok(());
    }
    let verdicts = nodes.iter().map(|node| node.as_ref().err().cloned().unwrap_or(Verdict::Granted));
    Err(store.fleet.no_majority(verdicts.collect()))
}

/// The names of the locks on one node.
async fn scan(
    store: &Store,
    link: &Arc<Link>,
    prefix: &str,
    names: &mut BTreeSet<Name>,
) -> Result<(), Verdict> {
    let config = &store.fleet.config;
    let pattern = keys::pattern(&config.start, prefix);
    let mut cursor = "0".to_owned();
    loop {
        let page = ask(store, link, &[&["SCAN", &cursor, "MATCH", &pattern, "COUNT", "1000"]]).await?;
        let Some(next) = keys::names(page.first(), &config.start, names) else { return Ok(()) };
        cursor = next;
        if cursor == "0" {
            return Ok(());
        }
    }
}

/// Asks one node several things together. They are sent at once, not when the answers are waited for.
fn ask(
    store: &Store,
    link: &Arc<Link>,
    commands: &[&[&str]],
) -> impl Future<Output = Result<Vec<Value>, Verdict>> + use<> {
    let replies: Vec<_> = commands.iter().map(|words| link.command(words)).collect();
    let (link, clock) = (link.clone(), store.fleet.clock.clone());
    let deadline = clock.now().plus(store.fleet.config.timeout);
    async move {
        let collect = async {
            let mut values = Vec::with_capacity(replies.len());
            for reply in replies {
                let ended = |_| Verdict::Unreachable { why: link.why_ended() };
                match reply.map_err(|why| Verdict::Unreachable { why })?.await.map_err(ended)? {
                    Value::Error(text) if !is_odd(&text) => {
                        return Err(Verdict::of(&link.node.dial.refusal(&text)));
                    }
                    value => values.push(value),
                }
            }
            Ok(values)
        };
        clock.within(Some(deadline), collect).await.unwrap_or_else(|| Err(late()))
    }
}

/// Whether an error is about one key and says nothing of others: it is of another type, or this user may not read it.
fn is_odd(text: &str) -> bool {
    text.contains("WRONGTYPE") || text.starts_with("NOPERM") && text.contains("key")
}

/// What each node has of some locks.
pub(super) async fn look(
    store: &Store,
    links: &[Result<Arc<Link>, Verdict>],
    names: &[Name],
) -> Result<Look> {
    let keys: Vec<_> = names.iter().map(|name| Keys::new(&store.fleet.config.start, name.as_str())).collect();
    let node_key = store.fleet.config.node_key.as_str();
    let mut commands: Vec<[&str; 2]> = Vec::with_capacity(1 + names.len() * 3);
    commands.push(["GET", node_key]);
    for keys in &keys {
        commands.extend([["GET", keys.lock()], ["PTTL", keys.lock()], ["GET", keys.counter()]]);
    }
    let commands: Vec<&[&str]> = commands.iter().map(|words| &words[..]).collect();
    // All nodes have the commands before the first answer is waited for.
    let asked: Vec<_> =
        links.iter().map(|link| link.as_ref().map(|link| ask(store, link, &commands))).collect();
    let mut look = Vec::with_capacity(links.len());
    for (node, link) in asked.into_iter().zip(links) {
        look.push(match (node, link) {
            (Ok(answers), Ok(link)) => answers.await.map(|values| said(link, &values)),
            (Err(verdict), _) | (_, Err(verdict)) => Err(verdict.clone()),
        });
    }
    enough(store, &look)?;
    Ok(look)
}

fn said(link: &Link, answers: &[Value]) -> Said {
    let node_key = answers.first().and_then(Value::as_text).unwrap_or_default().to_owned();
    let entries = answers.get(1..).unwrap_or_default().chunks_exact(3).map(entry).collect();
    Said { votes: node_key == link.votes, node_key, entries }
}

fn entry(answers: &[Value]) -> Entry {
    let value = match &answers[0] {
        Value::Nil => None,
        Value::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
        // A key of another type, or one that we may not read: somebody else's.
        _ => Some(String::new()),
    };
    let counter = answers[2].as_text().and_then(|text| text.parse().ok());
    Entry { value, ttl: answers[1].as_int().unwrap_or(-1), counter }
}

/// Who holds a lock, or may: with the nodes that cannot be asked, or may have lost its key, it could have a majority. Also
/// its value, as it was before it was revoked.
fn held(store: &Store, name: &Name, look: &Look, index: usize) -> Option<(Holder, String)> {
    let entries: Vec<&Entry> = look.iter().flatten().filter_map(|said| said.entries.get(index)).collect();
    let forgetful =
        |said: &&Said| !said.votes && said.entries.get(index).is_some_and(|one| one.value.is_none());
    let silent = look.len() - entries.len() + look.iter().flatten().filter(forgetful).count();
    // A revoked lock is still its victim's.
    let victims: Vec<_> =
        entries.iter().map(|entry| entry.value.as_deref().map(revocation::victim)).collect();
    let count = |victim: &str| victims.iter().flatten().filter(|other| **other == victim).count();
    let victim = *victims.iter().flatten().max_by_key(|victim| count(victim))?;
    if count(victim) + silent < majority(store.fleet.len()) {
        return None;
    }
    let owned: Vec<_> = entries
        .iter()
        .zip(&victims)
        .filter(|(_, other)| **other == Some(victim))
        .map(|(entry, _)| entry)
        .collect();
    // A majority is gone when the majority-th longest of its keys is.
    let mut ttls: Vec<i64> = owned.iter().map(|entry| entry.ttl).collect();
    ttls.sort_unstable_by(|a, b| b.cmp(a));
    let ttl = ttls.get(majority(store.fleet.len()) - 1).or(ttls.last()).copied().unwrap_or(-1);
    let counters: Vec<u64> = owned.iter().filter_map(|entry| entry.counter()).collect();
    let counter = tokens(store.fleet.len(), &counters).first().copied();
    // What most of its nodes say of it: whether it was revoked.
    let said = owned.iter().filter_map(|entry| entry.value.as_deref());
    let value =
        said.max_by_key(|value| owned.iter().filter(|entry| entry.value.as_deref() == Some(value)).count())?;
    Some((revocation::holder(name, value, ttl, counter), victim.to_owned()))
}

pub(super) async fn force_release(store: &Store, name: &Name, how: &ForceRelease) -> Result<Option<Revoked>> {
    store.warm_up();
    let fleet = &store.fleet;
    let keys = Arc::new(Keys::new(&fleet.config.start, name.as_str()));
    let mut first: Option<String> = None;
    // A ballot that others were in the way of is repeated, for as long as the same one holds the lock.
    for _ in 0..8 {
        let links = links(store).await?;
        let look = look(store, &links, std::slice::from_ref(name)).await?;
        let Some((holder, seen)) = held(store, name, &look, 0) else { return Ok(None) };
        if !how.means(&holder) || first.as_ref().is_some_and(|first| *first != seen) {
            return Err(Error::changed(name, holder));
        }
        if holder.owner.is_none() && !how.now {
            return Err(Error::unsupported(
                format!("asking the foreign holder of lock `{name}` to let go"),
                "only freeing it at once works (`--now`); make sure that it does not work any more",
            ));
        }
        if seen.is_empty() {
            return Err(Error::unsupported(
                format!("force-releasing lock `{name}`, whose key is of another type,"),
                format!(
                    "look at the key `{}` on each node and delete it by hand if it is safe to",
                    keys.lock()
                ),
            ));
        }
        let ballot = revoke(store, name, &keys, &holder, &seen, &how.reason);
        let token = match ballot.decision().await {
            Outcome::Won { token } => FencingToken::new(token),
            Outcome::Failed => None,
        };
        if let Some(token) = token {
            if how.now {
                finish(store, &ballot).accepted().await?;
            }
            return Ok(Some(Revoked::new(holder, token, how.now)));
        }
        // Its keys stay: where they replaced the victim's, freeing them would let somebody else in while the victim is
        // still valid. They end with its lease.
        if ballot.failure().standing().is_none() {
            return Err(ballot.no_majority());
        }
        first = Some(seen);
    }
    Err(Error::Unavailable {
        store: fleet.config.label.clone(),
        source: format!("other clients were in the way of revoking lock `{name}`; try again").into(),
    })
}

/// Asks the nodes to take the lock away from whoever has the value `seen`.
fn revoke(
    store: &Store,
    name: &Name,
    keys: &Arc<Keys>,
    holder: &Holder,
    seen: &str,
    reason: &str,
) -> Arc<Ballot> {
    let fleet = &store.fleet;
    let left = holder.expires_in.unwrap_or(fleet.config.max_ttl).max(Duration::from_millis(1));
    let victim = holder.owner.map(|owner| owner.to_string()).unwrap_or_default();
    let paper = Paper {
        name: name.clone(),
        keys: keys.clone(),
        value: revocation::value(seen, reason, Owner::fresh(), holder.token).into(),
        // How long its answers are worth waiting for. The key lives as long as the victim's did.
        ttl: fleet.config.max_ttl,
        px: milliseconds(left),
        kind: Kind::Revoke {
            channel: seen.get(CHANNEL).unwrap_or_default().to_owned(),
            message: format!("revoked {victim} {reason}"),
            seen: seen.to_owned(),
        },
    };
    Ballot::cast(fleet, &fleet.line(), paper, Manner::AtOnce, 0, fleet.config.timeout)
}

/// Frees what a revocation has taken.
fn finish(store: &Store, ballot: &Ballot) -> Arc<Farewell> {
    let parting = Parting {
        keys: ballot.paper.keys.clone(),
        value: ballot.paper.value.clone(),
        before: None,
        wake: true,
        place: None,
        settled_at: ballot.give_up_at,
        over_at: ballot.give_up_at.plus(ballot.paper.ttl),
    };
    Farewell::say(&store.fleet, &store.keeper, parting, &ballot.links())
}
