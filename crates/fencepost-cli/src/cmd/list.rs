//! `list`: all locks that are held.

use std::cmp::Reverse;
use std::io::{self, IsTerminal};
use std::time::Duration;

use fencepost::{Error, Holder, Locks};
use serde_json::json;

use crate::args::{List, Sort};
use crate::exit::{Failure, INCOMPLETE, Outcome};
use crate::output::{Console, shown, table};

pub(super) async fn run(args: &List, locks: &Locks, console: Console) -> Outcome {
    let Some(every) = args.watch else { return once(args, locks, console).await };
    watch(args, every.max(Duration::from_millis(100)), locks, console).await
}

async fn once(args: &List, locks: &Locks, console: Console) -> Outcome {
    let (holders, unreadable) = read(args, locks).await?;
    if holders.is_empty() && unreadable.is_empty() && !args.count {
        console.note(&match args.prefix.as_str() {
            "" => "no lock is held".to_owned(),
            prefix => format!("no lock is held whose name starts with `{}`", shown(prefix)),
        });
    }
    print(args, &holders, console)?;
    let code = if unreadable.is_empty() { 0 } else { INCOMPLETE };
    for error in unreadable {
        console.fail(&Failure::Lock(error));
    }
    Ok(code)
}

/// Prints the list until a signal ends this process. An outage of the store is told, and does not end it.
async fn watch(args: &List, every: Duration, locks: &Locks, console: Console) -> Outcome {
    let in_place = io::stdout().is_terminal() && !console.json;
    let mut last = None;
    loop {
        match read(args, locks).await {
            Ok((holders, unreadable)) => {
                let names = holders.iter().map(|holder| (holder.name.clone(), holder.owner));
                let damaged = unreadable.iter().map(ToString::to_string);
                let now = (names.collect::<Vec<_>>(), damaged.collect::<Vec<_>>());
                if in_place {
                    console.clear()?;
                }
                if in_place || last.as_ref() != Some(&now) {
                    print(args, &holders, console)?;
                    unreadable.into_iter().for_each(|error| console.fail(&Failure::Lock(error)));
                }
                last = Some(now);
            }
            Err(error) if error.is_transient() => console.fail(&Failure::Lock(error)),
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(every).await;
    }
}

/// The holders in the order that was asked for, and what could not be read.
async fn read(args: &List, locks: &Locks) -> Result<(Vec<Holder>, Vec<Error>), Error> {
    let listing = locks.list(&args.prefix).await?;
    let mut holders = listing.holders;
    match args.sort {
        Sort::Name => {}
        Sort::Age => holders.sort_by_key(|holder| Reverse(holder.age())),
        // What has no end comes last.
        Sort::Left => holders.sort_by_key(|holder| (holder.expires_in.is_none(), holder.expires_in)),
    }
    Ok((holders, listing.unreadable))
}

fn print(args: &List, holders: &[Holder], console: Console) -> Result<(), Failure> {
    if args.count {
        return console.result(&json!({ "count": holders.len() }), || holders.len().to_string());
    }
    console.result(&holders, || table(holders))
}
