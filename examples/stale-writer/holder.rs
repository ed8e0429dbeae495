//! The two holders of the lock, each in a process of its own.

use fencepost::{Guard, Locks};
use fencepost_examples::{Result, listen, tell};

use crate::account::Account;

pub(crate) const REFUSED: &str = "refused";
const WRITTEN: &str = "written";

async fn acquire(store: &str, note: &str) -> Result<Guard> {
    Ok(Locks::connect(store).await?.lock("fencepost-example:account").note(note).acquire().await?)
}

/// Reads, and is frozen before it writes.
pub(crate) async fn first(account: &Account, store: &str) -> Result<()> {
    let guard = acquire(store, "first").await?;
    let account = account.activate(guard.token()).await?;
    let balance = account.read().await?;
    println!(
        "has the lock with token {}, reads {balance}, and wants to write {}",
        guard.token(),
        balance + 10
    );
    tell("read");
    // The freeze comes while it waits here. A real program is frozen anywhere, also between a look at its
    // guard and its write: that is why looking is not enough.
    listen()?;
    match account.write(balance + 10).await? {
        Ok(()) => {
            println!("writes {}, over whatever was written meanwhile", balance + 10);
            tell(WRITTEN);
        }
        Err(refusal) => {
            println!("is refused: {refusal}");
            tell(REFUSED);
        }
    }
    match guard.check() {
        Ok(()) => println!("still has the lock, which should not be"),
        Err(lost) => println!("asks its guard at last, which knew: {lost}"),
    }
    Ok(())
}

/// Waits until the first one's lease has ended, then reads and writes.
pub(crate) async fn second(account: &Account, store: &str) -> Result<()> {
    println!("wants the lock, too, and gets it when the first one's lease has ended");
    let guard = acquire(store, "second").await?;
    let account = account.activate(guard.token()).await?;
    let balance = account.read().await?;
    account.write(balance + 50).await??;
    println!("has it with token {}, reads {balance}, writes {}, and is done", guard.token(), balance + 50);
    guard.release().await?;
    Ok(())
}

/// Puts 100 into the account.
pub(crate) async fn fill(place: &str, store: &str) -> Result<()> {
    let guard = acquire(store, "fills the account").await?;
    Account::open(place).await?.activate(guard.token()).await?.write(100).await??;
    guard.release().await?;
    Ok(())
}

/// What is in the account.
pub(crate) async fn balance(place: &str, store: &str) -> Result<i64> {
    let guard = acquire(store, "looks at the account").await?;
    let balance = Account::open(place).await?.activate(guard.token()).await?.read().await?;
    guard.release().await?;
    Ok(balance)
}
