//! What is measured: ours, and with the same words somebody else's.

use std::fmt::Display;
use std::time::Duration;

use fencepost::{Guard, Lock, Locks};
use tokio::task::JoinSet;

/// A client of a store.
pub trait Client: Send + Sync + 'static {
    /// Who takes one lock.
    type Contender: Contender<Error = Self::Error>;
    /// Why it did not work.
    type Error: Display + Send + 'static;

    /// One who takes the lock `name`, with a connection of its own where the client wants one for each.
    fn contender(&self, name: &str) -> impl Future<Output = Result<Self::Contender, Self::Error>> + Send;

    /// Holds so many locks by the client's own renewal until it is dropped.
    fn hold(&self, count: usize, ttl: Duration) -> impl Future<Output = Result<Holding, Self::Error>> + Send;
}

/// Locks that are held; asked, it says how many are still.
pub type Holding = Box<dyn Fn() -> usize + Send>;

/// One who takes a lock again and again.
pub trait Contender: Send + 'static {
    /// The lock while it is held.
    type Held: Send;
    /// Why it did not work.
    type Error: Send + 'static;

    /// Waits until the lock is there.
    fn acquire(&mut self) -> impl Future<Output = Result<Self::Held, Self::Error>> + Send;

    /// Gives it back.
    fn release(&mut self, held: Self::Held) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// The number that grows from holder to holder, where there is one.
    fn token(held: &Self::Held) -> Option<u64>;
}

impl Client for Locks {
    type Contender = Lock;
    type Error = fencepost::Error;

    async fn contender(&self, name: &str) -> fencepost::Result<Lock> {
        Ok(self.lock(name))
    }

    async fn hold(&self, count: usize, ttl: Duration) -> fencepost::Result<Holding> {
        /// How many are asked for at once.
        const ABREAST: usize = 64;
        let mut lanes = JoinSet::<fencepost::Result<Vec<_>>>::new();
        for lane in 0..ABREAST {
            let locks = self.clone();
            lanes.spawn(async move {
                let mut guards = Vec::new();
                for number in (lane..count).step_by(ABREAST) {
                    guards.push(locks.lock(format!("held:{number}")).ttl(ttl).acquire().await?);
                }
                Ok(guards)
            });
        }
        let mut guards = Vec::with_capacity(count);
        while let Some(ended) = lanes.join_next().await {
            guards.extend(ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?);
        }
        Ok(Box::new(move || guards.iter().filter(|guard: &&Guard| guard.check().is_ok()).count()))
    }
}

impl Contender for Lock {
    type Held = Guard;
    type Error = fencepost::Error;

    async fn acquire(&mut self) -> fencepost::Result<Guard> {
        Lock::acquire(self).await
    }

    async fn release(&mut self, held: Guard) -> fencepost::Result<()> {
        held.release().await.map(drop)
    }

    fn token(held: &Guard) -> Option<u64> {
        Some(held.token().get())
    }
}
