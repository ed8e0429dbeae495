//! What operators ask: who holds what, who waits for it, and to take a lock away.

use std::collections::BTreeSet;
use std::time::Duration;

use super::client::Client;
use super::driver::resp::Value;
use super::driver::session::Silence;
use super::keys::{self, KeySet};
use super::ops::{Op, Taken};
use super::record;
use crate::backend::{ForceRelease, Revoked};
use crate::{Error, Holder, Listing, Name, Owner, Result};

/// Locks that are looked at together.
const PAGE: usize = 500;

/// What PTTL says of a key that is not there.
const NO_KEY: i64 = -2;

/// Reads as much of a lock's value as ours ever have: a foreign one may have any length.
fn get_start(key: &str) -> [&str; 4] {
    ["GETRANGE", key, "0", "16383"]
}

/// The last place of the queue that is shown.
const LAST_SHOWN: &str = "999";

/// A lock as it was found: its holder, and the value to compare with. A key of another type has none.
struct Found {
    holder: Holder,
    value: Option<Vec<u8>>,
}

impl Found {
    /// By the answers to GET or GETRANGE and PTTL; `None` if the lock is free.
    fn read(name: &Name, value: &Value, ttl: &Value) -> Option<Self> {
        let ttl = ttl.as_int().unwrap_or(-1);
        match value {
            _ if ttl == NO_KEY => None,
            Value::Nil => None,
            Value::Text(value) => {
                let holder = record::holder(name, &String::from_utf8_lossy(value), ttl);
                Some(Self { holder, value: Some(value.clone()) })
            }
            _ => {
                let mut holder = Holder::unknown(name.clone());
                holder.expires_in = u64::try_from(ttl).ok().map(Duration::from_millis);
                Some(Self { holder, value: None })
            }
        }
    }
}

/// The text of an error other than that of a key of another type, which has a holder of whom nothing is
/// known.
fn refused(value: &Value) -> Option<&str> {
    match value {
        Value::Error(text) if !text.starts_with("WRONGTYPE") => Some(text),
        _ => None,
    }
}

pub(super) async fn list(client: &Client, prefix: &str) -> Result<Listing> {
    let start = &client.config().start;
    let pattern = keys::pattern(start, prefix);
    let (mut names, mut cursor) = (BTreeSet::new(), "0".to_owned());
    loop {
        let page = client.sessions.ask(&[&["SCAN", &cursor, "MATCH", &pattern, "COUNT", "1000"]]).await?;
        if let Some(text) = page.first().and_then(refused) {
            return Err(client.sessions.refusal(text));
        }
        match keys::names(page.first(), start, &mut names) {
            Some(next) if next != "0" => cursor = next,
            _ => break,
        }
    }
    let names: Vec<Name> = names.into_iter().collect();
    let Listing { mut holders, mut unreadable } = Listing::default();
    for page in names.chunks(PAGE) {
        let locks: Vec<_> = page.iter().map(|name| format!("{start}{name}")).collect();
        let reads: Vec<_> = locks.iter().map(|key| (get_start(key), ["PTTL", key])).collect();
        let commands: Vec<&[&str]> = reads.iter().flat_map(|(get, ttl)| [&get[..], &ttl[..]]).collect();
        let answers = client.sessions.ask(&commands).await?;
        for (name, answers) in page.iter().zip(answers.chunks_exact(2)) {
            match refused(&answers[0]) {
                Some(text) => unreadable.push(client.sessions.refusal(text)),
                None => holders.extend(Found::read(name, &answers[0], &answers[1]).map(|found| found.holder)),
            }
        }
    }
    Ok(Listing { holders, unreadable })
}

pub(super) async fn show(client: &Client, name: &Name) -> Result<Option<Holder>> {
    let keys = client.keys(name)?;
    let [lock, _, queue] = keys.each();
    let waiting = ["LRANGE", queue, "0", LAST_SHOWN];
    let answers = client.sessions.ask(&[&get_start(lock), &["PTTL", lock], &waiting]).await?;
    if let Some(text) = answers.iter().find_map(refused) {
        return Err(client.sessions.refusal(text));
    }
    let Some(Found { mut holder, .. }) = Found::read(name, &answers[0], &answers[1]) else {
        return Ok(None);
    };
    let waiting = answers[2].as_list().unwrap_or_default().iter().filter_map(Value::as_text);
    holder.queue = waiting.map(|entry| record::holder(name, entry, -1)).collect();
    Ok(Some(holder))
}

pub(super) async fn force_release(
    client: &Client,
    name: &Name,
    how: &ForceRelease,
) -> Result<Option<Revoked>> {
    let keys = client.keys(name)?;
    let [lock, ..] = keys.each();
    let answers = client.sessions.ask(&[&["GET", lock], &["PTTL", lock]]).await?;
    if let Some(text) = refused(&answers[0]) {
        return Err(client.sessions.refusal(text));
    }
    let Some(mut found) = Found::read(name, &answers[0], &answers[1]) else { return Ok(None) };
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
            return Err(Error::unsupported(
                format!("asking the foreign holder of lock `{name}` to let go"),
                "only freeing it at once works (`--now`); make sure that it does not work any more",
            ));
        }
        let taken = match how.now {
            true => seize(client, name, &keys, &value, &how.reason).await?,
            false => ask(client, &keys, &value, &how.reason).await?,
        };
        let (value, ttl) = match taken {
            Taken::Granted(token) => return Ok(Some(Revoked::new(found.holder, token, how.now))),
            Taken::Held { value, .. } if value.is_empty() => return Ok(None),
            Taken::Held { value, ttl, .. } => (value, ttl),
        };
        let holder = record::holder(name, &String::from_utf8_lossy(&value), ttl);
        if token.is_none() {
            return Err(Error::changed(name, holder));
        }
        found = Found { holder, value: Some(value) };
    }
}

async fn ask(client: &Client, keys: &KeySet, value: &[u8], reason: &str) -> Result<Taken> {
    let answer = client.run(keys, Op::Ask { value, reason }, client.timeout()).await?;
    Taken::read(answer.reply).ok_or_else(|| client.unreadable())
}

/// Takes the lock and gives it to whoever waits, in one call. Not repeated: what the first one did would look
/// like the doing of others.
async fn seize(client: &Client, name: &Name, keys: &KeySet, value: &[u8], reason: &str) -> Result<Taken> {
    let deadline = client.sessions.deadline();
    let entry = record::entry(Owner::fresh(), &client.sessions.slot().channel, reason);
    let steps =
        [Op::Seize { entry: &entry, value, reason }, Op::Leave { entry: &entry }].map(|op| op.on(keys));
    let mut first = true;
    loop {
        let session = client.sessions.current(deadline).await?;
        match client.sessions.exchange(&session, &steps, client.clock.now(), deadline).await {
            Ok(Value::Error(text)) => return Err(client.refusal(keys, &text).await),
            Ok(Value::List(mut replies)) if replies.len() == steps.len() => {
                return match replies.swap_remove(0) {
                    Value::Error(text) => Err(client.refusal(keys, &text).await),
                    reply => Taken::read(reply).ok_or_else(|| client.unreadable()),
                };
            }
            Ok(_) => return Err(client.unreadable()),
            Err(Silence::NotSent(_) | Silence::ReadOnly) if first => first = false,
            Err(silence) => return Err(client.sessions.error(silence).of_change(name)),
        }
    }
}

pub(super) async fn check(client: &Client) -> Result<()> {
    let answers = client.sessions.ask(&[&["PING"]]).await?;
    answers.first().and_then(refused).map_or(Ok(()), |text| Err(client.sessions.refusal(text)))
}
