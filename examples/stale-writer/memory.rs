//! A value in memory. No other process could see it, so both holders are in this one, and the freeze is a
//! clock that leaps: for the guard that is the same. This is also how to test such a thing in code of your
//! own.

use std::time::Duration;

use fencepost::fence::Fenced;
use fencepost::memory::{ManualClock, Store};
use fencepost_examples::Result;

pub(crate) async fn show() -> Result<()> {
    let clock = ManualClock::new();
    let locks = Store::with_clock(&clock).locks()?;
    let lock = locks.lock("account").ttl(Duration::from_secs(10));
    let account = Fenced::new("account", 100);

    let guard = lock.acquire().await?;
    let first = account.activate(guard.token())?;
    let balance = first.read(|balance| *balance)?;
    println!(
        "  first: has the lock with token {}, reads {balance}, and wants to write {}",
        guard.token(),
        balance + 10
    );

    clock.leap(Duration::from_secs(60));
    println!("  first is frozen here for a minute.");
    let next = lock.acquire().await?;
    let second = account.activate(next.token())?;
    second.write(|balance| *balance += 50)?;
    println!(
        "  second: has it with token {}, reads {balance}, writes {}, and is done",
        next.token(),
        balance + 50
    );
    next.release().await?;

    println!("  first wakes up, and goes on where it was.");
    match first.write(|now| *now = balance + 10) {
        Ok(()) => return Err("this should have been refused".into()),
        Err(refusal) => println!("  first: is refused: {refusal}"),
    }
    if let Err(lost) = guard.check() {
        println!("  first: asks its guard at last, which knew: {lost}");
    }
    println!("  In the end {} are in the account: nothing was lost.", account.into_inner());
    Ok(())
}
