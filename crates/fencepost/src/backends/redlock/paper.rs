//! What an attempt asks each node for: the lock, for a new holder; or the lock of somebody else, to revoke it.

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::config::Config;
use super::failure::Denial;
use super::keys::Keys;
use super::node::{Link, Script};
use super::revocation;
use crate::backends::redis::driver::batch::Step;
use crate::backends::redis::driver::connection::Call;
use crate::runtime::clock::Moment;
use crate::{Holder, Name};

#[derive(Debug)]
pub(super) struct Paper {
    pub(super) name: Name,
    pub(super) keys: Arc<Keys>,
    /// What the lock key shall be.
    pub(super) value: Arc<str>,
    pub(super) ttl: Duration,
    /// How long a node shall keep the key, in milliseconds.
    pub(super) px: String,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    /// A new holder. With an entry for the queue, it is woken when the lock is released.
    Lock { entry: Option<Arc<str>> },
    /// Takes the lock away from whoever has the value `seen`, and tells it.
    Revoke { seen: String, channel: String, message: String },
}

impl Paper {
    /// Asks a node for it: together with whatever else it is asked in this turn, or `alone`.
    pub(super) fn send(
        &self,
        link: &Link,
        config: &Config,
        [proposal, not_after]: [&str; 2],
        alone: bool,
        sent: Moment,
        call: Call,
    ) -> Result<(), String> {
        let [lock, counter, queue] = [self.keys.lock(), self.keys.counter(), self.keys.queue()];
        let (value, px): (&str, &str) = (&self.value, &self.px);
        let take = |keys: &[&str], arguments: &[&str], call| {
            link.step(&Step { keys, arguments, needs_end: true, alone, pushes: false }, sent, call)
        };
        match &self.kind {
            Kind::Lock { entry: None } => take(&[lock, counter], &[px, value, proposal, not_after], call),
            Kind::Lock { entry: Some(entry) } => {
                take(&[lock, counter, queue], &["line", px, value, proposal, not_after, entry], call)
            }
            Kind::Revoke { seen, channel, message } => {
                let (votes, bound) = (link.votes.as_str(), config.bound_us.as_str());
                let arguments = [votes, not_after, seen, value, px, proposal, bound, channel, message];
                link.eval(Script::Revoke, &[&config.node_key, lock, counter], &arguments, sent, call)
            }
        }
    }

    pub(super) fn script(&self) -> Script {
        match self.kind {
            Kind::Lock { .. } => Script::Turn,
            Kind::Revoke { .. } => Script::Revoke,
        }
    }

    /// The node that all contenders for this lock ask first when they ask in order.
    pub(super) fn first(&self, n: usize) -> usize {
        let hash = Sha256::digest(self.name.as_str().as_bytes());
        usize::from(hash[0]) % n
    }

    pub(super) fn holder(&self, denial: &Denial) -> Holder {
        revocation::holder(&self.name, &denial.value, denial.ttl, Some(denial.counter))
    }
}
