//! Promise 8: no entry in any store without an end.

use super::{Harness, take};

pub async fn a_hundred_names_leave_no_lock_behind(harness: Harness) {
    let locks = harness.locks().await;
    let mut guards = Vec::new();
    for number in 0..100 {
        guards.push(take(&locks, &format!("name {number}")).await);
    }
    assert_eq!(locks.list("").await.unwrap().holders.len(), 100);
    drop(guards);
    locks.close().await;
    harness.is_clear().await;
}
