//! What these tests share.

use std::time::Duration;

use fencepost::{Guard, Lock, Locks};
use fencepost_testkit::LIMIT;
use tokio::task::JoinHandle;

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

pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !condition().await {
            tokio::time::sleep(ms(10)).await;
        }
    };
    bounded(what, wait).await;
}

pub(crate) async fn bounded<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(out) => out,
        Err(_) => panic!("waited {LIMIT:?} in vain: {what}"),
    }
}
