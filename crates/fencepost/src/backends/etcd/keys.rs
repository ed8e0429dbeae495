//! Where locks live: `PREFIX NAME/LEASE`, the lease in hexadecimal, as `etcdctl lock` and the mutex of etcd's
//! own client have it. Every contender for a name has such a key, and the one that was created first holds
//! the lock.
//!
//! A key counts for a name only if all that follows `NAME/` is hexadecimal: `a/b/1f` is a contender for `a/b`
//! and not for `a`. The peers do not look that closely, and wait for it.

use super::driver::proto::{KeyValue, Operation};
use crate::Name;

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

/// The name that a key is a contender for, if it is one. Only keys with a lease are taken for contenders
/// here: under an empty prefix lies whatever else the cluster is used for.
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
