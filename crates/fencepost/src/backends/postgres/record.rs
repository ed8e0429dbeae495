//! What the server says about a holder, in rows and in notifications.

use std::time::{Duration, SystemTime};

use tokio_postgres::Row;

use super::driver::get;
use crate::{FencingToken, Holder, Loss, Name, Owner};

/// The holder in columns 2 to 10 of what `acquire` returns. Whoever may write to the table may have written
/// anything: what makes no sense is left out.
pub(super) fn holder(name: &Name, row: &Row) -> Holder {
    let mut holder = Holder::unknown(name.clone());
    let number = |column| get::<i64>(row, column).and_then(|number| u64::try_from(number).ok());
    holder.note = get::<String>(row, 7).filter(|note| !note.is_empty());
    holder.owner = get::<&str>(row, 3).and_then(|owner| owner.parse().ok());
    if holder.owner.is_none() {
        return holder;
    }
    holder.revoked = get(row, 10);
    holder.token = number(4).and_then(FencingToken::new);
    holder.host = get(row, 5);
    holder.pid = get(row, 6).and_then(|pid: i32| u32::try_from(pid).ok());
    holder.since = time(row, 8);
    holder.expires_in = number(9).map(Duration::from_millis);
    holder
}

/// A waiter in the same columns. Of a session that waits for the advisory lock there is a note, and since
/// when.
pub(super) fn waiter(name: &Name, row: &Row) -> Holder {
    Holder { since: time(row, 8), ..holder(name, row) }
}

fn time(row: &Row, column: usize) -> Option<SystemTime> {
    let since = get::<i64>(row, column).and_then(|number| u64::try_from(number).ok())?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(since))
}

/// A token, as a `bigint`.
pub(super) fn token(number: i64) -> Option<FencingToken> {
    u64::try_from(number).ok().and_then(FencingToken::new)
}

/// A token as a `bigint`: it is below 2^53.
pub(super) fn number(token: FencingToken) -> i64 {
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}

/// How a lock was lost, in the words of the SQL functions.
pub(super) fn loss(found: Option<&str>, reason: Option<&str>) -> Loss {
    match found {
        Some("unlocked") => Loss::SessionEnded,
        Some("revoked") => Loss::ForceReleased { reason: reason.unwrap_or_default().to_owned() },
        Some("ended") => Loss::Expired,
        _ => Loss::Taken,
    }
}

/// What the server tells a client unasked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notification {
    /// The lock that a waiter is listed for may be free.
    Free,
    /// A release has granted it to the waiter.
    Granted(PushedGrant),
    /// An operator wants a lock back. `taken`: it has gone to somebody else already.
    Revoked { owner: Owner, reason: String, taken: bool },
}

/// A grant that a release has made to a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PushedGrant {
    pub(super) owner: Owner,
    pub(super) token: i64,
    /// The end of the waiter's entry in the server's queue. It tells one entry from the next.
    pub(super) until: i64,
}

impl Notification {
    /// Reads `free TWO_PART KEY`, `granted TWO_PART KEY OWNER TOKEN UNTIL`, `revoked OWNER REASON` or
    /// `taken OWNER REASON`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (what, rest) = text.split_once(' ')?;
        match what {
            "free" => Some(Self::Free),
            "granted" => {
                let words: Vec<_> = rest.split(' ').collect();
                let [_, _, owner, token, until] = words[..] else { return None };
                let (owner, token, until) = (owner.parse().ok()?, token.parse().ok()?, until.parse().ok()?);
                Some(Self::Granted(PushedGrant { owner, token, until }))
            }
            "revoked" | "taken" => {
                let (owner, reason) = rest.split_once(' ')?;
                let (owner, reason) = (owner.parse().ok()?, reason.to_owned());
                Some(Self::Revoked { owner, reason, taken: what == "taken" })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_notification_is_read_as_the_server_writes_it() {
        let owner = Owner::fresh();
        let parse = |text: &str| Notification::parse(text);
        assert_eq!(parse("free 1 42"), Some(Notification::Free));
        let pushed = format!("granted 0 5 {owner} 12 34");
        let grant = PushedGrant { owner, token: 12, until: 34 };
        assert_eq!(parse(&pushed), Some(Notification::Granted(grant)));
        let revoked = |taken| Some(Notification::Revoked { owner, reason: "go on".into(), taken });
        assert_eq!(parse(&format!("revoked {owner} go on")), revoked(false));
        assert_eq!(parse(&format!("taken {owner} go on")), revoked(true));
        for wrong in [
            "",
            "free",
            "granted 0 1",
            "granted 0 1 x 12 34",
            &format!("granted 0 1 {owner} 12"),
            &format!("granted 0 1 {owner} x 34"),
            &format!("{pushed} 5"),
            "revoked x y",
            &format!("revoked {owner}"),
            "garbage 1 2",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn every_grant_is_read_and_no_notification_makes_it_panic(
            text in "(free |granted |revoked )?.{0,60}", number: i64, token: i64, until: i64,
        ) {
            let _ = Notification::parse(&text);
            let grant = PushedGrant { owner: Owner::fresh(), token, until };
            let pushed = format!("granted 0 {number} {} {token} {until}", grant.owner);
            prop_assert_eq!(Notification::parse(&pushed), Some(Notification::Granted(grant)));
            prop_assert_eq!(Notification::parse(&format!("{pushed}{text}x")), None);
        }
    }
}
