//! Promise 9: a wake-up is a hint; the re-check is the truth. Lost ones cost time, spare ones cost nothing.

use super::{Harness, bounded, patient, take, until};

on_redis!(a_waiter_survives_the_loss_of_its_subscription, a_waiter_survives_spare_messages,);

async fn a_waiter_survives_the_loss_of_its_subscription(harness: Harness) {
    let (locks, rival) = (harness.locks().await, harness.locks().await);
    let held = take(&locks, "a").await;
    let waiter = tokio::spawn({
        let lock = patient(&rival, "a");
        async move { lock.acquire().await.unwrap() }
    });
    until("it waits", async || rival.stats().waiting_now == 1).await;
    harness.server().cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    held.release().await.unwrap();
    bounded("the waiter gets it", waiter).await.unwrap().release().await.unwrap();
}

async fn a_waiter_survives_spare_messages(harness: Harness) {
    let (locks, rival) = (harness.locks().await, harness.locks().await);
    let held = take(&locks, "a").await;
    let waiter = tokio::spawn({
        let lock = patient(&rival, "a");
        async move { lock.acquire().await.unwrap() }
    });
    until("it waits", async || rival.stats().waiting_now == 1).await;
    for channel in harness.server().cli(&["PUBSUB", "CHANNELS"]).lines() {
        for message in ["", "a", "lock:a", "{}", "garbage \u{1}"] {
            harness.server().cli(&["PUBLISH", channel, message]);
        }
    }
    assert_eq!(locks.show("a").await.unwrap().unwrap().owner, Some(held.owner()));
    assert!(!waiter.is_finished());
    held.release().await.unwrap();
    bounded("the waiter gets it", waiter).await.unwrap().release().await.unwrap();
}
