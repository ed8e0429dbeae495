//! Polling by the caller's own schedule, for those who want it.

use super::{Harness, IN_VAIN, LONG, bounded, ms, take, until};
use fencepost::{Error, Retry};

pub async fn a_schedule_that_ends_ends_the_wait(harness: Harness) {
    let locks = harness.locks().await;
    let _held = take(&locks, "a").await;
    let schedules = [
        (Retry::fixed(ms(2)).attempts(3), 3),
        (Retry::exponential(ms(1), ms(4)).jitter().attempts(4), 4),
        (Retry::after([ms(1), ms(2), ms(3)]), 4),
    ];
    let mut tries = 0;
    for (retry, expected) in schedules {
        let error = locks.lock("a").retry(retry).acquire().await.unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }) && error.holder().is_some(), "{error}");
        tries += expected;
        assert_eq!(locks.stats().busy, tries);
    }
}

pub async fn a_schedule_finds_the_lock_when_it_is_free(harness: Harness) {
    let locks = harness.locks().await;
    let held = take(&locks, "a").await;
    let poller = tokio::spawn({
        let lock = locks.lock("a").ttl(LONG).retry(Retry::fixed(ms(5)).jitter());
        async move { lock.acquire().await.unwrap() }
    });
    until("it has tried", async || locks.stats().busy >= 3).await;
    held.release().await.unwrap();
    bounded("it gets the lock", poller).await.unwrap().release().await.unwrap();
}

pub async fn a_deadline_bounds_a_schedule_without_end(harness: Harness) {
    let locks = harness.locks().await;
    let _held = take(&locks, "a").await;
    let lock = locks.lock("a").retry(Retry::fixed(ms(5))).wait(IN_VAIN);
    let error = bounded("the wait ends", lock.acquire()).await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
}
