//! Looks at the books when all is done: every order has one payment.

use std::path::Path;

use fencepost::Locks;
use fencepost_examples::Result;

use crate::worker::{lock_name, open_ledger};

pub(crate) async fn check(orders: &[String], books: &Path, store: &str) -> Result<()> {
    let locks = Locks::connect(store).await?;
    let ledger = open_ledger(books).await?;
    let statement = std::fs::read_to_string(books.join("statement"))?;
    for order in orders {
        // Whoever reads a fenced resource comes with a token of its own.
        let guard = locks.lock(lock_name(order)).acquire().await?;
        let entry = ledger.resource(order).activate(guard.token()).await?.read().await?.unwrap_or_default();
        guard.release().await?;
        let payments = statement.lines().filter(|line| line == order).count();
        println!("  {order}: payments: {payments}; the ledger says: {}", String::from_utf8_lossy(&entry));
        if payments != 1 {
            return Err(format!("{order} was paid for {payments} times").into());
        }
    }
    println!("Each order was paid for once.");
    locks.close().await;
    Ok(())
}
