//! Without contention: acquire and release, by several tasks with a name each.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::client::{Client, Contender as _};
use crate::times::Times;

/// Each of so many tasks goes through cycles of its own.
///
/// # Errors
///
/// The first that a task met.
pub async fn cycles<C: Client>(
    client: &C,
    prefix: &str,
    tasks: usize,
    lasts: Duration,
) -> Result<Times, C::Error> {
    let mut contenders = Vec::new();
    for task in 0..tasks {
        let mut contender = client.contender(&format!("{prefix}cycle:{task}")).await?;
        // What the first time brings along, connections and scripts, is not measured.
        let held = contender.acquire().await?;
        contender.release(held).await?;
        contenders.push(contender);
    }
    let started = Instant::now();
    let mut running = JoinSet::new();
    for mut contender in contenders {
        running.spawn(async move {
            let mut times = Vec::new();
            while started.elapsed() < lasts {
                let before = Instant::now();
                let held = contender.acquire().await?;
                contender.release(held).await?;
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
