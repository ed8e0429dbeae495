//! `release`: gives back a lock from `acquire`.

use fencepost::Locks;
use serde_json::json;

use crate::args::Release;
use crate::exit::Outcome;
use crate::output::Console;

pub(super) async fn run(args: &Release, locks: &Locks, console: Console) -> Outcome {
    let handle = args.handle.read()?;
    locks.release(&handle).await?;
    console.result(&json!({ "name": handle.name().as_str(), "released": true }), String::new)?;
    Ok(0)
}
