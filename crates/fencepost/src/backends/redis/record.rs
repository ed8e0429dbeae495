//! What a lock's key holds: `IDENTITY CHANNEL JSON`, a plain string so that other lock clients of the same key exclude
//! us and we them. The identity is the owner, or that of a row, with the owner in the rest. A revoked lock has `!` in front
//! and a new line with the operator's reason behind.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::{FencingToken, Holder, Name, Owner};

/// Where the channel begins and ends; the scripts cut it out at the same place.
const CHANNEL: std::ops::Range<usize> = 37..53;

#[derive(Serialize, Deserialize)]
struct About<'a> {
    #[serde(borrow)]
    host: std::borrow::Cow<'a, str>,
    pid: u32,
    since: u64,
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    note: std::borrow::Cow<'a, str>,
    /// Who of a row has it.
    #[serde(default, skip_serializing)]
    owner: Option<Owner>,
    /// Of a row, whose tokens are taken in advance. Of others it is where the counter stands.
    #[serde(default, skip_serializing)]
    token: Option<u64>,
}

/// The value of a key that we hold.
pub(in crate::backends) fn value(owner: Owner, channel: &str, note: &str) -> String {
    debug_assert_eq!(channel.len(), CHANNEL.len());
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let about = About {
        host: crate::identity::host().into(),
        pid: std::process::id(),
        since: u64::try_from(since.as_millis()).unwrap_or(0),
        note: note.into(),
        owner: None,
        token: None,
    };
    let about = serde_json::to_string(&about).unwrap_or_default();
    format!("{owner} {channel} {about}")
}

/// The value of a key while a row has the lock, and in it the one with this value. The token is still missing.
pub(super) fn in_row(row: Owner, owner: Owner, value: &str) -> String {
    let rest = value.get(CHANNEL.start - 1..).unwrap_or_default();
    format!("{row}{},\"owner\":\"{owner}\"}}", open(rest))
}

/// A value with its token.
pub(super) fn with_token(value: &str, token: i64) -> String {
    format!("{},\"token\":{token}}}", open(value))
}

/// A value without its last brace.
fn open(value: &str) -> &str {
    value.strip_suffix('}').unwrap_or(value)
}

/// Who a value says holds the lock. Anything that we did not write is a foreign client's.
pub(in crate::backends) fn holder(name: &Name, value: &str, ttl: i64, counter: Option<i64>) -> Holder {
    let mut holder = Holder::unknown(name.clone());
    holder.expires_in = u64::try_from(ttl).ok().map(Duration::from_millis);
    let (value, revoked) = unrevoked(value);
    let Some((identity, about)) = parse(value) else { return holder };
    holder.owner = about.owner.or(Some(identity));
    holder.host = Some(about.host.into_owned());
    holder.pid = Some(about.pid);
    holder.note = Some(about.note.into_owned()).filter(|note| !note.is_empty());
    holder.since = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(about.since));
    // The counter stands at the holder's token until a force-release takes the next one.
    let counter = counter.filter(|_| revoked.is_none()).and_then(|counter| u64::try_from(counter).ok());
    holder.token = about.token.or(counter).and_then(FencingToken::new);
    holder.revoked = revoked.map(str::to_owned);
    holder
}

/// What requests for a lock are conditional on, revoked or not: its owner, or its row; `None` for a foreign client's.
pub(in crate::backends) fn identity(value: &str) -> Option<Owner> {
    parse(unrevoked(value).0).map(|(identity, _)| identity)
}

/// The reason, if the value is of a revoked lock.
pub(in crate::backends) fn revoked(value: &str) -> Option<&str> {
    unrevoked(value).1
}

fn unrevoked(value: &str) -> (&str, Option<&str>) {
    match value.strip_prefix('!').and_then(|rest| rest.split_once('\n')) {
        Some((value, reason)) => (value, Some(reason)),
        None => (value, None),
    }
}

fn parse(value: &str) -> Option<(Owner, About<'_>)> {
    let (identity, rest) = value.split_at_checked(CHANNEL.start - 1)?;
    value.get(CHANNEL)?;
    let about = rest.get(CHANNEL.len() + 2..)?;
    Some((identity.parse().ok()?, serde_json::from_str(about).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name() -> Name {
        Name::new("x").unwrap()
    }

    #[test]
    fn a_value_tells_others_who_holds_it() {
        let owner = Owner::fresh();
        let value = value(owner, "0123456789abcdef", "nightly \"run\"\n");
        assert_eq!(&value[CHANNEL], "0123456789abcdef");
        let holder = holder(&name(), &value, 1500, Some(42));
        assert_eq!(holder.owner, Some(owner));
        assert_eq!(holder.pid, Some(std::process::id()));
        assert_eq!(holder.note.as_deref(), Some("nightly \"run\"\n"));
        assert_eq!(holder.token.map(FencingToken::get), Some(42));
        assert_eq!(holder.expires_in, Some(Duration::from_millis(1500)));
        assert!(!value.contains('\n'), "the reason of a revocation starts at the first new line");
    }

    #[test]
    fn a_revoked_value_keeps_its_owner_and_has_a_reason() {
        let owner = Owner::fresh();
        let value = format!("!{}\nstuck\nsince noon", value(owner, "0123456789abcdef", ""));
        assert_eq!(super::identity(&value), Some(owner));
        assert_eq!(revoked(&value), Some("stuck\nsince noon"));
        assert_eq!(holder(&name(), &value, -1, Some(42)).token, None);
    }

    #[test]
    fn a_value_of_a_row_tells_who_of_it_has_the_lock() {
        let (row, owner) = (Owner::fresh(), Owner::fresh());
        let own = value(owner, "0123456789abcdef", "ends in }");
        let value = with_token(&in_row(row, owner, &own), 7);
        assert_eq!((&value[CHANNEL], identity(&value)), ("0123456789abcdef", Some(row)));
        let holder = holder(&name(), &value, 1500, Some(42));
        assert_eq!((holder.owner, holder.note.as_deref()), (Some(owner), Some("ends in }")));
        assert_eq!(holder.token.map(FencingToken::get), Some(7), "the counter is ahead of a row");
    }

    proptest! {
        #[test]
        fn a_foreign_value_is_a_holder_of_whom_nothing_is_known(value in ".{0,80}") {
            let holder = holder(&name(), &value, -1, Some(1));
            prop_assert_eq!(holder.owner, None);
            prop_assert_eq!(holder.expires_in, None);
        }

        #[test]
        fn a_value_with_any_note_reads_back(note in any::<String>(), reason in any::<String>()) {
            let owner = Owner::fresh();
            let text = value(owner, "0123456789abcdef", &note);
            let shown = holder(&name(), &text, 1, Some(1));
            prop_assert_eq!((shown.owner, shown.note.unwrap_or_default()), (Some(owner), note));
            let text = format!("!{text}\n{reason}");
            prop_assert_eq!((super::identity(&text), revoked(&text)), (Some(owner), Some(reason.as_str())));
        }

        #[test]
        fn a_value_that_was_changed_does_not_make_it_panic(at in 0usize..120, by in any::<char>()) {
            let mut text: Vec<char> = value(Owner::fresh(), "0123456789abcdef", "note").chars().collect();
            let place = at % text.len();
            text[place] = by;
            let text: String = text.into_iter().collect();
            let _ = (holder(&name(), &text, 1, Some(1)), super::identity(&text), revoked(&text));
        }
    }
}
