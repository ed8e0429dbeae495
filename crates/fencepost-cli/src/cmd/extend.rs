//! `extend`: makes a lock from `acquire` end one ttl from now.

use fencepost::{Locks, format_duration};

use super::acquire::{Detached, time_left};
use crate::args::Extend;
use crate::exit::Outcome;
use crate::output::{Console, shown};

pub(super) async fn run(args: &Extend, locks: &Locks, console: Console) -> Outcome {
    let handle = &args.handle.read()?;
    let ttl = args.ttl.or(handle.ttl()).unwrap_or(locks.default_ttl());
    locks.extend(handle, ttl).await?;
    let left = time_left(locks, handle).await;
    console.result(&Detached::new(handle, left), String::new)?;
    if let Some(left) = left {
        console.note(&format!(
            "lock `{}` now ends in {}",
            shown(handle.name().as_str()),
            format_duration(left)
        ));
    }
    Ok(0)
}
