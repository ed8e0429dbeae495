//! Promise 9: a wake-up is a hint; the re-check is the truth. Lost ones cost time, spare ones cost nothing.

use crate::{LONG, bounded, until};
use fencepost::memory::{ManualClock, Store};

#[tokio::test]
async fn a_waiter_wakes_at_the_end_of_the_lease_by_its_own_clock() {
    let clock = ManualClock::new();
    let store = Store::with_clock(&clock);
    let locks = store.locks().unwrap();
    let _held = locks.lock("a").ttl(LONG).without_renewal().acquire().await.unwrap();
    let waiter = tokio::spawn({
        let lock = locks.lock("a").ttl(LONG);
        async move { lock.acquire().await.unwrap() }
    });
    until("it waits", async || locks.stats().waiting_now == 1).await;
    clock.leap(LONG);
    bounded("the waiter gets it", waiter).await.unwrap().release().await.unwrap();
}
