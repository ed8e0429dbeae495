//! What an operator does: look at locks, and take them back.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::client::{FULL, Fault};
use super::keys::{self, Keys};
use super::proto::{Compare, DeleteRequest, KeyValue, PutRequest, RangeRequest, Request};
use super::record::{self, Record};
use super::session::Session;
use crate::backend::{ForceRelease, Revoked};
use crate::{Error, Holder, Listing, Name, Result};

/// How many keys are read at a time: under an empty prefix lies all that the cluster is used for.
const PAGE: usize = 1000;
/// And how many values: of what other clients put there each may have more than a megabyte.
const SOME: usize = 10;

/// All holders whose name starts with `prefix`, by name.
pub(super) async fn list(session: Arc<Session>, prefix: String) -> Result<Listing> {
    let first = holders(&session, &prefix).await?;
    let mut left = HashMap::new();
    for lease in first.values().map(|kv| kv.lease).collect::<HashSet<_>>() {
        left.insert(lease, session.time_left(lease).await);
    }
    let keys: Vec<_> = first.values().map(|kv| kv.key.clone()).collect();
    let mut found = HashMap::new();
    for some in keys.chunks(SOME) {
        let read = |key: &Vec<u8>| RangeRequest { key: key.clone(), ..RangeRequest::default() };
        let (_, kvs) = session.read_by(some.iter().map(read).collect()).await?;
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
async fn holders(session: &Session, prefix: &str) -> Result<BTreeMap<Name, KeyValue>> {
    let ours = &session.client.config.prefix;
    let (mut key, range_end) = keys::range(format!("{ours}{prefix}").as_bytes());
    let mut first: BTreeMap<Name, KeyValue> = BTreeMap::new();
    loop {
        let limit = i64::try_from(PAGE).unwrap_or(i64::MAX);
        let page = RangeRequest {
            key,
            range_end: range_end.clone(),
            limit,
            keys_only: true,
            max_create_revision: 0,
        };
        let (_, kvs) = session.read_by(vec![page]).await?;
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

/// Whom a force-release is for: whoever holds the lock when it first looks, if that is the one that is meant, and nobody
/// who comes after.
struct Victim {
    created: i64,
    holder: Holder,
    /// A transaction for it went unanswered, and may have been carried out.
    unanswered: bool,
}

impl Victim {
    /// Its key is gone, by a transaction of ours that went unanswered or by its own doing. The next revision is larger than its token, and not larger than that of
    /// anybody who comes after it.
    fn gone(self) -> Option<Revoked> {
        Some(Revoked::new(self.holder, record::token(self.created + 1)?, true))
    }
}

/// Takes a lock back, politely or at once.
///
/// The operator's token is the revision of the transaction that does it, and whoever gets the lock next must have a larger
/// one. So the same transaction sends our waiters away, whose keys are older than that; they queue again at once.
pub(super) async fn force_release(
    session: Arc<Session>,
    name: Name,
    how: ForceRelease,
) -> Result<Option<Revoked>> {
    let (client, now, reason) = (&session.client, how.now, &how.reason);
    let keys = Keys::new(&client.config.prefix, &name);
    let mut fixed: Option<Victim> = None;
    // The queue may change between the look and the transaction; then look again.
    for _ in 0..32 {
        let (revision, all) = session.read(keys.range()).await?;
        let contenders = keys.contenders(all.clone());
        let found = contenders.first();
        let is_victim = |kv: &KeyValue| match &fixed {
            Some(victim) => victim.created == kv.create_revision,
            None => how.token.is_none_or(|meant| record::token(kv.create_revision) == Some(meant)),
        };
        let Some(kv) = found.filter(|kv| is_victim(kv)) else {
            return match (fixed.filter(|victim| victim.unanswered), found) {
                (Some(victim), _) => Ok(victim.gone()),
                (None, Some(other)) => Err(Error::changed(&name, session.describe(&name, other).await)),
                (None, None) => Ok(None),
            };
        };
        let record = Record::of(kv);
        if record.is_none() && !now {
            return Err(Error::unsupported(
                format!("asking the foreign holder of lock `{name}` to let go"),
                "only freeing it at once works (`--now`); make sure that it does not work any more",
            ));
        }
        let mut victim = match fixed.take() {
            Some(victim) => victim,
            None => {
                let holder = session.describe(&name, kv).await;
                Victim { created: kv.create_revision, holder, unanswered: false }
            }
        };
        let marked = record.as_ref().is_some_and(|record| record.revoked.as_ref() == Some(reason));
        let token = if victim.unanswered && marked {
            record::token(kv.mod_revision)
        } else {
            let unchanged = Compare::written(&kv.key, kv.mod_revision);
            let nobody_new = Compare::none_newer(keys.range(), revision);
            let changes = revocation(&all, &contenders, record.clone(), reason);
            let compare = vec![unchanged, nobody_new];
            let mut answer = client.txn(compare.clone(), changes, vec![]).await;
            // A full cluster takes no mark, but lets keys go: better a victim that does not learn why.
            if let Err(Fault::Error(Error::Config { message })) = &answer
                && now
                && message.contains(FULL)
            {
                let changes = revocation(&all, &contenders, None, reason);
                answer = client.txn(compare, changes, vec![]).await;
            }
            let answer = answer.map_err(|fault| fault.into_error(client))?;
            victim.unanswered |= answer.unknown;
            record::token(answer.value.revision()).filter(|_| answer.value.succeeded)
        };
        let Some(token) = token else {
            fixed = Some(victim);
            continue;
        };
        if now && record.is_some() {
            let deleted = session.leases.delete(&kv.key, kv.create_revision).await;
            deleted.map_err(|fault: Fault| fault.into_error(client))?;
        }
        return Ok(Some(Revoked::new(victim.holder, token, now)));
    }
    Err(client.unavailable(format!("the queue for lock `{name}` changed all the time; try again")))
}

/// What takes the lock from the first of the contenders, and sends the others away.
fn revocation(
    all: &[KeyValue],
    contenders: &[KeyValue],
    record: Option<Record>,
    reason: &str,
) -> Vec<Request> {
    let Some((victim, waiters)) = contenders.split_first() else { return Vec::new() };
    let mut changes = send_away(all, waiters);
    changes.push(match record {
        // The victim is told before its key goes, or it would not learn why.
        Some(record) => Request::Put(PutRequest {
            key: victim.key.clone(),
            value: record.with_reason(reason).to_bytes(),
            lease: 0,
            ignore_lease: true,
        }),
        None => delete(&victim.key),
    });
    changes
}

fn delete(key: &[u8]) -> Request {
    Request::Delete(DeleteRequest { key: key.to_vec(), range_end: Vec::new() })
}

/// Deletions of all keys of waiters that are ours: neighbours in one, since a transaction has a limit. `all` is all there
/// is in the range; peers could not come back, and stay.
fn send_away(all: &[KeyValue], waiters: &[KeyValue]) -> Vec<Request> {
    let goes = |kv: &KeyValue| Record::of(kv).is_some() && waiters.iter().any(|waiter| waiter.key == kv.key);
    let mut deletions: Vec<DeleteRequest> = Vec::new();
    let mut neighbours = false;
    for kv in all {
        if !goes(kv) {
            neighbours = false;
            continue;
        }
        if !std::mem::replace(&mut neighbours, true) {
            deletions.push(DeleteRequest { key: kv.key.clone(), range_end: Vec::new() });
        }
        if let Some(last) = deletions.last_mut() {
            last.range_end = [kv.key.as_slice(), &[0]].concat();
        }
    }
    deletions.into_iter().map(Request::Delete).collect()
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
                Request::Delete(delete) => (delete.key, delete.range_end),
                other => panic!("{other:?}"),
            })
            .collect();
        let range = |from: &str, to: &str| (from.as_bytes().to_vec(), format!("{to}\0").into_bytes());
        assert_eq!(ranges, [range("a/1", "a/2"), range("a/4", "a/4")]);
    }
}
