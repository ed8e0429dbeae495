//! Promise 1: a token is strictly larger than every token handed out earlier for its name.

use super::{Harness, becomes_free, take};

on_redis!(
    tokens_grow_when_the_server_restarts_empty,
    tokens_grow_when_the_server_restarts_from_an_old_dump,
    tokens_grow_when_the_counter_was_collected,
    a_counter_outlives_its_lock_but_not_for_ever,
);

async fn tokens_grow_when_the_server_restarts_empty(mut harness: Harness) {
    let locks = harness.locks().await;
    let before = take(&locks, "a").await.token();
    becomes_free(&locks, "a").await;
    harness.server_mut().restart_empty();
    let locks = harness.locks().await;
    assert!(take(&locks, "a").await.token() > before);
}

async fn tokens_grow_when_the_server_restarts_from_an_old_dump(mut harness: Harness) {
    let locks = harness.locks().await;
    becomes_free(&locks, "a").await;
    let old = harness.server().snapshot();
    let mut last = None;
    for _ in 0..50 {
        let guard = take(&locks, "a").await;
        last = Some(guard.token());
        guard.release().await.unwrap();
    }
    harness.server_mut().restart_from(&old);
    let locks = harness.locks().await;
    let guard = take(&locks, "a").await;
    assert!(Some(guard.token()) > last, "{:?} after {last:?}", guard.token());
}

/// The key that counts the tokens of `a`.
fn counter(harness: &Harness) -> String {
    let keys = harness.server().keys_like("{lock:a}:fence*");
    assert_eq!(keys.len(), 1, "{keys:?}");
    keys[0].clone()
}

async fn tokens_grow_when_the_counter_was_collected(harness: Harness) {
    let locks = harness.locks().await;
    let mut last = None;
    for _ in 0..20 {
        let guard = take(&locks, "a").await;
        assert!(Some(guard.token()) > last);
        last = Some(guard.token());
        guard.release().await.unwrap();
        harness.server().cli(&["DEL", &counter(&harness)]);
    }
}

async fn a_counter_outlives_its_lock_but_not_for_ever(harness: Harness) {
    let locks = harness.locks().await;
    becomes_free(&locks, "a").await;
    let left: u64 = harness.server().cli(&["PTTL", &counter(&harness)]).parse().unwrap();
    let hour = 3_600_000;
    assert!((hour / 2..=hour).contains(&left), "{left}");
}
