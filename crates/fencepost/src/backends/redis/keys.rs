//! The keys of one lock. The lock itself is `PREFIXlock:NAME`, where other clients look for it, or with `keys=plain` the bare
//! `PREFIXNAME`, for names that other clients have chosen. `start` is what comes before the name. What else we keep
//! about it lies under a hash tag of the same text, with braces escaped so that two names never meet.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::resp::Value;
use crate::{Error, Name, Result};

/// The key of a lock and two texts for keys beside it, in one piece: every held lock has them.
#[derive(Clone, Debug)]
pub(in crate::backends) struct Three {
    text: Box<str>,
    ends: [usize; 2],
}

impl Three {
    /// The lock `name` and two keys beside it.
    pub(in crate::backends) fn new(start: &str, name: &str, [second, third]: [&str; 2]) -> Self {
        let lock = [start, name].concat();
        let (second, third) = (beside(&lock, second), beside(&lock, third));
        let ends = [lock.len(), lock.len() + second.len()];
        Self { text: [lock, second, third].concat().into(), ends }
    }

    pub(in crate::backends) fn each(&self) -> [&str; 3] {
        let [first, second] = self.ends;
        [&self.text[..first], &self.text[first..second], &self.text[second..]]
    }
}

/// The keys of one lock.
#[derive(Clone, Debug)]
pub(in crate::backends) struct Keys(Three);

impl Keys {
    pub(in crate::backends) fn new(start: &str, name: &str) -> Self {
        Self(Three::new(start, name, ["queue", "fence:"]))
    }

    pub(in crate::backends) fn lock(&self) -> &str {
        self.0.each()[0]
    }

    pub(in crate::backends) fn queue(&self) -> &str {
        self.0.each()[1]
    }

    /// The token counter. Each run of the server has its own: a server that comes back with old data must not go
    /// on counting from there, and a counter that is missing starts at the clock.
    pub(in crate::backends) fn fence(&self, run: &str) -> String {
        [self.0.each()[2], run].concat()
    }
}

/// A key for something else about a lock, by its lock key.
pub(crate) fn beside(lock: &str, what: &str) -> String {
    ["{", &tag(lock), "}:", what].concat()
}

fn tag(text: &str) -> Cow<'_, str> {
    if !text.contains(['{', '}', '%']) {
        return text.into();
    }
    text.replace('%', "%25").replace('{', "%7B").replace('}', "%7D").into()
}

/// Refuses a name whose key is one of those that we keep about another lock. Only with `keys=plain` is there such a name.
pub(in crate::backends) fn check(start: &str, name: &Name) -> Result<()> {
    match is_ours(start, &format!("{start}{name}")) {
        true => Err(Error::invalid(format!(
            "lock `{name}` would be a key that is kept about another lock; choose a name that does not start with a brace"
        ))),
        false => Ok(()),
    }
}

/// Whether a key is no lock but something that we keep about one, about a fenced resource or about a Redlock node.
fn is_ours(start: &str, key: &str) -> bool {
    let Some((tagged, what)) = key.strip_prefix('{').and_then(|rest| rest.split_once("}:")) else {
        return false;
    };
    let Some(about) = tagged.strip_prefix(&*tag(start)) else { return false };
    match what {
        "queue" | "waiters" | "fence" => true,
        "token" | "value" => about.starts_with("fence:"),
        "node" => about == "fencepost",
        _ => what.starts_with("fence:"),
    }
}

/// Takes the names of locks out of an answer to SCAN. Returns the next cursor; `None` if it is no such answer.
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

    #[test]
    fn the_lock_key_is_where_others_look_for_it() {
        let keys = Keys::new("lock:", "order:42");
        assert_eq!(keys.lock(), "lock:order:42");
        assert_eq!(keys.queue(), "{lock:order:42}:queue");
        assert_eq!(keys.fence("ab"), "{lock:order:42}:fence:ab");
        assert_eq!(Keys::new("app:lock:", "a}b").queue(), "{app:lock:a%7Db}:queue");
        assert_eq!(pattern("lock:", "a*"), "lock:a\\**");
    }

    #[test]
    fn a_key_that_is_kept_about_a_lock_is_no_lock() {
        let keys = Keys::new("", "x");
        for key in [keys.lock(), "{x}:cart", "{user}:token", "x:queue", "{x:queue"] {
            assert!(!is_ours("", key), "{key}");
            assert!(check("", &Name::new(key).unwrap()).is_ok(), "{key}");
        }
        let fence = keys.fence("ab");
        for key in
            [keys.queue(), &fence, "{x}:waiters", "{x}:fence", "{fence:cart}:token", "{fencepost}:node"]
        {
            assert!(is_ours("", key), "{key}");
            assert!(check("", &Name::new(key).unwrap()).is_err(), "{key}");
            assert!(check("lock:", &Name::new(key).unwrap()).is_ok(), "{key}");
        }
    }

    proptest! {
        #[test]
        fn two_names_never_share_a_key(a in "[a-c{}%2-7BD]{1,8}", b in "[a-c{}%2-7BD]{1,8}") {
            let (left, right) = (Keys::new("", &a), Keys::new("", &b));
            prop_assert_eq!(left.queue() == right.queue(), a == b);
            prop_assert_eq!(left.fence("r") == right.fence("r"), a == b);
        }
    }
}
