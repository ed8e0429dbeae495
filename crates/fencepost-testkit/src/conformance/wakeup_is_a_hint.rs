//! Promise 9: a wake-up is a hint; the re-check is the truth. Lost ones cost time, spare ones cost nothing.

use super::{Harness, LONG, SHORT, bounded, patient, take, until};

pub async fn a_waiter_gets_a_lock_that_expired_without_a_word(harness: Harness) {
    let locks = harness.locks().await;
    let held = locks.lock("a").ttl(SHORT).without_renewal().acquire().await.unwrap();
    let next = take(&harness.locks().await, "a").await;
    assert!(held.state().is_lost());
    assert!(next.token() > held.token());
}

pub async fn a_waiter_gets_a_lock_that_was_removed_without_a_word(harness: Harness) {
    let (locks, rival) = (harness.locks().await, harness.locks().await);
    let _held = take(&locks, "a").await;
    let waiter = tokio::spawn({
        let lock = patient(&rival, "a");
        async move { lock.acquire().await.unwrap() }
    });
    until("it waits", async || rival.stats().waiting_now == 1).await;
    harness.remove("a");
    bounded("the waiter gets it", waiter).await.unwrap().release().await.unwrap();
}

pub async fn a_try_that_slips_in_before_a_waiter_breaks_nothing(harness: Harness) {
    let (locks, rival) = (harness.locks().await, harness.locks().await);
    let held = take(&locks, "a").await;
    let waiter = tokio::spawn({
        let lock = patient(&rival, "a");
        async move { lock.acquire().await.unwrap() }
    });
    until("it waits", async || rival.stats().waiting_now == 1).await;
    held.release().await.unwrap();
    for _ in 0..20 {
        if let Some(guard) = locks.lock("a").ttl(LONG).try_acquire().await.unwrap() {
            assert_eq!(locks.show("a").await.unwrap().unwrap().owner, Some(guard.owner()));
            guard.release().await.unwrap();
        }
    }
    bounded("the waiter gets it", waiter).await.unwrap().release().await.unwrap();
    harness.is_clear().await;
}
