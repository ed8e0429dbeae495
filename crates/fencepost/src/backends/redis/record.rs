//! What a lock's key holds: `ENTRY TOKEN`, where an entry is `IDENTITY CHANNEL JSON`. It is a plain string:
//! other lock clients of the same key exclude us, and we them. A lock whose holder was asked to let go has
//! `!` in front, and a new line with the operator's reason at the end. Redlock's have no token.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::{FencingToken, Holder, Name, Owner};

/// Where the channel begins and ends; the scripts cut it out at the same place.
const CHANNEL: std::ops::Range<usize> = 37..53;

#[derive(Serialize, Deserialize)]
struct About<'a> {
    #[serde(borrow)]
    host: Cow<'a, str>,
    pid: u32,
    since: u64,
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    note: Cow<'a, str>,
}

/// The entry of one attempt: its place in the queue, and all but the token of what the lock's key holds.
pub(in crate::backends) fn entry(owner: Owner, channel: &str, note: &str) -> String {
    debug_assert_eq!(channel.len(), CHANNEL.len());
    format!("{owner} {channel} {}", about(note))
}

/// What an entry says about this process, as JSON.
pub(in crate::backends) fn about(note: &str) -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let about = About {
        host: crate::identity::host().into(),
        pid: std::process::id(),
        since: u64::try_from(since.as_millis()).unwrap_or(0),
        note: note.into(),
    };
    serde_json::to_string(&about).unwrap_or_default()
}

/// Where the waiter of an entry listens; nothing for what is no entry of ours.
pub(in crate::backends) fn channel(entry: &str) -> &str {
    entry.get(CHANNEL).unwrap_or_default()
}

/// A value that we, or others of our kind, have written.
pub(in crate::backends) struct Record<'a> {
    pub(in crate::backends) owner: Owner,
    pub(in crate::backends) token: Option<FencingToken>,
    /// Why the holder was asked to let go, if it was.
    pub(in crate::backends) revoked: Option<&'a str>,
    about: About<'a>,
}

impl<'a> Record<'a> {
    /// `None` for what a foreign client has written.
    pub(in crate::backends) fn parse(value: &'a str) -> Option<Self> {
        let (value, revoked) = match value.strip_prefix('!').and_then(|rest| rest.split_once('\n')) {
            Some((value, reason)) => (value, Some(reason)),
            None => (value, None),
        };
        let owner = value.get(..CHANNEL.start - 1)?.parse().ok()?;
        value.get(CHANNEL)?;
        let rest = value.get(CHANNEL.end + 1..)?;
        let (about, token) = rest.split_at(rest.rfind('}')? + 1);
        let token = match token.strip_prefix(' ') {
            Some(token) => Some(token.parse().ok().and_then(FencingToken::new)?),
            None if token.is_empty() => None,
            None => return None,
        };
        Some(Self { owner, token, revoked, about: serde_json::from_str(about).ok()? })
    }

    fn holder(self, name: &Name) -> Holder {
        let mut holder = Holder::unknown(name.clone());
        holder.owner = Some(self.owner);
        holder.token = self.token;
        holder.host = Some(self.about.host.into_owned());
        holder.pid = Some(self.about.pid);
        holder.note = Some(self.about.note.into_owned()).filter(|note| !note.is_empty());
        holder.since = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(self.about.since));
        holder.revoked = self.revoked.map(str::to_owned);
        holder
    }
}

/// Who a value says holds the lock, for so many milliseconds more. Negative: for ever.
pub(in crate::backends) fn holder(name: &Name, value: &str, ttl: i64) -> Holder {
    let mut holder =
        Record::parse(value).map_or_else(|| Holder::unknown(name.clone()), |record| record.holder(name));
    holder.expires_in = u64::try_from(ttl).ok().map(Duration::from_millis);
    holder
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLACE: &str = "0123456789abcdef";

    fn name() -> Name {
        Name::new("x").unwrap()
    }

    #[test]
    fn a_value_tells_others_who_holds_it() {
        let owner = Owner::fresh();
        let entry = entry(owner, PLACE, "nightly \"run\" }\n");
        assert_eq!(&entry[CHANNEL], PLACE);
        let holder = holder(&name(), &format!("{entry} 42"), 1500);
        assert_eq!(holder.owner, Some(owner));
        assert_eq!(holder.pid, Some(std::process::id()));
        assert_eq!(holder.note.as_deref(), Some("nightly \"run\" }\n"));
        assert_eq!(holder.token.map(FencingToken::get), Some(42));
        assert_eq!(holder.expires_in, Some(Duration::from_millis(1500)));
        assert!(!entry.contains('\n'), "the reason of a revocation starts at the first new line");
    }

    #[test]
    fn what_a_newer_version_adds_is_passed_over() {
        let entry = entry(Owner::fresh(), PLACE, "nightly");
        let newer = entry.replace("{", "{\"zone\":{\"rack\":7},");
        let holder = holder(&name(), &format!("{newer} 42"), 1);
        assert_eq!((holder.pid, holder.note.as_deref()), (Some(std::process::id()), Some("nightly")));
        assert_eq!(holder.token.map(FencingToken::get), Some(42));
    }

    #[test]
    fn a_revoked_value_keeps_its_owner_and_its_token_and_has_a_reason() {
        let owner = Owner::fresh();
        let value = format!("!{} 42\nstuck\nsince noon", entry(owner, PLACE, ""));
        let record = Record::parse(&value).unwrap();
        assert_eq!((record.owner, record.token.map(FencingToken::get)), (owner, Some(42)));
        assert_eq!(record.revoked, Some("stuck\nsince noon"));
    }

    proptest! {
        #[test]
        fn a_foreign_value_is_a_holder_of_whom_nothing_is_known(value in ".{0,80}") {
            let holder = holder(&name(), &value, -1);
            prop_assert_eq!((holder.owner, holder.expires_in), (None, None));
        }

        #[test]
        fn a_value_with_any_note_reads_back(
            note in any::<String>(),
            reason in any::<String>(),
            token in proptest::option::of(1u64..1 << 53),
        ) {
            let owner = Owner::fresh();
            let end = token.map(|token| format!(" {token}")).unwrap_or_default();
            let text = format!("{}{end}", entry(owner, PLACE, &note));
            let shown = holder(&name(), &text, 1);
            prop_assert_eq!((shown.owner, shown.note.unwrap_or_default()), (Some(owner), note));
            prop_assert_eq!(shown.token.map(FencingToken::get), token);
            let text = format!("!{text}\n{reason}");
            let record = Record::parse(&text).unwrap();
            prop_assert_eq!((record.owner, record.revoked), (owner, Some(reason.as_str())));
        }

        #[test]
        fn a_value_that_was_changed_does_not_make_it_panic(at in 0usize..120, by in any::<char>()) {
            let value = format!("{} 42", entry(Owner::fresh(), PLACE, "note"));
            let mut text: Vec<char> = value.chars().collect();
            let place = at % text.len();
            text[place] = by;
            let text: String = text.into_iter().collect();
            let _ = holder(&name(), &text, 1);
        }
    }
}
