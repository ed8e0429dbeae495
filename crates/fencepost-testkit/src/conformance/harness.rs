//! The store that a promise is tested on, and how it is broken.

use std::pin::Pin;
use std::time::Duration;

use fencepost::{Guard, Lock, Locks};

use crate::LIMIT;

/// A ttl that does not end while a test runs: what becomes free before, became free by a release.
pub const LONG: Duration = Duration::from_secs(600);

/// A ttl to wait the end of. An answer that takes longer grants nothing, on several nodes half of it.
pub const SHORT: Duration = Duration::from_millis(1500);

/// A wait for a lock that stays held. The store must have said by then who holds it.
pub const IN_VAIN: Duration = Duration::from_secs(2);

/// So many milliseconds.
pub fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A store under test: empty at the start and gone at the end. Locks of ten minutes are fine.
pub trait TestStore: Send + Sync {
    /// The URL that leads to it.
    fn url(&self) -> String;

    /// Its locks, over a connection of their own.
    fn locks(&self) -> Pin<Box<dyn Future<Output = Locks> + Send + '_>> {
        Box::pin(async { Locks::connect(&self.url()).await.unwrap() })
    }

    /// Stops it: it answers nothing until [`resume`](Self::resume).
    fn stop(&self);

    /// Lets it go on.
    fn resume(&self);

    /// Removes the entry of a held lock without a word to anybody.
    fn remove(&self, name: &str);

    /// How many traces of held locks and of waiters it has.
    fn traces(&self) -> usize;

    /// A URL of the store for a user with this password, and what has to live for as long as it is used;
    /// `None`
    /// where nobody logs in.
    fn with_login(&self, password: &str) -> Option<Logged> {
        let _ = password;
        None
    }
}

/// A URL with a login, and its server if that is another one.
pub type Logged = (String, Box<dyn Send + Sync>);

/// A store under test.
pub struct Harness(Box<dyn TestStore>);

impl Harness {
    /// Of a store.
    pub fn new(store: impl TestStore + 'static) -> Self {
        Self(Box::new(store))
    }

    /// The URL that leads to it.
    pub fn url(&self) -> String {
        self.0.url()
    }

    /// Its locks, over a connection of their own.
    pub async fn locks(&self) -> Locks {
        self.0.locks().await
    }

    /// Stops it: it answers nothing until [`resume`](Self::resume).
    pub fn stop(&self) {
        self.0.stop();
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.0.resume();
    }

    /// Removes the entry of a held lock without a word to anybody.
    pub fn remove(&self, name: &str) {
        self.0.remove(name);
    }

    /// Waits until the store has no trace of a held lock.
    pub async fn is_clear(&self) {
        until("no trace of a lock is left", async || self.0.traces() == 0).await;
    }

    /// A URL of the store for a user with this password.
    pub fn with_login(&self, password: &str) -> Option<Logged> {
        self.0.with_login(password)
    }
}

/// What a store must be able to do for a promise to apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing: it applies to every store.
    Nothing,
    /// Locks are leases, that is, they can end by time.
    Leases,
    /// A lock can outlive its process.
    Detach,
    /// Both.
    DetachedLeases,
    /// A lock cannot outlive its process.
    NoDetach,
}

/// Tests a promise, if it applies to the store.
pub async fn run(harness: Harness, needs: Needs, test: impl AsyncFnOnce(Harness)) {
    let locks = harness.locks().await;
    let can = locks.capabilities();
    locks.close().await;
    let applies = match needs {
        Needs::Nothing => true,
        Needs::Leases => can.leases,
        Needs::Detach => can.detach,
        Needs::DetachedLeases => can.detach && can.leases,
        Needs::NoDetach => !can.detach,
    };
    if applies {
        test(harness).await;
    }
}

/// A lock whose acquire fails the test if it does not come.
pub fn patient(locks: &Locks, name: &str) -> Lock {
    locks.lock(name).ttl(LONG).wait(LIMIT)
}

/// Acquires, or fails the test.
pub async fn take(locks: &Locks, name: &str) -> Guard {
    patient(locks, name).acquire().await.unwrap()
}

/// Shows that a lock is free, or becomes so before any lease of this test ends.
pub async fn becomes_free(locks: &Locks, name: &str) {
    take(locks, name).await.release().await.unwrap();
}

/// Waits until a condition holds.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !condition().await {
            tokio::time::sleep(ms(5)).await;
        }
    };
    bounded(what, wait).await;
}

/// Turns a hang into a message.
pub async fn bounded<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(out) => out,
        Err(_) => panic!("waited {LIMIT:?} in vain: {what}"),
    }
}
