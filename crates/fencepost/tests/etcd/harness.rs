//! What these tests share.

#[path = "../common/waiting.rs"]
mod waiting;

use std::time::Duration;

use fencepost::{Guard, Lock, Locks};
use fencepost_testkit::LIMIT;
use tokio::task::JoinHandle;

pub(crate) use self::waiting::{bounded, until};

/// A ttl that does not end while a test runs.
pub(crate) const LONG: Duration = Duration::from_secs(600);

pub(crate) fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

pub(crate) async fn connect(url: &str) -> Locks {
    bounded("connecting ends", Locks::connect(url)).await.unwrap()
}

/// A lock whose acquire fails the test if it does not come.
pub(crate) fn patient(locks: &Locks, name: &str) -> Lock {
    locks.lock(name).ttl(LONG).wait(LIMIT)
}

pub(crate) async fn take(locks: &Locks, name: &str) -> Guard {
    patient(locks, name).acquire().await.unwrap()
}

/// A waiter, who waits when this returns: the store has told it who holds the lock.
pub(crate) async fn waiter(lock: Lock, locks: &Locks) -> JoinHandle<fencepost::Result<Guard>> {
    let before = locks.stats().waiting_now;
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until("it waits", async || locks.stats().waiting_now == before + 1).await;
    waiter
}
