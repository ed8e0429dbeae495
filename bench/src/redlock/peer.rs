//! `rslock`: what a Redlock client without a token does, in lighter commands: `SET NX`, compare and delete, and always
//! the answers of all nodes.

use std::time::Duration;

use fencepost_testkit::redis::{Fleet, Server};
use rslock::LockManager;

use crate::cycle::{Cycle, TASKS};

const TTL: Duration = Duration::from_secs(30);

pub(super) struct Peer {
    manager: LockManager,
    name: String,
}

impl Cycle for Peer {
    async fn run(&self) {
        self.manager.acquire(self.name.as_str(), TTL).await.expect("the lock").release().await;
    }
}

pub(super) fn connect(fleet: &Fleet) -> LockManager {
    LockManager::new(fleet.iter().map(Server::url).collect())
}

pub(super) fn lock(manager: &LockManager, name: impl Into<String>) -> Peer {
    Peer { manager: manager.clone(), name: name.into() }
}

/// A name of its own for each of many tasks.
pub(super) fn names(manager: &LockManager) -> Vec<Peer> {
    (0..TASKS).map(|index| lock(manager, format!("peer:{index}"))).collect()
}
