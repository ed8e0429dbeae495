//! Without contention: acquire and release, by several tasks with a name each.

use std::time::{Duration, Instant};

use fencepost::{Locks, Result};
use tokio::task::JoinSet;

use super::Times;

/// Asks who holds a lock that nobody has: one round trip to the store, whatever store it is.
pub(crate) async fn round_trips(locks: &Locks, name: &str, lasts: Duration) -> Result<Times> {
    let (started, mut times) = (Instant::now(), Vec::new());
    while started.elapsed() < lasts {
        let before = Instant::now();
        locks.show(name).await?;
        times.push(before.elapsed());
    }
    Ok(Times::new(times, started.elapsed()))
}

pub(crate) async fn cycles(locks: &Locks, prefix: &str, tasks: usize, lasts: Duration) -> Result<Times> {
    let started = Instant::now();
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let lock = locks.lock(format!("{prefix}cycle:{task}"));
        running.spawn(async move {
            let mut times = Vec::new();
            while started.elapsed() < lasts {
                let before = Instant::now();
                lock.acquire().await?.release().await?;
                times.push(before.elapsed());
                // A store that never waits must not keep the others from their turn.
                tokio::task::yield_now().await;
            }
            Ok(times)
        });
    }
    let mut all = Vec::new();
    while let Some(ended) = running.join_next().await {
        all.extend(ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?);
    }
    Ok(Times::new(all, started.elapsed()))
}
