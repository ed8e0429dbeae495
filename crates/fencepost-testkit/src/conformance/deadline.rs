//! Promise 6: the caller's deadline bounds everything.

use super::{Harness, IN_VAIN, LONG, bounded, ms, take};
use fencepost::Error;

pub async fn a_wait_ends_at_its_deadline(harness: Harness) {
    let locks = harness.locks().await;
    let _held = take(&locks, "a").await;
    let error = bounded("the wait ends", locks.lock("a").wait(IN_VAIN).acquire()).await.unwrap_err();
    let Error::Timeout { waited, .. } = error else { panic!("{error}") };
    assert!(waited >= IN_VAIN);
    assert_eq!((locks.stats().timed_out, locks.stats().waiting_now), (1, 0));
}

pub async fn one_deadline_bounds_a_whole_set(harness: Harness) {
    let locks = harness.locks().await;
    let _held = take(&locks, "b").await;
    let error =
        bounded("the wait ends", locks.all(["a", "b", "c"]).wait(IN_VAIN).acquire()).await.unwrap_err();
    assert!(matches!(&error, Error::Timeout { name, .. } if name.as_str() == "b"), "{error}");
    take(&locks, "a").await.release().await.unwrap();
}

pub async fn a_wait_ends_at_its_deadline_though_the_store_stands_still(harness: Harness) {
    let locks = harness.locks().await;
    harness.stop();
    let outcome = bounded("the wait ends", locks.lock("a").ttl(LONG).wait(ms(100)).acquire()).await;
    harness.resume();
    let error = outcome.unwrap_err();
    // Not a timeout: nobody has said that somebody else has the lock.
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    // What the store may have done when it woke up is undone.
    take(&locks, "a").await.release().await.unwrap();
    harness.is_clear().await;
}

pub async fn an_extension_ends_with_the_lease_though_the_store_stands_still(harness: Harness) {
    let locks = harness.locks().await;
    let guard = locks.lock("a").ttl(ms(1500)).without_renewal().acquire().await.unwrap();
    harness.stop();
    let mut error = bounded("the extension ends", guard.extend()).await.unwrap_err();
    // The store's own timeout may come first, and says so.
    while matches!(error, Error::Uncertain { .. }) {
        error = bounded("the extension ends", guard.extend()).await.unwrap_err();
    }
    harness.resume();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
}
