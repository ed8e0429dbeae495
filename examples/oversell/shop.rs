//! One process with its buyers, who all come at once.

use std::sync::Arc;
use std::time::Duration;

use fencepost::{Locks, fence};
use fencepost_examples::{Result, listen, tell};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::BUYERS;
use crate::shelf::Shelf;

pub(crate) const LOCK: &str = "fencepost-example:teapots";

const LOOK: &str = "SELECT stock FROM shelf WHERE item = 'teapot'";
const TAKE: &str = "UPDATE shelf SET stock = $1 WHERE item = 'teapot'";
const SELL: &str = "INSERT INTO sale (buyer) VALUES ($1)";

/// Everybody looks, then everybody writes down one less than they saw.
pub(crate) async fn without_lock(shelf: Shelf) -> Result<()> {
    let client = Arc::new(shelf.client);
    let looked = at_once(|_| {
        let client = client.clone();
        async move { Ok(client.query_one(LOOK, &[]).await?.get::<_, i32>(0)) }
    });
    let stock = looked.await?.into_iter().min().unwrap_or_default();
    println!("{BUYERS} buyers looked, and each saw {stock} left");
    tell("looked");
    listen()?;
    let bought = at_once(|buyer| {
        let client = client.clone();
        async move {
            client.execute(TAKE, &[&(stock - 1)]).await?;
            client.execute(SELL, &[&format!("buyer {buyer}")]).await?;
            Ok(())
        }
    });
    println!("{} of them bought one", bought.await?.len());
    Ok(())
}

/// One after the other, whichever process they are in.
pub(crate) async fn with_lock(shelf: Shelf, store: &str) -> Result<()> {
    let locks = Locks::connect(store).await?;
    let shelf = Arc::new(Mutex::new(shelf));
    let bought = at_once(|buyer| {
        let (locks, shelf) = (locks.clone(), shelf.clone());
        async move { buy(&locks, &shelf, &format!("buyer {buyer}")).await }
    });
    let bought = bought.await?.into_iter().filter(|bought| *bought).count();
    println!("{bought} of {BUYERS} buyers got one");
    locks.close().await;
    Ok(())
}

async fn buy(locks: &Locks, shelf: &Mutex<Shelf>, buyer: &str) -> Result<bool> {
    let guard = locks.lock(LOCK).note(buyer).acquire().await?;
    let Shelf { client, name } = &mut *shelf.lock().await;
    // The token comes before the first read: from here on the database refuses whoever had this lock before.
    let transaction = fence::postgres::begin(client, name, guard.token()).await?;
    let stock: i32 = transaction.query_one(LOOK, &[]).await?.get(0);
    if stock > 0 {
        think().await;
        transaction.execute(TAKE, &[&(stock - 1)]).await?;
        transaction.execute(SELL, &[&buyer]).await?;
    }
    transaction.commit().await?;
    if stock > 0 {
        println!("{buyer} got one with token {}, {} left", guard.token(), stock - 1);
    }
    guard.release().await?;
    Ok(stock > 0)
}

async fn think() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}

/// Has all buyers do something at the same time, and waits for all of them.
async fn at_once<T, F>(work: impl Fn(i32) -> F) -> Result<Vec<T>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let tasks: JoinSet<_> = (1..=BUYERS).map(work).collect();
    tasks.join_all().await.into_iter().collect()
}
