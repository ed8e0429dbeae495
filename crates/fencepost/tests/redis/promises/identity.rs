//! Promise 4: one identity per attempt, and everything conditional on it.

use super::{Harness, LONG, bounded};
use fencepost::{Error, Loss};

on_redis!(a_release_leaves_a_foreign_value_alone, a_renewal_leaves_a_foreign_value_alone,);

async fn a_release_leaves_a_foreign_value_alone(harness: Harness) {
    let locks = harness.locks().await;
    let guard = locks.lock("a").ttl(LONG).without_renewal().acquire().await.unwrap();
    harness.server().cli(&["SET", "lock:a", "somebody else"]);
    assert!(matches!(guard.release().await, Err(Error::Lost { why: Loss::Taken, .. })));
    assert_eq!(harness.server().cli(&["GET", "lock:a"]), "somebody else");
}

async fn a_renewal_leaves_a_foreign_value_alone(harness: Harness) {
    let locks = harness.locks().await;
    let guard = locks.lock("a").ttl(LONG).renew_every(super::ms(50)).acquire().await.unwrap();
    harness.server().cli(&["SET", "lock:a", "somebody else", "PX", "500000"]);
    assert_eq!(bounded("it is lost", guard.lost()).await, Loss::Taken);
    assert_eq!(harness.server().cli(&["GET", "lock:a"]), "somebody else");
    let left: i64 = harness.server().cli(&["PTTL", "lock:a"]).parse().unwrap();
    assert!(left <= 500_000, "{left}");
}
