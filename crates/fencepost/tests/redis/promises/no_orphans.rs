//! Promise 8: no entry in any store without an end.

use super::{Harness, LONG, becomes_free, bounded, patient, take, until};

on_redis!(
    every_key_has_an_end_at_every_moment,
    dropped_waiters_leave_the_queue,
    a_name_of_another_type_is_left_alone,
);

fn endless(harness: &Harness) -> Vec<String> {
    let server = harness.server();
    let mut keys = server.keys();
    keys.retain(|key| server.cli(&["PTTL", key]) == "-1");
    keys
}

async fn every_key_has_an_end_at_every_moment(harness: Harness) {
    let (locks, rival) = (harness.locks().await, harness.locks().await);
    let none = Vec::<String>::new();
    let held = take(&locks, "a").await;
    assert_eq!(endless(&harness), none);
    let waiter = tokio::spawn({
        let lock = patient(&rival, "a");
        async move { lock.acquire().await.unwrap() }
    });
    until("it waits", async || rival.stats().waiting_now == 1).await;
    assert_eq!(endless(&harness), none);
    held.extend().await.unwrap();
    assert_eq!(endless(&harness), none);
    held.release().await.unwrap();
    let held = bounded("the waiter gets it", waiter).await.unwrap();
    assert_eq!(endless(&harness), none);
    let handle = held.detach().await.unwrap();
    assert_eq!(endless(&harness), none);
    locks.attach(&handle).await.unwrap().release().await.unwrap();
    let _held = take(&locks, "b").await;
    locks.force_release("b", "test").await.unwrap();
    assert_eq!(endless(&harness), none);
}

async fn dropped_waiters_leave_the_queue(harness: Harness) {
    let (locks, rival) = (harness.locks().await, harness.locks().await);
    let held = take(&locks, "a").await;
    let waiters: Vec<_> = (0..10)
        .map(|_| {
            let lock = patient(&rival, "a");
            tokio::spawn(async move { lock.acquire().await.map(drop) })
        })
        .collect();
    until("they wait", async || rival.stats().waiting_now == 10).await;
    let queue = || harness.server().keys_like("{lock:a}:waiting");
    until("they are in the queue", async || !queue().is_empty()).await;
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
    until("they are gone", async || rival.stats().waiting_now == 0).await;
    until("the queue is empty", async || queue().is_empty()).await;
    held.release().await.unwrap();
    becomes_free(&locks, "a").await;
    harness.is_clear().await;
    let only_the_counter = |keys: Vec<String>| keys.len() == 1 && keys[0].starts_with("{lock:a}:fence");
    until("only the counter is left", async || only_the_counter(harness.server().keys())).await;
}

async fn a_name_of_another_type_is_left_alone(harness: Harness) {
    let locks = harness.locks().await;
    harness.server().cli(&["RPUSH", "lock:a", "not a lock"]);
    assert!(locks.lock("a").ttl(LONG).try_acquire().await.unwrap().is_none());
    let holder = locks.show("a").await.unwrap().unwrap();
    assert!(holder.owner.is_none() && holder.to_string().contains("foreign"), "{holder}");
    assert_eq!(harness.server().cli(&["LRANGE", "lock:a", "0", "-1"]), "not a lock");
}
