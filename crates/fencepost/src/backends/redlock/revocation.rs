//! What a revoked lock's key holds: `!VALUE`, a new line, the operator's reason, a new line, and the identity of the
//! revocation. That makes it unlike any other value, so that it can be confirmed like a lock of its own.

use crate::backends::redis::record;
use crate::{Holder, Name, Owner};

/// The value of a revoked key.
pub(super) fn value(victim: &str, reason: &str, revocation: Owner) -> String {
    format!("!{victim}\n{reason}\n{revocation}")
}

/// The value that a key had before it was revoked, if it was.
pub(super) fn victim(value: &str) -> &str {
    value.strip_prefix('!').and_then(|rest| rest.split_once('\n')).map_or(value, |(victim, _)| victim)
}

/// Whose lock was revoked, and why.
pub(super) fn read(value: &str) -> Option<(Owner, &str)> {
    Some((record::identity(value)?, reason(record::revoked(value)?)))
}

fn reason(behind: &str) -> &str {
    behind.rsplit_once('\n').map_or(behind, |(reason, _)| reason)
}

/// Who a value says holds the lock.
pub(super) fn holder(name: &Name, value: &str, ttl: i64, counter: Option<u64>) -> Holder {
    let counter = counter.filter(|counter| *counter > 0).and_then(|counter| i64::try_from(counter).ok());
    let mut holder = record::holder(name, value, ttl, counter);
    holder.revoked = holder.revoked.as_deref().map(reason).map(str::to_owned);
    holder
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_revoked_value_says_whose_it_was_and_why() {
        let (victim, revocation) = (Owner::fresh(), Owner::fresh());
        let seen = record::value(victim, "0123456789abcdef", "note");
        let once = value(&seen, "stuck\nsince noon", revocation);
        assert_eq!(read(&once), Some((victim, "stuck\nsince noon")));
        let name = Name::new("x").unwrap();
        assert_eq!(holder(&name, &once, 5, Some(7)).revoked.as_deref(), Some("stuck\nsince noon"));
        assert_eq!((super::victim(&once), super::victim(&seen)), (seen.as_str(), seen.as_str()));
        assert_eq!(read(&seen), None);
        assert!(value("foreign", "gone", revocation).starts_with("!foreign\ngone\n"));
    }

    proptest! {
        #[test]
        fn no_value_makes_it_panic(text in "!?.{0,60}\n?.{0,20}\n?.{0,40}", ttl: i64, counter in any::<Option<u64>>()) {
            let _ = (read(&text), holder(&Name::new("x").unwrap(), &text, ttl, counter));
            prop_assert!(text.contains(super::victim(&text)));
        }

        #[test]
        fn any_reason_reads_back(reason in any::<String>()) {
            let (victim, revocation) = (Owner::fresh(), Owner::fresh());
            let seen = record::value(victim, "0123456789abcdef", "note");
            let revoked = value(&seen, &reason, revocation);
            prop_assert_eq!(read(&revoked), Some((victim, reason.as_str())));
        }
    }
}
