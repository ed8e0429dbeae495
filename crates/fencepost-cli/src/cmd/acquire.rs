//! `acquire`: takes a lock that outlives this process, and prints the handle to it.

use std::time::{Duration, Instant};

use fencepost::{Handle, Locks};
use serde::Serialize;

use crate::args::{Acquire, Global};
use crate::exit::{Failure, Outcome, system};
use crate::output::{Console, shown};
use crate::signals::{Caught, Incoming};
use crate::{store, waiting};

/// A detached lock, as `acquire` and `extend` print it.
#[derive(Serialize)]
pub(super) struct Detached<'a> {
    name: &'a str,
    token: u64,
    owner: String,
    expires_in_ms: Option<u64>,
    handle: String,
}

impl<'a> Detached<'a> {
    pub(super) fn new(handle: &'a Handle, left: Option<Duration>) -> Self {
        Self {
            name: handle.name().as_str(),
            token: handle.token().get(),
            owner: handle.owner().to_string(),
            expires_in_ms: left.and_then(|left| u64::try_from(left.as_millis()).ok()),
            handle: handle.to_string(),
        }
    }
}

pub(super) fn run(args: &Acquire, global: &Global, console: Console) -> Outcome {
    let url = store::url(global)?;
    let caught = Caught::start(false).map_err(system("catching signals"))?;
    super::runtime()?.block_on(async {
        let signals = caught.listen().map_err(system("catching signals"))?;
        let locks = tokio::select! {
            locks = Locks::connect(&url) => locks?,
            signal = waiting::ending(&signals) => return Err(Failure::Interrupted(signal)),
        };
        let outcome = acquire(args, &locks, console, &signals).await;
        locks.close().await;
        outcome
    })
}

async fn acquire(args: &Acquire, locks: &Locks, console: Console, signals: &Incoming) -> Outcome {
    let name = args.target.name(locks)?;
    let name = std::slice::from_ref(&name);
    let guards = waiting::acquire(&args.lock.all(locks, name), name, locks, console, signals).await?;
    let Some(guard) = guards.into_guards().pop() else { unreachable!("a lock for each name") };
    let handle = guard.detach().await?;
    let left = time_left(locks, &handle).await;
    let printed = console.result(&Detached::new(&handle, left), || handle.to_string());
    if let Err(failure) = printed {
        // Nobody has the handle, so nobody could release the lock. A reader that went away is no success
        // here.
        locks.release(&handle).await?;
        return Err(match failure {
            Failure::System { doing, error } => Failure::System {
                doing,
                error: std::io::Error::other(format!("{error}; the lock was released")),
            },
            other => other,
        });
    }
    if console.has_live_line() {
        let left = left.map(fencepost::format_duration).unwrap_or_default();
        console.note(&format!(
            "lock `{}` is yours for {left}; `fencepost extend` and `release` take the handle",
            shown(handle.name().as_str())
        ));
    }
    Ok(0)
}

/// How long a detached lock lives, from now: the store's word, less the time that its answer took.
pub(super) async fn time_left(locks: &Locks, handle: &Handle) -> Option<Duration> {
    let asked = Instant::now();
    let holder = locks.show(handle.name().as_str()).await.ok()??;
    let left = holder.expires_in.filter(|_| holder.owner == Some(handle.owner()))?;
    Some(left.saturating_sub(asked.elapsed()))
}
