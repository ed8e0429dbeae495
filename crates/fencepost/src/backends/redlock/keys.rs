//! The keys of one lock on a node. The lock itself is `PREFIXlock:NAME`, where other Redlock clients look for it.

use crate::backends::redis::keys::KeySet as Three;

#[derive(Debug)]
pub(super) struct Keys(Three);

impl Keys {
    pub(super) fn new(start: &str, name: &str) -> Self {
        Self(Three::new(start, name, ["fence", "waiters"]))
    }

    pub(super) fn lock(&self) -> &str {
        self.0.each()[0]
    }

    /// The token counter.
    pub(super) fn counter(&self) -> &str {
        self.0.each()[1]
    }

    /// Who waits, as this node knows.
    pub(super) fn queue(&self) -> &str {
        self.0.each()[2]
    }
}
