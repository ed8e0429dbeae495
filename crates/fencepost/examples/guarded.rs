//! A holder is frozen past its lease, another one takes over and writes, the first wakes up and is refused.
//!
//! Runs on `memory:` with a clock that the example moves, so that it needs no server and no patience:
//! `cargo run -p fencepost --example guarded`

#![allow(clippy::print_stdout)]

use std::time::Duration;

use fencepost::FencingToken;
use fencepost::memory::{ManualClock, Store};

/// What the lock protects: it remembers the largest token it has seen and refuses smaller ones.
#[derive(Default)]
struct Ledger {
    highest: Option<FencingToken>,
    balance: i64,
}

impl Ledger {
    /// A new holder records its token before it reads anything.
    fn activate(&mut self, token: FencingToken) -> Result<i64, String> {
        self.check(token)?;
        Ok(self.balance)
    }

    fn write(&mut self, token: FencingToken, balance: i64) -> Result<(), String> {
        self.check(token)?;
        self.balance = balance;
        Ok(())
    }

    fn check(&mut self, token: FencingToken) -> Result<(), String> {
        match self.highest {
            Some(highest) if token < highest => Err(format!("token {token} is stale, {highest} was seen")),
            _ => {
                self.highest = Some(token);
                Ok(())
            }
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = ManualClock::new();
    let locks = Store::with_clock(&clock).locks()?;
    let lock = locks.lock("account:7").ttl(Duration::from_secs(10));
    let mut ledger = Ledger::default();

    let first = lock.acquire().await?;
    let read = ledger.activate(first.token())?;
    println!("first holder:  token {}, reads {read}", first.token());

    clock.leap(Duration::from_secs(60));
    println!("               ... and is frozen for a minute");

    let second = lock.acquire().await?;
    let balance = ledger.activate(second.token())?;
    ledger.write(second.token(), balance + 100)?;
    println!("second holder: token {}, writes {}", second.token(), balance + 100);
    second.release().await?;

    match ledger.write(first.token(), read + 1) {
        Ok(()) => println!("first holder:  wrote over it!"),
        Err(refusal) => println!("first holder:  refused: {refusal}"),
    }
    println!("               and its guard says: {:?}", first.state());
    assert_eq!(ledger.balance, 100);
    Ok(())
}
