//! What operators ask: who holds what, who waits for it, and to take a lock away.

use std::collections::BTreeSet;

use super::client::{self, Client, GrantReply, Op};
use super::driver::resp::Value;
use super::driver::session::{NoReply, ScriptReply, Sessions};
use super::errors;
use super::keys::{self, KeySet};
use super::push::{listeners, numsub};
use super::record;
use crate::backend::{ForceRelease, Revoked};
use crate::backends::common::foreign;
use crate::{Error, Holder, Listing, Name, Owner, Result};

/// Locks that are looked at together.
const PAGE: usize = 500;

/// How often all servers are looked at where locks move between them.
const LOOKS: u32 = 3;

/// What PTTL says of a key that is not there.
const NO_KEY: i64 = -2;

/// The last place of the queue that is shown.
const LAST_SHOWN: &str = "999";

/// Reads as much of a lock's value as ours ever have: a foreign one may have any length.
fn get_start(key: &str) -> [&str; 4] {
    ["GETRANGE", key, "0", "16383"]
}

/// A lock as it was found.
struct HeldLock {
    holder: Holder,
    /// To compare with; `None` for a key of another type.
    value: Option<Vec<u8>>,
}

impl HeldLock {
    /// By the replies to GET or GETRANGE and to PTTL. `None` if the lock is free.
    fn read(name: &Name, value: &Value, ttl: &Value) -> Option<Self> {
        let ttl = ttl.as_int().unwrap_or(-1);
        match value {
            _ if ttl == NO_KEY => None,
            Value::Nil => None,
            Value::Text(value) => Some(Self::of(name, value.clone(), ttl)),
            _ => Some(Self { value: None, ..Self::of(name, Vec::new(), ttl) }),
        }
    }

    fn of(name: &Name, value: Vec<u8>, ttl: i64) -> Self {
        let holder = record::holder(name, &String::from_utf8_lossy(&value), ttl);
        Self { holder, value: Some(value) }
    }
}

/// Fails if a command was refused. A key of another type is no error: its holder is one of whom nothing is
/// known.
fn accepted(client: &Client, reply: &Value) -> Result<()> {
    match reply {
        Value::Error(text) if !text.starts_with("WRONGTYPE") => Err(errors::refusal(text, client.config())),
        _ => Ok(()),
    }
}

pub(super) async fn list(client: &Client, prefix: &str) -> Result<Listing> {
    let start = &client.config().start;
    let pattern = keys::pattern(start, prefix);
    let mut names = BTreeSet::new();
    for look in 1.. {
        let (version, scanned) = (client.servers.version(), scan_all(client, &pattern, &mut names).await);
        if scanned.is_err() {
            // A master may be none any more.
            client.servers.refresh().await;
        }
        // What moved from one server to another may have been on neither when that was looked at.
        if client.servers.version() == version || look == LOOKS {
            scanned?;
            break;
        }
    }
    let names: Vec<Name> = names.into_iter().collect();
    let Listing { mut holders, mut unreadable } = Listing::default();
    for page in names.chunks(PAGE) {
        let locks: Vec<_> = page.iter().map(|name| format!("{start}{name}")).collect();
        let reads: Vec<_> = locks.iter().map(|key| (get_start(key), ["PTTL", key])).collect();
        let commands: Vec<(&str, &[&str])> =
            reads.iter().flat_map(|(get, ttl)| [(ttl[1], &get[..]), (ttl[1], &ttl[..])]).collect();
        let replies = client.servers.ask(&commands).await?;
        for (name, replies) in page.iter().zip(replies.chunks_exact(2)) {
            match accepted(client, &replies[0]) {
                Err(error) => unreadable.push(error),
                Ok(()) => {
                    holders.extend(HeldLock::read(name, &replies[0], &replies[1]).map(|lock| lock.holder));
                }
            }
        }
    }
    Ok(Listing { holders, unreadable })
}

/// Takes the names of the locks on all servers.
async fn scan_all(client: &Client, pattern: &str, names: &mut BTreeSet<Name>) -> Result<()> {
    for server in client.servers.masters()? {
        scan(client, &server, pattern, names).await?;
    }
    Ok(())
}

/// Takes the names of the locks on one server.
async fn scan(client: &Client, server: &Sessions, pattern: &str, names: &mut BTreeSet<Name>) -> Result<()> {
    let mut cursor = "0".to_owned();
    loop {
        let page = server.ask(&[&["SCAN", &cursor, "MATCH", pattern, "COUNT", "1000"]]).await?;
        page.first().map_or(Ok(()), |page| accepted(client, page))?;
        match keys::names(page.first(), &client.config().start, names) {
            Some(next) if next != "0" => cursor = next,
            _ => return Ok(()),
        }
    }
}

pub(super) async fn show(client: &Client, name: &Name) -> Result<Option<Holder>> {
    let keys = client.keys(name)?;
    let [lock, _, queue] = keys.each();
    let waiting = ["LRANGE", queue, "0", LAST_SHOWN];
    let (value, ttl) = (get_start(lock), ["PTTL", lock]);
    let commands: [(&str, &[&str]); 3] = [(lock, &value), (lock, &ttl), (queue, &waiting)];
    let mut replies = client.servers.ask(&commands).await?;
    let is_empty = matches!(replies.first(), Some(Value::Text(value)) if value.is_empty());
    if is_empty && replies.get(1).and_then(Value::as_int) != Some(NO_KEY) {
        // Of other make, or taken between the two commands. A second look tells.
        replies = client.servers.ask(&commands).await?;
    }
    replies.iter().try_for_each(|reply| accepted(client, reply))?;
    let Some(HeldLock { mut holder, .. }) = HeldLock::read(name, &replies[0], &replies[1]) else {
        return Ok(None);
    };
    let entries = replies[2].as_list().unwrap_or_default().iter().filter_map(Value::as_text);
    let waiting = entries.map(|entry| (record::channel(entry), entry)).collect();
    let waiting = reachable(client, lock, waiting).await?;
    holder.queue = waiting.iter().map(|entry| record::holder(name, entry, -1)).collect();
    Ok(Some(holder))
}

/// The entries of waiters that listen to their channels. Those of a client that died stay until a release
/// comes across them.
async fn reachable<'a>(
    client: &Client,
    lock: &str,
    waiting: Vec<(&'a str, &'a str)>,
) -> Result<Vec<&'a str>> {
    let asked = numsub(waiting.iter().map(|(channel, _)| *channel));
    // Without waiters there is nothing to ask.
    let replies = if asked.len() > 2 { client.servers.ask(&[(lock, &asked)]).await? } else { Vec::new() };
    let heard = replies.first().and_then(listeners);
    // A user who may not ask is shown them all.
    let is_heard = |channel: &str| heard.as_ref().is_none_or(|heard| heard.contains(channel));
    Ok(waiting.into_iter().filter(|(channel, _)| is_heard(channel)).map(|(_, entry)| entry).collect())
}

pub(super) async fn force_release(
    client: &Client,
    name: &Name,
    how: &ForceRelease,
) -> Result<Option<Revoked>> {
    let keys = client.keys(name)?;
    let [lock, ..] = keys.each();
    let replies = client.servers.ask(&[(lock, &["GET", lock]), (lock, &["PTTL", lock])]).await?;
    accepted(client, &replies[0])?;
    let Some(mut found) = HeldLock::read(name, &replies[0], &replies[1]) else { return Ok(None) };
    let token = found.holder.token;
    // Another operator may have asked meanwhile, or somebody attached it: it is the same grant, by its token.
    loop {
        if !how.means(&found.holder) || found.holder.token != token {
            return Err(Error::changed(name, found.holder));
        }
        let Some(value) = found.value else {
            return Err(Error::unsupported(
                format!("force-releasing lock `{name}`, whose key is of another type,"),
                format!("look at the key `{lock}` and delete it by hand if it is safe to"),
            ));
        };
        if token.is_none() && !how.now {
            return Err(foreign::cannot_be_asked(name, "freeing it"));
        }
        let reply = match how.now {
            true => seize(client, name, &keys, &value, &how.reason).await?,
            false => {
                let op = Op::Ask { value: &value, reason: &how.reason };
                client.run(&keys, op, client.timeout(), GrantReply::read).await?.value
            }
        };
        found = match reply {
            GrantReply::Granted(token) => return Ok(Some(Revoked::new(found.holder, token, how.now))),
            GrantReply::Held { value, .. } if value.is_empty() => return Ok(None),
            GrantReply::Held { value, ttl, .. } => HeldLock::of(name, value, ttl),
        };
        if token.is_none() {
            return Err(Error::changed(name, found.holder));
        }
    }
}

/// Takes the lock and gives it to whoever waits, in one call. Not repeated: what the first one did would look
/// like the doing of others.
async fn seize(
    client: &Client,
    name: &Name,
    keys: &KeySet,
    value: &[u8],
    reason: &str,
) -> Result<GrantReply> {
    let entry = record::entry(Owner::fresh(), &client.servers.channel(), reason);
    let ops = [Op::Seize { entry: &entry, value, reason }, Op::Leave { entry: &entry }];
    let [lock, ..] = keys.each();
    let called = client.servers.call(lock, client.deadline(), false, |session, sent, sharing| {
        client::post(&ops, keys, session, sent, sharing)
    });
    let reply = match called.await {
        Ok(ScriptReply { value: Value::List(mut replies), .. }) if replies.len() == ops.len() => {
            replies.swap_remove(0)
        }
        Ok(ScriptReply { value: error @ Value::Error(_), .. }) => error,
        Ok(_) => Value::Nil,
        Err(NoReply::NoSession(error)) => return Err(error),
        Err(error) => return Err(error.into_error(client.config()).of_change(name)),
    };
    match reply {
        Value::Error(text) => Err(client.refusal(keys, &text).await),
        reply => GrantReply::read(reply).ok_or_else(|| client.unreadable()),
    }
}

pub(super) async fn check(client: &Client) -> Result<()> {
    client.servers.refresh().await;
    for server in client.servers.masters()? {
        let replies = server.ask(&[&["PING"]]).await?;
        replies.iter().try_for_each(|reply| accepted(client, reply))?;
    }
    client.servers.check()
}
