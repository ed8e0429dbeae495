//! Promise 1: a token is strictly larger than every token handed out earlier for its name.

use super::{Harness, SHORT, take};
use fencepost::State;

pub async fn tokens_grow_across_releases(harness: Harness) {
    let connections = [harness.locks().await, harness.locks().await];
    let mut last = None;
    for round in 0..100 {
        let guard = take(&connections[round % 2], "a").await;
        assert!(Some(guard.token()) > last);
        last = Some(guard.token());
        guard.release().await.unwrap();
    }
}

pub async fn tokens_grow_across_dropped_guards(harness: Harness) {
    let locks = harness.locks().await;
    let mut last = None;
    for _ in 0..20 {
        let guard = take(&locks, "a").await;
        assert!(Some(guard.token()) > last);
        last = Some(guard.token());
    }
}

pub async fn tokens_grow_across_reconnects(harness: Harness) {
    let mut last = None;
    for _ in 0..5 {
        let locks = harness.locks().await;
        let guard = take(&locks, "a").await;
        assert!(Some(guard.token()) > last);
        last = Some(guard.token());
        guard.release().await.unwrap();
        locks.close().await;
    }
}

pub async fn tokens_grow_across_abandoned_attempts(harness: Harness) {
    let locks = harness.locks().await;
    let first = take(&locks, "a").await;
    let before = first.token();
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    assert!(locks.lock("a").wait(super::ms(20)).acquire().await.is_err());
    first.release().await.unwrap();
    assert!(take(&locks, "a").await.token() > before);
}

pub async fn the_token_of_a_force_release_lies_between_the_victim_and_the_next(harness: Harness) {
    let locks = harness.locks().await;
    let victim = take(&locks, "a").await;
    let revoked = locks.force_release("a", fencepost::ForceRelease::now("test")).await.unwrap().unwrap();
    assert!(revoked.token > victim.token());
    drop(victim);
    assert!(take(&locks, "a").await.token() > revoked.token);
}

pub async fn tokens_grow_across_expiry(harness: Harness) {
    let locks = harness.locks().await;
    let mut last = None;
    for _ in 0..3 {
        let guard = locks.lock("a").ttl(SHORT).without_renewal().acquire().await.unwrap();
        assert!(Some(guard.token()) > last);
        last = Some(guard.token());
        guard.lost().await;
        // Keep the guard: nothing but the end of the lease frees the lock.
        let next = take(&locks, "a").await;
        assert!(Some(next.token()) > last);
        assert!(matches!(guard.state(), State::Lost(_)));
        last = Some(next.token());
        next.release().await.unwrap();
    }
}
