//! `list`: all locks that are held.

use fencepost::Locks;

use crate::args::List;
use crate::exit::Outcome;
use crate::output::{Console, table};

pub(super) async fn run(args: &List, locks: &Locks, console: Console) -> Outcome {
    let holders = locks.list(&args.prefix).await?;
    if holders.is_empty() {
        console.note("no lock is held");
    }
    console.result(&holders, || table(&holders))?;
    Ok(0)
}
