//! Who holds a lock, as others see it.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::text::printable;
use crate::{Error, FencingToken, Name, NodeView, Owner};

/// Who holds a lock, as others see it. What a store does not know is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The lock's name.
    pub name: Name,
    /// The identity of the acquisition; `None` if a foreign client of the same key holds the lock.
    pub owner: Option<Owner>,
    /// The holder's fencing token, where the store can tell.
    pub token: Option<FencingToken>,
    /// The machine it was acquired on.
    pub host: Option<String>,
    /// The process that acquired it.
    pub pid: Option<u32>,
    /// Free text given by the holder.
    pub note: Option<String>,
    /// When it was acquired, by the holder's wall clock. On Redis and etcd, when it was
    /// asked for.
    pub since: Option<SystemTime>,
    /// Time until the lease ends unless it is renewed; `None` if it has no end.
    pub expires_in: Option<Duration>,
    /// Set when an operator has asked for this lock back and the holder has not yet let go.
    pub revoked: Option<String>,
    /// What each node has of the lock, where a store has several and was asked to show one lock.
    pub nodes: Vec<NodeView>,
    /// Who waits behind it, first come first, where the store was asked to show one lock. On etcd it has one
    /// waiter of each process. Beyond a thousand some are left out.
    pub queue: Vec<Holder>,
}

/// What a list of locks found.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Listing {
    /// The holders, by name.
    pub holders: Vec<Holder>,
    /// Why a lock is missing or is listed without its holder: an entry that is damaged, or that this user may
    /// not read. One such entry hides no other.
    pub unreadable: Vec<Error>,
}

impl From<Vec<Holder>> for Listing {
    /// A list that misses nothing.
    fn from(holders: Vec<Holder>) -> Self {
        Self { holders, unreadable: Vec::new() }
    }
}

impl Holder {
    /// A holder of whom nothing is known but the name of the lock.
    pub fn unknown(name: Name) -> Self {
        Self {
            name,
            owner: None,
            token: None,
            host: None,
            pid: None,
            note: None,
            since: None,
            expires_in: None,
            revoked: None,
            nodes: Vec::new(),
            queue: Vec::new(),
        }
    }

    /// How long ago it was acquired; `None` if that is unknown or lies in the future.
    pub fn age(&self) -> Option<Duration> {
        self.since.and_then(|since| SystemTime::now().duration_since(since).ok())
    }
}

impl fmt::Display for Holder {
    /// One phrase for messages: ``host `web-1`, pid 4711, note `nightly`, held for 12s, lease ends in 18s``.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        match (&self.host, self.pid) {
            (Some(host), Some(pid)) => parts.push(format!("host `{}`, pid {pid}", printable(host))),
            (Some(host), None) => parts.push(format!("host `{}`", printable(host))),
            (None, Some(pid)) => parts.push(format!("pid {pid}")),
            (None, None) if self.owner.is_none() => parts.push("a foreign client".to_owned()),
            (None, None) => {}
        }
        if let Some(note) = self.note.as_deref().filter(|note| !note.is_empty()) {
            parts.push(format!("note `{}`", printable(note)));
        }
        if let Some(age) = self.age() {
            parts.push(format!("held for {}", crate::format_duration(age)));
        }
        match self.expires_in {
            Some(left) => parts.push(format!("lease ends in {}", crate::format_duration(left))),
            None => parts.push("no expiry".to_owned()),
        }
        if let Some(reason) = &self.revoked {
            parts.push(format!("force-release asked for: `{}`", printable(reason)));
        }
        f.write_str(&parts.join(", "))
    }
}

impl Serialize for Holder {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let milliseconds = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let since = self.since.and_then(|since| since.duration_since(SystemTime::UNIX_EPOCH).ok());
        let mut out = serializer.serialize_struct("Holder", 12)?;
        out.serialize_field("name", self.name.as_str())?;
        out.serialize_field("owner", &self.owner)?;
        out.serialize_field("token", &self.token)?;
        out.serialize_field("host", &self.host)?;
        out.serialize_field("pid", &self.pid)?;
        out.serialize_field("note", &self.note)?;
        out.serialize_field("since_unix_ms", &since.map(milliseconds))?;
        out.serialize_field("age_ms", &self.age().map(milliseconds))?;
        out.serialize_field("expires_in_ms", &self.expires_in.map(milliseconds))?;
        out.serialize_field("revoked", &self.revoked)?;
        match self.nodes.as_slice() {
            [] => out.skip_field("nodes")?,
            nodes => out.serialize_field("nodes", nodes)?,
        }
        match self.queue.as_slice() {
            [] => out.skip_field("queue")?,
            queue => out.serialize_field("queue", queue)?,
        }
        out.end()
    }
}
