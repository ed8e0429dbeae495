//! Promise 9: a wake-up is a hint; the re-check is the truth. Lost ones cost time, spare ones cost nothing.

use fencepost::memory::{ManualClock, Store};

use crate::stage::{LONG, SHORT, Stage, bounded, patient, take, until};

on_stores_with_leases!(
    a_waiter_gets_a_lock_that_expired_without_a_word,
    a_waiter_gets_a_lock_that_was_removed_without_a_word,
);
on_every_store!(a_try_that_slips_in_before_a_waiter_breaks_nothing);
on_redis!(a_waiter_survives_the_loss_of_its_subscription, a_waiter_survives_spare_messages);

#[tokio::test]
async fn a_waiter_wakes_at_the_end_of_the_lease_by_its_own_clock() {
    let clock = ManualClock::new();
    let store = Store::with_clock(&clock);
    let locks = store.locks().unwrap();
    let _held = locks.lock("a").ttl(LONG).renew(false).acquire().await.unwrap();
    let waiter = tokio::spawn({
        let lock = locks.lock("a").ttl(LONG);
        async move { lock.acquire().await.unwrap() }
    });
    until("it waits", async || locks.stats().waiting_now == 1).await;
    clock.leap(LONG);
    bounded("the waiter gets it", waiter).await.unwrap().release().await.unwrap();
}

async fn a_waiter_gets_a_lock_that_expired_without_a_word(stage: Stage) {
    let locks = stage.locks().await;
    let held = locks.lock("a").ttl(SHORT).renew(false).acquire().await.unwrap();
    let next = take(&stage.locks().await, "a").await;
    assert!(held.state().is_lost());
    assert!(next.token() > held.token());
}

async fn a_waiter_gets_a_lock_that_was_removed_without_a_word(stage: Stage) {
    let (locks, rival) = (stage.locks().await, stage.locks().await);
    let _held = take(&locks, "a").await;
    let waiter = tokio::spawn({
        let lock = patient(&rival, "a");
        async move { lock.acquire().await.unwrap() }
    });
    until("it waits", async || rival.stats().waiting_now == 1).await;
    stage.remove("a");
    bounded("the waiter gets it", waiter).await.unwrap().release().await.unwrap();
}

async fn a_try_that_slips_in_before_a_waiter_breaks_nothing(stage: Stage) {
    let (locks, rival) = (stage.locks().await, stage.locks().await);
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
    stage.is_clear().await;
}

async fn a_waiter_survives_the_loss_of_its_subscription(stage: Stage) {
    let (locks, rival) = (stage.locks().await, stage.locks().await);
    let held = take(&locks, "a").await;
    let waiter = tokio::spawn({
        let lock = patient(&rival, "a");
        async move { lock.acquire().await.unwrap() }
    });
    until("it waits", async || rival.stats().waiting_now == 1).await;
    stage.server().cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    held.release().await.unwrap();
    bounded("the waiter gets it", waiter).await.unwrap().release().await.unwrap();
}

async fn a_waiter_survives_spare_messages(stage: Stage) {
    let (locks, rival) = (stage.locks().await, stage.locks().await);
    let held = take(&locks, "a").await;
    let waiter = tokio::spawn({
        let lock = patient(&rival, "a");
        async move { lock.acquire().await.unwrap() }
    });
    until("it waits", async || rival.stats().waiting_now == 1).await;
    for channel in stage.server().cli(&["PUBSUB", "CHANNELS"]).lines() {
        for message in ["", "a", "lock:a", "{}", "garbage \u{1}"] {
            stage.server().cli(&["PUBLISH", channel, message]);
        }
    }
    assert_eq!(locks.show("a").await.unwrap().unwrap().owner, Some(held.owner()));
    assert!(!waiter.is_finished());
    held.release().await.unwrap();
    bounded("the waiter gets it", waiter).await.unwrap().release().await.unwrap();
}
