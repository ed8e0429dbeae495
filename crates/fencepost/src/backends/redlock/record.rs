//! What the key of a revoked lock holds: `!VALUE`, a new line, the operator's reason, a new line, the
//! identity of the revocation, and the holder's token if it is known, because the counter is the revocation's
//! then. The identity makes it unlike any other value, so that it can be confirmed like a lock of its own.
//! Other keys hold what they hold on one Redis, without a token.

use crate::backends::redis::record;
use crate::{FencingToken, Holder, Loss, Name, Owner};

/// Where the channel of a queue's entry ends.
const CHANNEL: usize = 16;

/// The value of a revoked key.
pub(super) fn revoked(victim: &str, reason: &str, revocation: Owner, token: Option<FencingToken>) -> String {
    let token = token.map(|token| format!(" {token}")).unwrap_or_default();
    format!("!{victim}\n{reason}\n{revocation}{token}")
}

/// The token of the holder of a revoked lock.
pub(super) fn token(value: &str) -> Option<u64> {
    record::Record::parse(value)?.revoked?.rsplit_once('\n')?.1.split_once(' ')?.1.parse().ok()
}

/// The value that a key had before it was revoked, if it was.
pub(super) fn victim(value: &str) -> &str {
    value.strip_prefix('!').and_then(|rest| rest.split_once('\n')).map_or(value, |(victim, _)| victim)
}

/// Whose lock was revoked, and why.
pub(super) fn revocation(value: &str) -> Option<(Owner, &str)> {
    let record = record::Record::parse(value)?;
    Some((record.owner, reason(record.revoked?)))
}

fn reason(revoked: &str) -> &str {
    revoked.rsplit_once('\n').map_or(revoked, |(reason, _)| reason)
}

/// Why a lock is not its owner's any more, by what was found in its place.
pub(super) fn loss(found: &str, owner: Owner) -> Loss {
    match revocation(found) {
        Some((revoked, reason)) if revoked == owner => Loss::ForceReleased { reason: reason.to_owned() },
        _ => Loss::Taken,
    }
}

/// The entry of a waiter in the queues: `CHANNEL WAITER JSON`. Earlier versions wrote no JSON.
pub(super) fn queue_entry(channel: &str, waiter: Owner, note: &str) -> String {
    format!("{channel} {waiter} {}", record::about(note))
}

/// The waiter of an entry, and where it listens; `None` for what is no entry of ours.
pub(super) fn waiter<'a>(name: &Name, entry: &'a str) -> Option<(&'a str, Holder)> {
    let (channel, rest) = entry.split_at_checked(CHANNEL)?;
    let mut words = rest.strip_prefix(' ')?.splitn(2, ' ');
    let (waiter, about) = (words.next()?, words.next().unwrap_or_default());
    let mut holder = record::holder(name, &format!("{waiter} {channel} {about}"), -1);
    holder.owner = Some(waiter.parse().ok()?);
    Some((channel, holder))
}

/// Whose lock a key is by its value. The counter is the holder's token until a revocation takes the next one.
pub(super) fn holder(name: &Name, value: &str, ttl: i64, counter: Option<u64>) -> Holder {
    let mut holder = record::holder(name, value, ttl);
    let counter = counter.filter(|_| holder.owner.is_some() && holder.revoked.is_none());
    holder.revoked = holder.revoked.as_deref().map(reason).map(str::to_owned);
    holder.token = counter.or_else(|| token(value)).and_then(FencingToken::new);
    holder
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_revoked_value_says_whose_it_was_and_why() {
        let (victim, by) = (Owner::fresh(), Owner::fresh());
        let seen = record::entry(victim, "0123456789abcdef", "note");
        let token = FencingToken::new(42);
        let once = revoked(&seen, "stuck\nsince noon", by, token);
        assert_eq!(revocation(&once), Some((victim, "stuck\nsince noon")));
        let name = Name::new("x").unwrap();
        let shown = holder(&name, &once, 5, Some(77));
        assert_eq!((shown.revoked.as_deref(), shown.token), (Some("stuck\nsince noon"), token));
        assert_eq!(holder(&name, &revoked(&seen, "1 2", by, None), 5, Some(77)).token, None);
        assert_eq!((super::victim(&once), super::victim(&seen)), (seen.as_str(), seen.as_str()));
        assert_eq!(revocation(&seen), None);
        assert!(revoked("foreign", "gone", by, None).starts_with("!foreign\ngone\n"));
    }

    #[test]
    fn an_entry_tells_who_waits_and_one_of_an_earlier_version_only_its_owner() {
        let (name, owner) = (Name::new("x").unwrap(), Owner::fresh());
        let channel = "0123456789abcdef";
        let earlier = format!("{channel} {owner}");
        let (listens, holder) = waiter(&name, &earlier).unwrap();
        assert_eq!((listens, holder.owner, holder.host), (channel, Some(owner), None));
        for odd in ["", "0123456789abcdef", "0123456789abcdef ", "0123456789abcdef x {}"] {
            assert_eq!(waiter(&name, odd), None, "{odd}");
        }
    }

    proptest! {
        #[test]
        fn an_entry_with_any_note_reads_back(note: String) {
            let (name, owner) = (Name::new("x").unwrap(), Owner::fresh());
            let text = queue_entry("0123456789abcdef", owner, &note);
            let (channel, holder) = waiter(&name, &text).unwrap();
            prop_assert_eq!((channel, holder.owner), ("0123456789abcdef", Some(owner)));
            prop_assert_eq!((holder.pid, holder.note.unwrap_or_default()), (Some(std::process::id()), note));
            prop_assert!(holder.since.is_some() && holder.host.is_some());
        }

        #[test]
        fn no_entry_makes_it_panic(text in "(0123456789abcdef)? ?.{0,60}") {
            let _ = waiter(&Name::new("x").unwrap(), &text);
        }

        #[test]
        fn no_value_makes_it_panic(
            text in "!?.{0,60}\n?.{0,20}\n?.{0,40}",
            ttl: i64,
            counter in any::<Option<u64>>(),
        ) {
            let _ = (revocation(&text), holder(&Name::new("x").unwrap(), &text, ttl, counter));
            prop_assert!(text.contains(super::victim(&text)));
        }

        #[test]
        fn any_reason_reads_back(reason in any::<String>(), number in any::<u64>()) {
            let (victim, by) = (Owner::fresh(), Owner::fresh());
            let seen = record::entry(victim, "0123456789abcdef", "note");
            let token = FencingToken::new(number);
            let text = revoked(&seen, &reason, by, token);
            prop_assert_eq!(revocation(&text), Some((victim, reason.as_str())));
            prop_assert_eq!(super::token(&text), token.map(FencingToken::get));
        }
    }
}
