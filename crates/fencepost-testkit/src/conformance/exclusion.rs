//! A lock is held by one at a time.

use super::{Harness, LONG, becomes_free, bounded, patient, take, until};
use fencepost::Wait;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub async fn only_one_of_fifty_tasks_is_inside_at_a_time(harness: Harness) {
    let connections = [harness.locks().await, harness.locks().await];
    let (inside, counter) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let tasks = (0..50).map(|task| {
        let lock = patient(&connections[task % 2], "counter");
        let (inside, counter) = (inside.clone(), counter.clone());
        tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            assert!(!inside.swap(true, Ordering::SeqCst), "two inside");
            // Not atomic on purpose: only exclusion keeps the sum right.
            let before = counter.load(Ordering::SeqCst);
            tokio::task::yield_now().await;
            counter.store(before + 1, Ordering::SeqCst);
            inside.store(false, Ordering::SeqCst);
            let token = guard.token();
            guard.release().await.unwrap();
            (before, token)
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let mut grants = Vec::new();
    for task in tasks {
        grants.push(bounded("all tasks end", task).await.unwrap());
    }
    assert_eq!(counter.load(Ordering::SeqCst), 50);
    grants.sort_unstable_by_key(|(order, _)| *order);
    assert!(grants.is_sorted_by(|(_, one), (_, next)| one < next), "tokens out of order: {grants:?}");
    harness.is_clear().await;
}

pub async fn a_held_lock_is_none_for_a_try_and_free_after_its_release(harness: Harness) {
    let locks = harness.locks().await;
    let lock = locks.lock("a").ttl(LONG);
    let guard = lock.try_acquire().await.unwrap().unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    let guard = lock.try_acquire().await.unwrap().unwrap();
    guard.release().await.unwrap();
}

pub async fn one_connection_excludes_another(harness: Harness) {
    let (one, other) = (harness.locks().await, harness.locks().await);
    let guard = take(&one, "a").await;
    assert!(other.lock("a").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    becomes_free(&other, "a").await;
}

pub async fn a_waiter_gets_the_lock_when_it_is_released(harness: Harness) {
    let (one, other) = (harness.locks().await, harness.locks().await);
    let guard = take(&one, "a").await;
    let waiter = tokio::spawn({
        let lock = other.lock("a").ttl(LONG).wait(Wait::Forever);
        async move { lock.acquire().await.unwrap() }
    });
    until("the waiter waits", async || other.stats().waiting_now == 1).await;
    let first = guard.token();
    guard.release().await.unwrap();
    let guard = bounded("the waiter gets the lock", waiter).await.unwrap();
    assert!(guard.token() > first);
    guard.release().await.unwrap();
}

pub async fn a_waiter_gets_the_lock_when_the_guard_is_dropped(harness: Harness) {
    let locks = harness.locks().await;
    let guard = take(&locks, "a").await;
    let waiter = tokio::spawn({
        let lock = patient(&locks, "a");
        async move { lock.acquire().await.unwrap() }
    });
    until("the waiter waits", async || locks.stats().waiting_now == 1).await;
    drop(guard);
    bounded("the waiter gets the lock", waiter).await.unwrap().release().await.unwrap();
}

pub async fn different_names_do_not_exclude_each_other(harness: Harness) {
    let locks = harness.locks().await;
    let guards = [take(&locks, "a").await, take(&locks, "b").await, take(&locks, "a:b").await];
    assert!(guards.iter().all(|guard| guard.check().is_ok()));
}
