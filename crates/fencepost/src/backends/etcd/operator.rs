//! What an operator does: look at locks, take them back, and see whether the cluster can grant any.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::client::Client;
use super::driver::cluster::RequestError;
use super::driver::proto::{Compare, DeleteRequest, KeyValue, Operation, RangeRequest};
use super::keys::{self, Keys};
use super::record::{self, Record};
use crate::backend::{ForceRelease, Revoked};
use crate::backends::common::foreign;
use crate::{Error, Holder, Listing, Name, Result};

/// How many keys are read at a time: under an empty prefix lies all that the cluster is used for.
const PAGE: usize = 1000;
/// How many values are read at a time: what other clients put there may have more than a megabyte each.
const VALUES: usize = 10;
/// How often the queue may change between a look and the transaction that relies on it.
const REVOCATIONS: usize = 32;

/// All holders whose name starts with `prefix`, by name.
pub(super) async fn list(client: Arc<Client>, prefix: String) -> Result<Listing> {
    let first = holders(&client, &prefix).await?;
    let mut left = HashMap::new();
    for lease in first.values().map(|kv| kv.lease).collect::<HashSet<_>>() {
        left.insert(lease, time_left(&client, lease).await);
    }
    let keys: Vec<_> = first.values().map(|kv| kv.key.clone()).collect();
    let mut found = HashMap::new();
    for some in keys.chunks(VALUES) {
        let reads = some.iter().map(|key| Operation::read(key)).collect();
        let kvs = client.cluster.read(reads).await?.value.into_kvs();
        found.extend(kvs.into_iter().map(|kv| (kv.key.clone(), kv)));
    }
    let holder = |(name, kv): (Name, KeyValue)| {
        // Gone meanwhile, or somebody else's: then it is not listed.
        let kv = found.get(&kv.key).filter(|now| now.create_revision == kv.create_revision)?;
        Some(record::holder(&name, kv, left.get(&kv.lease).copied().flatten()))
    };
    Ok(first.into_iter().filter_map(holder).collect::<Vec<_>>().into())
}

/// The key that holds each name, without its value.
async fn holders(client: &Client, prefix: &str) -> Result<BTreeMap<Name, KeyValue>> {
    let ours = &client.cluster.config.prefix;
    let (mut key, range_end) = keys::range(format!("{ours}{prefix}").as_bytes());
    let limit = i64::try_from(PAGE).unwrap_or(i64::MAX);
    let mut first: BTreeMap<Name, KeyValue> = BTreeMap::new();
    loop {
        let page = RangeRequest { key, range_end: range_end.clone(), limit, keys_only: true };
        let kvs = client.cluster.read(vec![Operation::Range(page)]).await?.value.into_kvs();
        let next = kvs.last().filter(|_| kvs.len() == PAGE).map(|kv| [kv.key.as_slice(), &[0]].concat());
        for kv in kvs {
            let name = keys::name(ours, &kv).filter(|name| name.as_str().starts_with(prefix));
            let Some(name) = name else { continue };
            match first.get(&name) {
                Some(other) if other.create_revision < kv.create_revision => {}
                _ => drop(first.insert(name, kv)),
            }
        }
        match next {
            Some(next) => key = next,
            None => return Ok(first),
        }
    }
}

/// Who holds a lock, and who waits for it.
pub(super) async fn show(client: &Client, name: &Name) -> Result<Option<Holder>> {
    let keys = Keys::new(&client.cluster.config.prefix, name);
    let contenders = keys.contenders(client.cluster.read(vec![keys.read()]).await?.value.into_kvs());
    let Some((first, queue)) = contenders.split_first() else { return Ok(None) };
    let mut holder = describe(client, name, first).await;
    holder.queue = queue.iter().map(|kv| record::holder(name, kv, None)).collect();
    Ok(Some(holder))
}

/// The holder that a key tells of, with the time its lease has left.
pub(super) async fn describe(client: &Client, name: &Name, kv: &KeyValue) -> Holder {
    record::holder(name, kv, time_left(client, kv.lease).await)
}

/// `None` for a key without a lease, or where the cluster does not answer: this is for people to read.
async fn time_left(client: &Client, lease: i64) -> Option<Duration> {
    if lease == 0 { None } else { client.cluster.time_to_live(lease).await.ok() }
}

/// Whether the cluster answers.
pub(super) async fn check(client: Arc<Client>) -> Result<()> {
    let key = format!("{}\0", client.cluster.config.prefix).into_bytes();
    match client.cluster.read(vec![Operation::read(&key)]).await.map_err(Error::from) {
        // A user may have rights to some names only. Which ones will be asked for is not known here.
        Err(Error::Config { message }) if message.contains("permission denied") => Ok(()),
        read => read.map(drop),
    }
}

/// Whom a force-release is for: whoever holds the lock when it first looks, if that is the one that is meant,
/// and nobody who comes after.
struct Victim {
    created: i64,
    holder: Holder,
    /// A transaction for it went unanswered, and may have been carried out.
    unanswered: bool,
}

/// Takes a lock back, politely or at once.
///
/// The operator's token is the revision of the transaction that does it, and whoever gets the lock next must
/// have a larger one. So the same transaction sends our waiters away, whose keys are older than that. They
/// queue again at once.
pub(super) async fn force_release(
    client: Arc<Client>,
    name: Name,
    how: ForceRelease,
) -> Result<Option<Revoked>> {
    let cluster = &client.cluster;
    let keys = Keys::new(&cluster.config.prefix, &name);
    let mut victim: Option<Victim> = None;
    for _ in 0..REVOCATIONS {
        let answer = cluster.read(vec![keys.read()]).await?.value;
        let (revision, all) = (answer.revision(), answer.into_kvs());
        let contenders = keys.contenders(all.clone());
        let first = contenders.first();
        let is_meant = |kv: &&KeyValue| match &victim {
            Some(victim) => victim.created == kv.create_revision,
            None => how.token.is_none_or(|meant| record::token(kv.create_revision) == Some(meant)),
        };
        let Some(kv) = first.filter(is_meant) else {
            return match (victim.filter(|victim| victim.unanswered), first) {
                // Gone by our transaction, or by its own doing. The next revision is larger than its token,
                // and not larger than that of anybody who comes after it.
                (Some(Victim { created, holder, .. }), _) => {
                    Ok(record::token(created + 1).map(|token| Revoked::new(holder, token, true)))
                }
                (None, Some(other)) => Err(Error::changed(&name, describe(&client, &name, other).await)),
                (None, None) => Ok(None),
            };
        };
        let record = Record::of(kv);
        if record.is_none() && !how.now {
            return Err(foreign::cannot_be_asked(&name, "freeing it"));
        }
        if victim.is_none() {
            let holder = describe(&client, &name, kv).await;
            victim = Some(Victim { created: kv.create_revision, holder, unanswered: false });
        }
        let Some(of) = &mut victim else { continue };
        let marked = record.as_ref().is_some_and(|record| record.revoked.as_ref() == Some(&how.reason));
        let mut done = Some(kv.mod_revision).filter(|_| of.unanswered && marked);
        if done.is_none() {
            let unchanged = Compare::written(&kv.key, kv.mod_revision);
            let compare = vec![unchanged, Compare::none_newer(keys.range(), revision)];
            let changes = revocation(&all, &contenders, record.clone(), &how.reason);
            let mut answer = cluster.txn(compare.clone(), changes, vec![]).await;
            // A full cluster takes no mark, but lets keys go: better a victim that does not learn why.
            if how.now && matches!(answer, Err(RequestError::Other(Error::Config { .. }))) {
                let changes = revocation(&all, &contenders, None, &how.reason);
                answer = cluster.txn(compare, changes, vec![]).await;
            }
            let answer = answer?;
            of.unanswered |= answer.repeated;
            done = Some(answer.value.revision()).filter(|_| answer.value.succeeded);
        }
        let Some(token) = done.and_then(record::token) else { continue };
        if how.now && record.is_some() {
            let this_one = Compare::created(&kv.key, kv.create_revision);
            cluster.txn(vec![this_one], vec![Operation::delete(&kv.key)], vec![]).await?;
        }
        return Ok(victim.map(|victim| Revoked::new(victim.holder, token, how.now)));
    }
    Err(cluster.unavailable(format!("the queue for lock `{name}` changed all the time; try again")))
}

/// What takes the lock from the first of the contenders, and sends the others away.
fn revocation(
    all: &[KeyValue],
    contenders: &[KeyValue],
    record: Option<Record>,
    reason: &str,
) -> Vec<Operation> {
    let Some((victim, waiters)) = contenders.split_first() else { return Vec::new() };
    let mut changes = send_away(all, waiters);
    changes.push(match record {
        // The victim is told before its key goes, or it would not learn why.
        Some(record) => Operation::put(&victim.key, record.with_reason(reason).to_bytes(), None),
        None => Operation::delete(&victim.key),
    });
    changes
}

/// Deletions of all keys of waiters that are ours: neighbours in one, since a transaction has a limit. `all`
/// is all there is in the range. Peers could not come back, and stay.
fn send_away(all: &[KeyValue], waiters: &[KeyValue]) -> Vec<Operation> {
    let goes = |kv: &KeyValue| Record::of(kv).is_some() && waiters.iter().any(|waiter| waiter.key == kv.key);
    let neighbours = all.chunk_by(|left, right| goes(left) == goes(right));
    let ours = neighbours.filter(|some| goes(&some[0])).map(|some| {
        let range_end = [some[some.len() - 1].key.as_slice(), &[0]].concat();
        Operation::Delete(DeleteRequest { key: some[0].key.clone(), range_end })
    });
    ours.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Owner;

    fn kv(key: &str, ours: bool) -> KeyValue {
        let value = if ours { Record::new(Owner::fresh(), "").to_bytes() } else { Vec::new() };
        KeyValue { key: key.into(), value, ..KeyValue::default() }
    }

    #[test]
    fn neighbours_go_together_and_peers_stay() {
        let all = [kv("a/1", true), kv("a/2", true), kv("a/3", false), kv("a/4", true), kv("a/5", true)];
        let away = send_away(&all, &[all[0].clone(), all[1].clone(), all[2].clone(), all[3].clone()]);
        let ranges: Vec<_> = away
            .into_iter()
            .map(|request| match request {
                Operation::Delete(delete) => (delete.key, delete.range_end),
                other => panic!("{other:?}"),
            })
            .collect();
        let range = |from: &str, to: &str| (from.as_bytes().to_vec(), format!("{to}\0").into_bytes());
        assert_eq!(ranges, [range("a/1", "a/2"), range("a/4", "a/4")]);
    }
}
