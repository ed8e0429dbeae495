//! `check`: whether the store grants locks now, by taking one.

use std::time::{Duration, Instant};

use fencepost::Locks;
use serde_json::json;

use crate::args::Check;
use crate::exit::Outcome;
use crate::output::Console;

/// How long another check may have the lock.
const WAIT: Duration = Duration::from_secs(10);

pub(super) async fn run(args: &Check, locks: &Locks, console: Console) -> Outcome {
    let started = Instant::now();
    let guard = locks.lock(args.name.as_str()).wait(WAIT).note("fencepost check").acquire().await?;
    let acquired = started.elapsed();
    let token = guard.token();
    guard.release().await?;
    let (took, store) = (started.elapsed(), locks.capabilities().store);
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    let (acquire, release) = (ms(acquired), ms(took - acquired));
    let json = json!({ "store": store, "token": token, "acquire_ms": acquire, "release_ms": release });
    console.result(&json, || {
        let took = ms(took);
        format!("{store} grants locks: token {token}, acquired and released in {took:.1} ms")
    })?;
    Ok(0)
}
