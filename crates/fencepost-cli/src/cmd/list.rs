//! `list`: all locks that are held.

use fencepost::Locks;

use crate::args::List;
use crate::exit::{Failure, INCOMPLETE, Outcome};
use crate::output::{Console, table};

pub(super) async fn run(args: &List, locks: &Locks, console: Console) -> Outcome {
    let listing = locks.list(&args.prefix).await?;
    if listing.holders.is_empty() && listing.unreadable.is_empty() {
        console.note("no lock is held");
    }
    console.result(&listing.holders, || table(&listing.holders))?;
    let code = if listing.unreadable.is_empty() { 0 } else { INCOMPLETE };
    for error in listing.unreadable {
        console.fail(&Failure::Lock(error));
    }
    Ok(code)
}
