//! The keys of one lock on a node. The lock itself is `PREFIXlock:NAME`, where other Redlock clients look for it.

use crate::backends::redis::keys::beside;

#[derive(Debug)]
pub(super) struct Keys {
    pub(super) lock: String,
    /// The token counter.
    pub(super) counter: String,
    /// Who waits, as this node knows.
    pub(super) queue: String,
}

impl Keys {
    pub(super) fn new(start: &str, name: &str) -> Self {
        let lock = format!("{start}{name}");
        Self { counter: beside(&lock, "fence"), queue: beside(&lock, "waiters"), lock }
    }
}
