//! Promise 4: one identity per attempt, and everything conditional on it.

use super::{Harness, LONG, SHORT, bounded, take};
use fencepost::{Error, Guard, Locks, Loss};
use std::collections::HashSet;

pub async fn every_acquisition_has_an_owner_of_its_own(harness: Harness) {
    let locks = harness.locks().await;
    let mut owners = HashSet::new();
    for _ in 0..10 {
        let guard = take(&locks, "a").await;
        assert_eq!(locks.show("a").await.unwrap().unwrap().owner, Some(guard.owner()));
        assert!(owners.insert(guard.owner()));
        guard.release().await.unwrap();
    }
}

/// A guard whose lease is over, and the one after it.
async fn late_and_next(locks: &Locks) -> (Guard, Guard) {
    let late = locks.lock("a").ttl(SHORT).without_renewal().acquire().await.unwrap();
    bounded("the lease ends", late.lost()).await;
    let next = take(locks, "a").await;
    (late, next)
}

async fn still_holds(locks: &Locks, guard: Guard) {
    assert_eq!(locks.show("a").await.unwrap().unwrap().owner, Some(guard.owner()));
    guard.extend().await.unwrap();
    guard.release().await.unwrap();
}

pub async fn a_late_release_does_not_touch_the_next_holder(harness: Harness) {
    let locks = harness.locks().await;
    let (late, next) = late_and_next(&locks).await;
    assert!(matches!(late.release().await, Err(Error::Lost { why: Loss::Expired, .. })));
    still_holds(&locks, next).await;
}

pub async fn a_late_drop_does_not_touch_the_next_holder(harness: Harness) {
    let locks = harness.locks().await;
    let (late, next) = late_and_next(&locks).await;
    drop(late);
    // Waits for releases under way.
    locks.clone().close().await;
    still_holds(&harness.locks().await, next).await;
}

pub async fn a_late_extension_does_not_touch_the_next_holder(harness: Harness) {
    let locks = harness.locks().await;
    let (late, next) = late_and_next(&locks).await;
    assert!(matches!(late.extend_to(LONG * 2).await, Err(Error::Lost { .. })));
    let holder = locks.show("a").await.unwrap().unwrap();
    assert!(holder.expires_in.unwrap() <= LONG);
    still_holds(&locks, next).await;
}

pub async fn an_extension_never_creates_a_lock_again(harness: Harness) {
    let locks = harness.locks().await;
    let guard = locks.lock("a").ttl(LONG).without_renewal().acquire().await.unwrap();
    harness.remove("a");
    assert!(matches!(guard.extend().await, Err(Error::Lost { .. })));
    assert_eq!(locks.show("a").await.unwrap(), None);
    drop(guard);
    harness.is_clear().await;
}
