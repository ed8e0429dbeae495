//! What an attempt asks each node for, and how a node denies it.

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::config::Config;
use super::record;
use super::request::Delivery;
use super::session::{Script, Session};
use crate::backends::redis::driver::batch::{Sharing, Step};
use crate::backends::redis::driver::resp::{Part, Value};
use crate::backends::redis::keys::KeySet;
use crate::{Holder, Name};

/// What an attempt asks each node for.
#[derive(Debug)]
pub(super) struct AcquireRequest {
    pub(super) name: Name,
    pub(super) keys: Arc<KeySet>,
    /// What the lock key becomes.
    pub(super) value: Arc<str>,
    pub(super) ttl: Duration,
    /// How long a node keeps the key, in milliseconds.
    pub(super) px: String,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    /// The lock, for a new holder. With an entry for the queue, it is woken when the lock is released.
    Lock { entry: Option<Arc<str>> },
    /// The lock of the holder with the value `seen`, which is told so.
    Revoke { seen: String, channel: String, message: String },
}

impl AcquireRequest {
    pub(super) fn send(
        &self,
        session: &Session,
        config: &Config,
        [proposal, not_after]: [&str; 2],
        Delivery { sent, alone, call }: Delivery,
    ) -> Result<(), String> {
        let [lock, counter, queue] = self.keys.each();
        let (value, px): (&str, &str) = (&self.value, &self.px);
        let sharing = Sharing::of_one_server(alone);
        let step = |keys: &[&str], arguments: &[&str], call| {
            session.step(&Step { keys, arguments, needs_end: true, sharing, pushes: false }, sent, call)
        };
        match &self.kind {
            Kind::Lock { entry: None } => step(&[lock, counter], &[px, value, proposal, not_after], call),
            Kind::Lock { entry: Some(entry) } => {
                step(&[lock, counter, queue], &["line", px, value, proposal, not_after, entry], call)
            }
            Kind::Revoke { seen, channel, message } => {
                let (votes, bound) = (session.votes.as_str(), config.bound_us.as_str());
                let arguments = [votes, not_after, seen, value, px, proposal, bound, channel, message];
                let keys = [Part::Words(&[&config.node_key, lock, counter])];
                session.eval(Script::Revoke, &keys, &[Part::Words(&arguments)], sent, call)
            }
        }
    }

    /// The second round: confirms a token.
    pub(super) fn send_confirm(
        &self,
        session: &Session,
        config: &Config,
        [token, not_after]: [&str; 2],
        Delivery { sent, call, .. }: Delivery,
    ) -> Result<(), String> {
        let [lock, counter, _] = self.keys.each();
        let arguments = [&*session.votes, not_after, "confirm", &self.value, &self.px, token];
        let keys = [Part::Words(&[&config.node_key, lock, counter])];
        session.eval(Script::Hold, &keys, &[Part::Words(&arguments)], sent, call)
    }

    /// The node that all contenders for this lock ask first when they ask in order.
    pub(super) fn first_node(&self, n: usize) -> usize {
        let hash = Sha256::digest(self.name.as_str().as_bytes());
        usize::from(hash[0]) % n
    }
}

/// A node's reply that its key is somebody else's.
pub(super) struct Denial {
    pub(super) value: String,
    pub(super) ttl: i64,
    pub(super) counter: u64,
}

impl Denial {
    /// A key of another type is a foreign client's, of which nothing is known.
    pub(super) fn read(reply: &Value) -> Self {
        let Some([_, value, ttl, counter, _]) = reply.as_list() else {
            return Self { value: String::new(), ttl: -1, counter: 0 };
        };
        let value = match value {
            Value::Text(text) => String::from_utf8_lossy(text).into_owned(),
            _ => String::new(),
        };
        let counter = counter.as_int().and_then(|counter| u64::try_from(counter).ok()).unwrap_or(0);
        Self { value, ttl: ttl.as_int().unwrap_or(-1), counter }
    }

    pub(super) fn holder(&self, name: &Name) -> Holder {
        record::holder(name, &self.value, self.ttl, Some(self.counter))
    }
}
