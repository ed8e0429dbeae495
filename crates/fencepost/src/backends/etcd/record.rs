//! What a contender's key holds: who it is, as JSON. A peer leaves it empty, and is shown as a foreign
//! client. A revoked lock has the operator's reason in its record.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::driver::proto::KeyValue;
use crate::{FencingToken, Holder, Name, Owner};

/// The record of one contender.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) owner: Owner,
    host: String,
    pid: u32,
    /// Milliseconds since 1970: when the lock was asked for.
    since: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    note: String,
    /// Set by an operator who takes the lock back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) revoked: Option<String>,
}

impl Record {
    pub(super) fn new(owner: Owner, note: &str) -> Self {
        let (host, pid) = (crate::identity::host().to_owned(), std::process::id());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let since = u64::try_from(now.as_millis()).unwrap_or(0);
        Self { owner, host, pid, since, note: note.to_owned(), revoked: None }
    }

    /// The record of a contender; `None` if a peer made it.
    pub(super) fn of(kv: &KeyValue) -> Option<Self> {
        serde_json::from_slice(&kv.value).ok()
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(super) fn with_reason(self, reason: &str) -> Self {
        Self { revoked: Some(reason.to_owned()), ..self }
    }

    /// The same, of another owner.
    pub(super) fn of_owner(self, owner: Owner) -> Self {
        Self { owner, ..self }
    }
}

/// The holder that a key tells of.
pub(super) fn holder(name: &Name, kv: &KeyValue, expires_in: Option<Duration>) -> Holder {
    let mut holder = Holder::unknown(name.clone());
    holder.token = token(kv.create_revision);
    holder.expires_in = expires_in;
    if let Some(record) = Record::of(kv) {
        holder.owner = Some(record.owner);
        holder.host = Some(record.host);
        holder.pid = Some(record.pid);
        holder.note = Some(record.note).filter(|note| !note.is_empty());
        holder.since = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(record.since));
        holder.revoked = record.revoked;
    }
    holder
}

/// A revision as a token.
pub(super) fn token(revision: i64) -> Option<FencingToken> {
    u64::try_from(revision).ok().and_then(FencingToken::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_record_tells_who_holds_the_lock_and_why_it_was_taken_back() {
        let (name, owner) = (Name::new("a").unwrap(), Owner::fresh());
        let record = Record::new(owner, "nightly \"run\"\n").with_reason("stuck");
        let kv = KeyValue { value: record.to_bytes(), create_revision: 7, ..KeyValue::default() };
        let holder = holder(&name, &kv, Some(Duration::from_secs(3)));
        assert_eq!((holder.owner, holder.pid), (Some(owner), Some(std::process::id())));
        assert_eq!(holder.note.as_deref(), Some("nightly \"run\"\n"));
        assert_eq!(holder.revoked.as_deref(), Some("stuck"));
        assert_eq!(holder.token.map(FencingToken::get), Some(7));
    }

    #[test]
    fn what_a_newer_version_adds_is_passed_over() {
        let record = Record::new(Owner::fresh(), "nightly").to_bytes();
        let newer = String::from_utf8(record).unwrap().replace('{', "{\"zone\":{\"rack\":7},");
        let kv = KeyValue { value: newer.into(), create_revision: 7, ..KeyValue::default() };
        let holder = holder(&Name::new("a").unwrap(), &kv, None);
        assert_eq!((holder.pid, holder.note.as_deref()), (Some(std::process::id()), Some("nightly")));
    }

    #[test]
    fn what_a_peer_wrote_is_a_foreign_holder() {
        let name = Name::new("a").unwrap();
        for value in ["", "x", "{}", "[1]", "{\"owner\":1}"] {
            let kv = KeyValue { value: value.into(), create_revision: 7, ..KeyValue::default() };
            let holder = holder(&name, &kv, None);
            assert!(holder.owner.is_none() && holder.token.is_some(), "{value}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_holder(
            value in proptest::collection::vec(any::<u8>(), 0..60),
            create_revision: i64,
        ) {
            let kv = KeyValue { value, create_revision, ..KeyValue::default() };
            let shown = holder(&Name::new("a").unwrap(), &kv, None);
            prop_assert!(shown.owner.is_none() && shown.token == token(create_revision));
        }

        #[test]
        fn a_record_with_any_note_reads_back(note in any::<String>(), reason in any::<String>()) {
            let owner = Owner::fresh();
            let record = Record::new(owner, &note).with_reason(&reason);
            let kv = KeyValue { value: record.to_bytes(), ..KeyValue::default() };
            let shown = holder(&Name::new("a").unwrap(), &kv, None);
            prop_assert_eq!((shown.owner, shown.note.unwrap_or_default()), (Some(owner), note));
            prop_assert_eq!(shown.revoked, Some(reason));
        }
    }
}
