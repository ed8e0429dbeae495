//! What a revoked lock's key holds: `!VALUE`, a new line, the operator's reason, a new line, the identity of the
//! revocation, and the holder's token, if it is known: the counter is the revocation's by now. The identity makes it
//! unlike any other value, so that it can be confirmed like a lock of its own.

use crate::backends::redis::record;
use crate::{FencingToken, Holder, Name, Owner};

/// The value of a revoked key.
pub(super) fn value(victim: &str, reason: &str, revocation: Owner, token: Option<FencingToken>) -> String {
    let token = token.map(|token| format!(" {token}")).unwrap_or_default();
    format!("!{victim}\n{reason}\n{revocation}{token}")
}

/// The token that the holder of a revoked lock has.
pub(super) fn token(value: &str) -> Option<u64> {
    record::Record::parse(value)?.revoked?.rsplit_once('\n')?.1.split_once(' ')?.1.parse().ok()
}

/// The value that a key had before it was revoked, if it was.
pub(super) fn victim(value: &str) -> &str {
    value.strip_prefix('!').and_then(|rest| rest.split_once('\n')).map_or(value, |(victim, _)| victim)
}

/// Whose lock was revoked, and why.
pub(super) fn read(value: &str) -> Option<(Owner, &str)> {
    let record = record::Record::parse(value)?;
    Some((record.owner, reason(record.revoked?)))
}

fn reason(behind: &str) -> &str {
    behind.rsplit_once('\n').map_or(behind, |(reason, _)| reason)
}

/// Who a value says holds the lock.
pub(super) fn holder(name: &Name, value: &str, ttl: i64, counter: Option<u64>) -> Holder {
    let mut holder = record::holder(name, value, ttl);
    // The counter stands at the holder's token until a force-release takes the next one.
    holder.token =
        counter.filter(|_| holder.owner.is_some() && holder.revoked.is_none()).and_then(FencingToken::new);
    holder.revoked = holder.revoked.as_deref().map(reason).map(str::to_owned);
    holder.token = holder.token.or_else(|| token(value).and_then(FencingToken::new));
    holder
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_revoked_value_says_whose_it_was_and_why() {
        let (victim, revocation) = (Owner::fresh(), Owner::fresh());
        let seen = record::entry(victim, "0123456789abcdef", "note");
        let token = FencingToken::new(42);
        let once = value(&seen, "stuck\nsince noon", revocation, token);
        assert_eq!(read(&once), Some((victim, "stuck\nsince noon")));
        let name = Name::new("x").unwrap();
        let shown = holder(&name, &once, 5, Some(77));
        assert_eq!((shown.revoked.as_deref(), shown.token), (Some("stuck\nsince noon"), token));
        assert_eq!(holder(&name, &value(&seen, "1 2", revocation, None), 5, Some(77)).token, None);
        assert_eq!((super::victim(&once), super::victim(&seen)), (seen.as_str(), seen.as_str()));
        assert_eq!(read(&seen), None);
        assert!(value("foreign", "gone", revocation, None).starts_with("!foreign\ngone\n"));
    }

    proptest! {
        #[test]
        fn no_value_makes_it_panic(text in "!?.{0,60}\n?.{0,20}\n?.{0,40}", ttl: i64, counter in any::<Option<u64>>()) {
            let _ = (read(&text), holder(&Name::new("x").unwrap(), &text, ttl, counter));
            prop_assert!(text.contains(super::victim(&text)));
        }

        #[test]
        fn any_reason_reads_back(reason in any::<String>(), number in any::<u64>()) {
            let (victim, revocation) = (Owner::fresh(), Owner::fresh());
            let seen = record::entry(victim, "0123456789abcdef", "note");
            let token = FencingToken::new(number);
            let revoked = value(&seen, &reason, revocation, token);
            prop_assert_eq!(read(&revoked), Some((victim, reason.as_str())));
            prop_assert_eq!(super::token(&revoked), token.map(FencingToken::get));
        }
    }
}
