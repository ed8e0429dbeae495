//! What a contender's node says about it: a line of JSON. Once the lock is asked back, the operator's reason
//! follows.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::driver::Stat;
use super::keys::Contender;
use crate::{FencingToken, Holder, Name};

#[derive(Serialize, Deserialize)]
struct Record<'a> {
    #[serde(borrow)]
    host: std::borrow::Cow<'a, str>,
    pid: u32,
    /// When it began to contend, by its own clock.
    since: u64,
    /// The timeout of its session.
    ttl: u64,
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    note: std::borrow::Cow<'a, str>,
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The data of a node of ours.
pub(super) fn encode(ttl: Duration, note: &str) -> Vec<u8> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let record = Record {
        host: crate::identity::host().into(),
        pid: std::process::id(),
        since: milliseconds(since),
        ttl: milliseconds(ttl),
        note: note.into(),
    };
    serde_json::to_vec(&record).unwrap_or_default()
}

/// The same data with the reason why the lock is asked back.
pub(super) fn revoke(data: &[u8], reason: &str) -> Vec<u8> {
    let first = data.split(|byte| *byte == b'\n').next().unwrap_or_default();
    [first, b"\n", reason.as_bytes()].concat()
}

/// The reason, if the lock is asked back.
pub(super) fn revoked(data: &[u8]) -> Option<String> {
    let end = data.iter().position(|byte| *byte == b'\n')?;
    Some(String::from_utf8_lossy(&data[end + 1..]).into_owned())
}

/// The contender that a node tells of. Of a client of other make only the token and the age are known.
pub(super) fn decode(name: &Name, contender: &Contender, data: &[u8], stat: &Stat) -> Holder {
    let mut holder = Holder::unknown(name.clone());
    holder.token = u64::try_from(stat.czxid).ok().and_then(FencingToken::new);
    let created = u64::try_from(stat.created).ok().map(Duration::from_millis);
    holder.since = created.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since));
    let first = data.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let (Some(owner), Ok(record)) = (contender.owner(), serde_json::from_slice::<Record<'_>>(first)) else {
        return holder;
    };
    holder.owner = Some(owner);
    holder.host = Some(record.host.into_owned());
    holder.pid = Some(record.pid);
    holder.note = Some(record.note.into_owned()).filter(|note| !note.is_empty());
    holder.since = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(record.since));
    // When the server last heard from the session is not told: this much at most.
    holder.expires_in = Some(Duration::from_millis(record.ttl));
    holder.revoked = revoked(data);
    holder
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Owner;
    use proptest::prelude::*;

    const STAT: Stat = Stat { czxid: 42, created: 1_000, version: 0, ephemeral_owner: 1 };

    fn name() -> Name {
        Name::new("x").unwrap()
    }

    #[test]
    fn a_node_tells_others_who_contends() {
        let owner = Owner::fresh();
        let contender = Contender::parse(&format!("_c_{owner}-lock-0000000001")).unwrap();
        let data = encode(Duration::from_secs(30), "nightly \"run\"\n");
        let shown = decode(&name(), &contender, &data, &STAT);
        assert_eq!((shown.owner, shown.pid), (Some(owner), Some(std::process::id())));
        assert_eq!(shown.note.as_deref(), Some("nightly \"run\"\n"));
        assert_eq!(shown.token.map(FencingToken::get), Some(42));
        assert_eq!(shown.expires_in, Some(Duration::from_secs(30)));
        assert_eq!(shown.revoked, None);
        let asked = revoke(&revoke(&data, "first"), "stuck\nsince noon");
        assert_eq!(revoked(&asked).as_deref(), Some("stuck\nsince noon"));
        let shown = decode(&name(), &contender, &asked, &STAT);
        assert_eq!((shown.owner, shown.revoked.as_deref()), (Some(owner), Some("stuck\nsince noon")));
    }

    #[test]
    fn what_a_newer_version_adds_is_passed_over() {
        let contender = Contender::parse(&format!("_c_{}-lock-0000000001", Owner::fresh())).unwrap();
        let data = String::from_utf8(encode(Duration::from_secs(30), "nightly")).unwrap();
        let newer = data.replace('{', "{\"zone\":{\"rack\":7},");
        let shown = decode(&name(), &contender, newer.as_bytes(), &STAT);
        assert_eq!((shown.pid, shown.note.as_deref()), (Some(std::process::id()), Some("nightly")));
    }

    proptest! {
        #[test]
        fn a_node_with_any_note_reads_back(
            note in any::<String>(),
            reason in any::<String>(),
            ttl in 0u64..1 << 40,
        ) {
            let owner = Owner::fresh();
            let contender = Contender::parse(&format!("_c_{owner}-lock-0000000001")).unwrap();
            let asked = revoke(&encode(Duration::from_millis(ttl), &note), &reason);
            let shown = decode(&name(), &contender, &asked, &STAT);
            prop_assert_eq!((shown.owner, shown.note.unwrap_or_default()), (Some(owner), note));
            prop_assert_eq!(shown.revoked, Some(reason));
            prop_assert_eq!(shown.expires_in, Some(Duration::from_millis(ttl)));
        }

        #[test]
        fn of_a_foreign_node_only_token_and_age_are_known(
            data in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let contender = Contender::parse("5e1f__lock__0000000004").unwrap();
            let shown = decode(&name(), &contender, &data, &STAT);
            prop_assert_eq!((shown.owner, shown.pid, shown.expires_in), (None, None, None));
            prop_assert_eq!(shown.token.map(FencingToken::get), Some(42));
        }
    }
}
