//! A worker: takes the lock of an order, or says who has it; looks into the ledger; takes the payment; writes
//! it down.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use fencepost::fence::{self, Fence};
use fencepost::{Error, Guard, Holder, Locks, Wait, format_duration};
use fencepost_examples::{Result, listen, tell};

pub(crate) const PAID: &str = "paid";
pub(crate) const PAID_ALREADY: &str = "paid already";
pub(crate) const BUSY: &str = "busy";

const TTL: Duration = Duration::from_secs(2);
/// Longer than the ttl.
const PAYMENT: Duration = Duration::from_secs(3);

/// Works on what comes in, until nothing does.
pub(crate) async fn work(name: &str, books: &Path, store: &str) -> Result<()> {
    let locks = Locks::connect(store).await?;
    let ledger = open_ledger(books).await?;
    tell("ready");
    while let Some(order) = listen()? {
        let Some(guard) = claim(&locks, &order, name).await? else {
            tell(BUSY);
            continue;
        };
        tell(match pay(&order, guard, &ledger, books, name).await {
            Err(error) if is_stale(&*error) => {
                println!("{order}: {error}; put back, to be tried later");
                BUSY
            }
            answer => answer?,
        });
    }
    locks.close().await;
    Ok(())
}

/// What was paid for, order by order, in files. It refuses the token of a holder that is not the newest.
pub(crate) async fn open_ledger(books: &Path) -> Result<Fence> {
    Ok(Fence::connect(&format!("file://{}", books.join("ledger").display())).await?)
}

/// With a prefix, since the store may be the user's own.
pub(crate) fn lock_name(order: &str) -> String {
    format!("fencepost-example:{order}")
}

/// The lock of an order, if it is free now. (`try_acquire` does the same, without saying who has it.)
async fn claim(locks: &Locks, order: &str, name: &str) -> Result<Option<Guard>> {
    let lock = locks.lock(lock_name(order)).ttl(TTL).wait(Wait::No).note(format!("{name} takes the payment"));
    match lock.acquire().await {
        Ok(guard) => Ok(Some(guard)),
        Err(Error::Busy { holder, .. }) => {
            let who = holder.map_or_else(|| "somebody".to_owned(), |holder| describe(&holder));
            println!("{order} is busy: {who}; put back, to be tried later");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

fn describe(holder: &Holder) -> String {
    let unknown = || "?".to_owned();
    format!(
        "host {}, pid {} ({})",
        holder.host.clone().unwrap_or_else(unknown),
        holder.pid.map_or_else(unknown, |pid| pid.to_string()),
        holder.note.clone().unwrap_or_else(unknown)
    )
}

/// Whether the ledger refused us, because a later holder has been there.
fn is_stale(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<fence::Error>().is_some_and(|error| error.stale().is_some())
}

/// Takes the payment, unless the ledger has it.
async fn pay(order: &str, guard: Guard, ledger: &Fence, books: &Path, name: &str) -> Result<&'static str> {
    let token = guard.token();
    // Before the first read: from here on the ledger refuses whoever had this lock before.
    let entry = ledger.resource(order).activate(token).await?;
    if let Some(paid) = entry.read().await? {
        println!("{order}: nothing to do, it was {}", String::from_utf8_lossy(&paid));
        let _ = guard.release().await;
        return Ok(PAID_ALREADY);
    }
    println!(
        "{order} is mine with token {token}; taking the payment, which takes {}",
        format_duration(PAYMENT)
    );
    tokio::time::sleep(PAYMENT).await;
    entry.write(format!("paid by {name} with token {token}")).await?;
    record(books, order)?;
    let kept = guard.check().map_or("the lock was lost, but nobody else came", |()| "renewal kept the lock");
    println!("{order} is paid; the ttl is {}, and {kept}", format_duration(TTL));
    // Whether the lock was lost does not matter any more: the ledger has the payment.
    let _ = guard.release().await;
    Ok(PAID)
}

/// Notes a payment in a place that checks nothing, so that a second one for the same order would show.
fn record(books: &Path, order: &str) -> Result<()> {
    let mut statement = OpenOptions::new().append(true).create(true).open(books.join("statement"))?;
    Ok(statement.write_all(format!("{order}\n").as_bytes())?)
}
