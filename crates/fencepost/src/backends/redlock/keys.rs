//! The keys of one lock on a node: the lock, its token counter, and the queue of waiters that this node
//! knows. The lock itself is `PREFIXlock:NAME`, where other Redlock clients look for it.

use std::sync::Arc;

use crate::Name;
use crate::backends::redis::keys::KeySet;

pub(super) fn of(start: &str, name: &Name) -> Arc<KeySet> {
    Arc::new(KeySet::new(start, name.as_str(), ["fence", "waiters"]))
}
