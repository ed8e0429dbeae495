//! The keys of one lock. The lock itself is `PREFIXlock:NAME`, where other clients look for it, or with
//! `keys=plain` the bare `PREFIXNAME`, for names that other clients have chosen. `start` is what comes before
//! the name.
//!
//! Two more keys lie beside it, in the same slot of a Redis Cluster. Their hash tag is the whole lock key, or
//! the lock key's own hash tag if it has one.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::driver::resp::Value;
use crate::{Error, Name, Result};

/// The key of a lock and two beside it.
#[derive(Clone, Debug)]
pub(in crate::backends) struct KeySet([Box<str>; 3]);

impl KeySet {
    /// The lock `name` and two keys beside it, which end in these words. The name must be a [checked](check)
    /// one.
    pub(in crate::backends) fn new(start: &str, name: &str, [second, third]: [&str; 2]) -> Self {
        let lock = [start, name].concat();
        let (second, third) = (beside(&lock, second), beside(&lock, third));
        Self([lock.into(), second.into(), third.into()])
    }

    /// What is in front of the last two, in braces: it alone decides about the slot of all three.
    pub(super) fn tag(&self) -> &str {
        let [_, beside, _] = self.each();
        beside.find('}').map_or("", |end| &beside[..=end])
    }

    pub(in crate::backends) fn each(&self) -> [&str; 3] {
        self.0.each_ref().map(|key| &**key)
    }
}

/// The keys of a lock of this store: lock, fence, queue.
pub(super) fn of(start: &str, name: &Name) -> Result<KeySet> {
    check(start, name)?;
    Ok(KeySet::new(start, name.as_str(), ["fence", "waiting"]))
}

/// A key for something else about a lock, by its lock key.
fn beside(lock: &str, what: &str) -> String {
    match hash_tag(lock) {
        None => ["{", lock, "}:", what].concat(),
        Some(tag) => ["{", tag, "}:", &escaped(lock), ":", what].concat(),
    }
}

/// A key about something that is no lock, whatever its name.
pub(crate) fn about(what: &str, of: &str) -> String {
    ["{", &escaped(of), "}:", what].concat()
}

/// The part of a key that alone decides about its slot, if it has one.
pub(super) fn hash_tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(['{', '}', '%']) {
        return text.into();
    }
    text.replace('%', "%25").replace('{', "%7B").replace('}', "%7D").into()
}

/// Refuses a name whose keys could not share a slot, or whose key is kept about another lock. The latter
/// exist only with `keys=plain`.
pub(in crate::backends) fn check(start: &str, name: &Name) -> Result<()> {
    let key = format!("{start}{name}");
    if key.contains('}') && hash_tag(&key).is_none() {
        return Err(Error::invalid(format!(
            "lock `{name}`: braces in a name must form a hash tag, as in `a{{b}}c`"
        )));
    }
    if is_ours(start, &key) {
        return Err(Error::invalid(format!(
            "lock `{name}` would be a key that is kept about another lock; choose a name that does not start \
             with a brace"
        )));
    }
    Ok(())
}

/// Whether a key is not a lock but is kept about one, about a fenced resource, a Redlock node or a master.
fn is_ours(start: &str, key: &str) -> bool {
    let Some((tag, rest)) = key.strip_prefix('{').and_then(|rest| rest.split_once("}:")) else {
        return false;
    };
    // The lock key is the tag, or follows it, escaped. Earlier versions escaped it in the tag, too.
    let (about, what) = match rest.rsplit_once(':') {
        Some((about, what)) if about.contains("%7B") => (about, what),
        _ => (tag, rest),
    };
    let Some(about) = about.strip_prefix(start).or_else(|| about.strip_prefix(&*escaped(start))) else {
        return false;
    };
    match what {
        "queue" | "waiting" | "waiters" | "fence" => true,
        "token" | "value" => about.starts_with("fence:"),
        "node" | "reign" => about == "fencepost",
        _ => what.starts_with("fence:"),
    }
}

/// Takes the names of locks out of a reply to SCAN. Returns the next cursor; `None` if it is no such reply.
pub(in crate::backends) fn names(
    page: Option<&Value>,
    start: &str,
    names: &mut BTreeSet<Name>,
) -> Option<String> {
    let [next, keys] = page?.as_list()? else { return None };
    for key in keys.as_list().unwrap_or_default() {
        let key = key.as_text().filter(|key| !is_ours(start, key));
        names.extend(key.and_then(|key| Name::new(key.get(start.len()..)?).ok()));
    }
    next.as_text().map(str::to_owned)
}

/// A pattern for SCAN that matches exactly the locks whose name starts with `prefix`.
pub(in crate::backends) fn pattern(start: &str, prefix: &str) -> String {
    let mut pattern = String::new();
    for character in format!("{start}{prefix}").chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '^' | '-' | '\\') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern.push('*');
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys(start: &str, name: &str) -> Option<[String; 3]> {
        let keys = of(start, &Name::new(name).unwrap()).ok()?;
        Some(keys.each().map(str::to_owned))
    }

    /// What a node of a cluster hashes.
    fn hashed(key: &str) -> &str {
        hash_tag(key).unwrap_or(key)
    }

    #[test]
    fn the_lock_key_is_where_others_look_for_it() {
        let [lock, fence, queue] = keys("lock:", "order:42").unwrap();
        assert_eq!(lock, "lock:order:42");
        assert_eq!(fence, "{lock:order:42}:fence");
        assert_eq!(queue, "{lock:order:42}:waiting");
        assert_eq!(pattern("lock:", "a*"), "lock:a\\**");
    }

    #[test]
    fn braces_form_a_hash_tag_or_are_refused() {
        let [lock, _, queue] = keys("lock:", "a{user:7}%").unwrap();
        assert_eq!(
            (lock.as_str(), queue.as_str()),
            ("lock:a{user:7}%", "{user:7}:lock:a%7Buser:7%7D%25:waiting")
        );
        assert_eq!(keys("lock:", "{a").unwrap()[1], "{lock:{a}:fence");
        for odd in ["a}b", "{}a", "}{"] {
            let error = check("lock:", &Name::new(odd).unwrap()).unwrap_err().to_string();
            assert!(error.contains(odd) && error.contains("hash tag"), "{error}");
        }
    }

    #[test]
    fn a_key_that_is_kept_about_a_lock_is_no_lock() {
        for key in ["x", "{x}:cart", "{user}:token", "x:queue", "{x:queue", "{x}:y:fence"] {
            assert!(!is_ours("", key), "{key}");
            assert!(check("", &Name::new(key).unwrap()).is_ok(), "{key}");
        }
        let [_, fence, queue] = keys("", "x").unwrap();
        let [_, tagged, _] = keys("", "a{x}").unwrap();
        for key in [
            &*fence,
            &queue,
            &tagged,
            "{x}:queue",
            "{x}:waiters",
            "{x}:fence:0123456789ab",
            "{fence:cart}:token",
            "{fencepost}:node",
            "{fencepost}:reign",
        ] {
            assert!(is_ours("", key), "{key}");
            assert!(check("", &Name::new(key).unwrap()).is_err(), "{key}");
            assert!(check("lock:", &Name::new(key).unwrap()).is_ok(), "{key}");
        }
    }

    proptest! {
        #[test]
        fn the_keys_of_a_lock_share_a_slot(name in "[a-c{}%2-7BD:]{1,8}") {
            if let Some(keys) = keys("lock:", &name) {
                prop_assert_eq!(hashed(&keys[0]), hashed(&keys[1]));
                prop_assert_eq!(hashed(&keys[0]), hashed(&keys[2]));
            }
        }

        #[test]
        fn two_names_never_share_a_key(a in "[a-c{}%2-7BD:]{1,8}", b in "[a-c{}%2-7BD:]{1,8}") {
            if let (Some(left), Some(right)) = (keys("", &a), keys("", &b)) {
                let shared = left.iter().any(|key| right.contains(key));
                prop_assert_eq!(shared, a == b, "{:?} {:?}", left, right);
            }
        }
    }
}
