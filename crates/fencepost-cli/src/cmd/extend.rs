//! `extend`: makes a lock from `acquire` end one ttl from now.

use fencepost::{Locks, format_duration};

use super::acquire::{Detached, time_left};
use crate::args::Extend;
use crate::exit::Outcome;
use crate::output::Console;

pub(super) async fn run(args: &Extend, locks: &Locks, console: Console) -> Outcome {
    let mut lock = locks.lock(args.handle.name().as_str()).renew(false);
    if let Some(ttl) = args.ttl {
        lock = lock.ttl(ttl);
    }
    let handle = lock.attach(&args.handle).await?.detach().await?;
    let left = time_left(locks, &handle).await;
    console.result(&Detached::new(&handle, left), String::new)?;
    if let Some(left) = left {
        console.note(&format!("lock `{}` now ends in {}", handle.name(), format_duration(left)));
    }
    Ok(0)
}
