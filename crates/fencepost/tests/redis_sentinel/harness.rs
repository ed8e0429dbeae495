//! What these tests share.

use std::sync::Arc;
use std::time::Duration;

use fencepost::Locks;
use fencepost_testkit::redis::{Sentinels, Server};

#[path = "../common/waiting.rs"]
mod waiting;
pub(crate) use waiting::{bounded, until};

/// A short quarantine: five seconds.
pub(crate) const QUICK: &str = "max_ttl=1s";
pub(crate) const DOWN_AFTER: Duration = Duration::from_secs(1);
pub(crate) const REIGN: &str = "{fencepost}:reign";

pub(crate) fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Blocks a thread of its own, and not the runtime.
pub(crate) async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// A master with so many replicas, and three sentinels.
pub(crate) async fn start(replicas: usize) -> Arc<Sentinels> {
    start_with(replicas, QUICK).await
}

pub(crate) async fn start_with(replicas: usize, parameters: &'static str) -> Arc<Sentinels> {
    let start = move || {
        let durable = |config: fencepost_testkit::redis::Config| config.line("appendonly yes");
        Sentinels::start_with(replicas, DOWN_AFTER, durable).with_parameters(parameters)
    };
    Arc::new(apart(start).await)
}

/// The same, declared to be new.
pub(crate) async fn declared(replicas: usize) -> Arc<Sentinels> {
    declared_with(replicas, QUICK).await
}

/// The same with other parameters in its URL.
pub(crate) async fn declared_with(replicas: usize, parameters: &'static str) -> Arc<Sentinels> {
    let all = start_with(replicas, parameters).await;
    Locks::init(&all.url()).await.unwrap();
    all
}

pub(crate) async fn connect(all: &Sentinels) -> Locks {
    Locks::connect(&all.url()).await.unwrap()
}

/// Has the lock once, and says its token.
pub(crate) async fn use_once(locks: &Locks, name: &str) -> u64 {
    let guard = bounded("the lock is granted", locks.lock(name).acquire()).await.unwrap();
    let token = guard.token().get();
    guard.release().await.unwrap();
    token
}

/// Waits until a replica has all that its master has had so far.
pub(crate) async fn in_sync(master: &Server, replica: &Server) {
    // Writes arrive in order.
    let mark = format!("{:?}", std::time::SystemTime::now());
    master.cli(&["SET", "mark", &mark]);
    until("the replica has it all", async || replica.cli(&["GET", "mark"]) == mark).await;
}
