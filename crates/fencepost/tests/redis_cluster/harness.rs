//! What these tests share.

use std::time::Duration;

use fencepost::Locks;
use fencepost_testkit::redis::Cluster;
use fencepost_testkit::redis::cluster::slot;

#[path = "../common/waiting.rs"]
mod waiting;
pub(crate) use waiting::{bounded, until};

pub(crate) fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

pub(crate) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) async fn connect(cluster: &Cluster) -> Locks {
    Locks::connect(&cluster.url()).await.unwrap()
}

/// The slot of a lock.
pub(crate) fn slot_of(name: &str) -> u16 {
    slot(&format!("lock:{name}"))
}

/// A master that a lock is not on.
pub(crate) fn elsewhere(cluster: &Cluster, name: &str) -> usize {
    let owner = cluster.master_of(slot_of(name));
    cluster.masters().into_iter().find(|master| *master != owner).unwrap()
}

/// Has the lock once, and says its token.
pub(crate) async fn use_once(locks: &Locks, name: &str) -> u64 {
    let guard = bounded("the lock is granted", locks.lock(name).acquire()).await.unwrap();
    let token = guard.token().get();
    bounded("it is given back", guard.release()).await.unwrap();
    token
}

/// How many listen to the channels of a lock's shard on a node.
pub(crate) fn listeners(cluster: &Cluster, node: usize, name: &str) -> usize {
    let pattern = format!("{{lock:{name}}}*");
    cluster[node].cli(&["PUBSUB", "SHARDCHANNELS", &pattern]).lines().filter(|line| !line.is_empty()).count()
}
