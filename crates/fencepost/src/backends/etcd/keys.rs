//! Where locks live: `PREFIX NAME/LEASE`, the lease in hexadecimal, as `etcdctl lock` and the mutex of etcd's own
//! client have it. Every contender for a name has such a key, and the one that was created first holds the lock.
//!
//! A key counts for a name only if all that follows `NAME/` is hexadecimal: `a/b/1f` is a contender for `a/b` and
//! not for `a`. The peers do not look that closely, and wait for it.

use super::driver::client::{Client, RequestError, Response};
use super::driver::proto::{Compare, KeyValue, Operation};
use super::record::Record;
use crate::{Loss, Name, Owner};

/// How often a key may change between a look and the request that relies on it.
pub(super) const TRIES: usize = 8;

/// The contender keys of one name, and where they lie.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    /// `PREFIX NAME/`.
    base: Vec<u8>,
}

impl Keys {
    pub(super) fn new(prefix: &str, name: &Name) -> Self {
        Self { base: format!("{prefix}{name}/").into_bytes() }
    }

    /// The key of a contender with this lease.
    pub(super) fn of(&self, lease: i64) -> Vec<u8> {
        let mut key = self.base.clone();
        key.extend_from_slice(format!("{lease:x}").as_bytes());
        key
    }

    /// From where to where all contenders lie, and maybe more.
    pub(super) fn range(&self) -> (Vec<u8>, Vec<u8>) {
        range(&self.base)
    }

    pub(super) fn read(&self) -> Operation {
        Operation::read_range(self.range())
    }

    /// The contenders among what a range held, first come first.
    pub(super) fn contenders(&self, kvs: Vec<KeyValue>) -> Vec<KeyValue> {
        let is_one = |kv: &KeyValue| kv.key.strip_prefix(self.base.as_slice()).is_some_and(is_lease);
        let mut contenders: Vec<_> = kvs.into_iter().filter(is_one).collect();
        contenders.sort_unstable_by_key(|kv| kv.create_revision);
        contenders
    }
}

/// The range of all keys that start with `start`.
pub(super) fn range(start: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut end = start.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return (start.to_vec(), end);
        }
    }
    // Everything: etcd writes both ends of that as a NUL.
    (if start.is_empty() { vec![0] } else { start.to_vec() }, vec![0])
}

/// The name that a key is a contender for, if it is one. Only keys with a lease are taken for contenders here: under an
/// empty prefix lies whatever else the cluster is used for.
pub(super) fn name(prefix: &str, kv: &KeyValue) -> Option<Name> {
    let rest = kv.key.strip_prefix(prefix.as_bytes())?;
    let slash = rest.iter().rposition(|byte| *byte == b'/')?;
    if kv.lease == 0 || !is_lease(&rest[slash + 1..]) {
        return None;
    }
    Name::new(std::str::from_utf8(&rest[..slash]).ok()?).ok()
}

fn is_lease(text: &[u8]) -> bool {
    (1..=16).contains(&text.len()) && text.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The key of one acquisition. No two acquisitions have the same owner.
#[derive(Clone, Debug)]
pub(super) struct OwnedKey {
    pub(super) key: Vec<u8>,
    pub(super) owner: Owner,
    /// The revision that created it, which is the token; zero while it is not known.
    pub(super) created: i64,
}

impl OwnedKey {
    /// Why a key that was found, or not, is not our lock any more; `None` if it is.
    pub(super) fn loss(&self, found: Option<&KeyValue>) -> Option<Loss> {
        match found.filter(|kv| kv.create_revision == self.created).and_then(Record::of) {
            Some(record) if record.owner == self.owner => {
                record.revoked.map(|reason| Loss::ForceReleased { reason })
            }
            _ => Some(Loss::Taken),
        }
    }

    /// Whether it is ours to delete. Not the lock that somebody else has attached: it keeps its key.
    fn is_ours(&self, kv: &KeyValue) -> bool {
        // What somebody has written over our record by hand is still the key that we made.
        Record::of(kv).map_or(kv.create_revision == self.created, |record| record.owner == self.owner)
    }

    /// Deletes the key, which was last written by revision `written` as far as we know. Says whether it was
    /// there, and still ours.
    pub(super) async fn delete(&self, client: &Client, mut written: i64) -> Result<bool, RequestError> {
        let mut repeated = false;
        for _ in 0..TRIES {
            let (delete, read) = (Operation::delete(&self.key), Operation::read(&self.key));
            let unchanged = vec![Compare::written(&self.key, written)];
            let answer = client.txn(unchanged, vec![delete], vec![read]).await?;
            repeated |= answer.repeated;
            match answer.value.succeeded {
                // A key that is not there was last written by revision zero.
                true => return Ok(written > 0 || repeated),
                false => match answer.value.into_kvs().pop() {
                    Some(kv) if self.is_ours(&kv) => written = kv.mod_revision,
                    Some(_) => return Ok(false),
                    // A repeated request finds nothing if the first one did its work.
                    None => return Ok(repeated),
                },
            }
        }
        Err(client.unavailable("the key of a lock changed all the time; try again").into())
    }

    /// Writes the key to another lease, and to another owner if that is not its own. Its creation, and so the
    /// token, stays what it was. Not over the head of an operator: only what was not revoked moves. Returns the
    /// revision that did it.
    pub(super) async fn move_to(
        &self,
        client: &Client,
        owner: Owner,
        lease: i64,
    ) -> Result<Result<i64, Loss>, RequestError> {
        let (after, mut repeated) = (Self { owner, ..self.clone() }, false);
        for _ in 0..TRIES {
            let found = client.read(vec![Operation::read(&self.key)]).await?.value.into_kvs().pop();
            let Some(kv) = &found else { return Ok(Err(Loss::Taken)) };
            if repeated && kv.lease == lease && after.loss(Some(kv)).is_none() {
                return Ok(Ok(kv.mod_revision));
            }
            if let Some(why) = self.loss(Some(kv)) {
                return Ok(Err(why));
            }
            let value = Record::of(kv).map(|record| record.of_owner(owner).to_bytes()).unwrap_or_default();
            let put = Operation::put(&self.key, value, Some(lease));
            let unchanged = vec![Compare::written(&self.key, kv.mod_revision)];
            let Response { value, repeated: again, .. } = client.txn(unchanged, vec![put], vec![]).await?;
            if value.succeeded {
                return Ok(Ok(value.revision()));
            }
            repeated |= again;
        }
        Err(client.unavailable("the key of a lock changed all the time; try again").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kv(key: &str, create_revision: i64) -> KeyValue {
        KeyValue { key: key.into(), create_revision, lease: 1, ..KeyValue::default() }
    }

    fn keys(name: &str) -> Keys {
        Keys::new("", &Name::new(name).unwrap())
    }

    #[test]
    fn the_layout_is_that_of_etcdctl_lock() {
        assert_eq!(keys("job").of(0x1f), b"job/1f");
        assert_eq!(keys("job").range(), (b"job/".to_vec(), b"job0".to_vec()));
        assert_eq!(range(b""), (vec![0], vec![0]));
        assert_eq!(range(&[1, 255]), (vec![1, 255], vec![2]));
    }

    #[test]
    fn a_name_below_another_is_no_contender_for_it() {
        let found = [kv("a/b/1f", 1), kv("a/2", 3), kv("a/xyz", 1), kv("a/", 1), kv("a/1", 2)].to_vec();
        let contenders: Vec<_> = keys("a").contenders(found).into_iter().map(|kv| kv.key).collect();
        assert_eq!(contenders, [b"a/1", b"a/2"]);
    }

    #[test]
    fn other_keys_of_the_cluster_are_no_locks() {
        assert_eq!(name("", &kv("/registry/pods/web", 1)), None);
        assert_eq!(name("", &KeyValue { lease: 0, ..kv("a/1f", 1) }), None);
        assert_eq!(name("p:", &kv("p:a/b/1f", 1)).unwrap().as_str(), "a/b");
        assert_eq!(name("p:", &kv("a/1f", 1)), None);
    }

    proptest! {
        #[test]
        fn a_key_leads_back_to_its_name(text in "[a-c0-9/]{1,8}", lease in 1i64..) {
            let key = String::from_utf8(keys(&text).of(lease)).unwrap();
            let found = name("", &kv(&key, 1)).unwrap();
            prop_assert_eq!(found.as_str(), text);
        }

        #[test]
        fn two_names_never_share_a_contender(a in "[a-c0-9/]{1,6}", b in "[a-c0-9/]{1,6}", lease in 1i64..) {
            let key = String::from_utf8(keys(&a).of(lease)).unwrap();
            prop_assert_eq!(keys(&b).contenders(vec![kv(&key, 1)]).len() == 1, a == b);
        }
    }
}
