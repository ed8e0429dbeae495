//! Promise 2: validity starts when the request was sent; an answer that did not come grants nothing.

use crate::{bounded, until};
use fencepost::Error;
use fencepost::memory::{Call, ManualClock, Store};
use std::time::Duration;

const TTL: Duration = Duration::from_secs(30);

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test]
async fn the_time_an_answer_took_is_not_valid_time() {
    let clock = ManualClock::new();
    let store = Store::with_clock(&clock);
    let locks = store.locks().unwrap();
    store.delay(Call::Acquire, secs(10));
    let acquire = tokio::spawn({
        let lock = locks.lock("a").ttl(TTL).without_renewal();
        async move { lock.acquire().await }
    });
    until("the store has granted it", async || store.held() == 1).await;
    clock.leap(secs(10));
    let guard = bounded("the answer comes", acquire).await.unwrap().unwrap();
    let left = guard.valid_for().unwrap();
    assert!(left < secs(20) && left > secs(19), "{left:?}");
}

#[tokio::test]
async fn an_answer_that_took_longer_than_the_ttl_grants_nothing() {
    let clock = ManualClock::new();
    let store = Store::with_clock(&clock);
    let locks = store.locks().unwrap();
    store.delay(Call::Acquire, TTL);
    let acquire = tokio::spawn({
        let lock = locks.lock("a").ttl(TTL);
        async move { lock.acquire().await }
    });
    until("the store has granted it", async || store.held() == 1).await;
    clock.leap(TTL);
    let error = bounded("the answer comes", acquire).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    until("nothing is held", async || store.held() == 0).await;
}

#[tokio::test]
async fn a_renewal_counts_from_its_send_too() {
    let clock = ManualClock::new();
    let store = Store::with_clock(&clock);
    let locks = store.locks().unwrap();
    let guard = locks.lock("a").ttl(TTL).acquire().await.unwrap();
    store.delay(Call::Renew, secs(5));
    clock.leap(secs(10));
    let renewed = async || locks.show("a").await.unwrap().unwrap().expires_in == Some(TTL);
    until("the store has renewed it", renewed).await;
    clock.leap(secs(5));
    until("the renewal is answered", async || locks.stats().renewed == 1).await;
    let left = guard.valid_for().unwrap();
    assert!(left < secs(25) && left > secs(24), "{left:?}");
}

#[tokio::test]
async fn an_unanswered_extension_leaves_the_old_validity() {
    let clock = ManualClock::new();
    let store = Store::with_clock(&clock);
    let locks = store.locks().unwrap();
    let guard = locks.lock("a").ttl(TTL).without_renewal().acquire().await.unwrap();
    let before = guard.valid_for();
    store.lose_answers(Call::Renew, 1);
    let error = guard.extend_to(secs(300)).await.unwrap_err();
    assert!(matches!(error, Error::Uncertain { .. }), "{error}");
    assert_eq!(guard.valid_for(), before);
    // The store did act; a later answer may count.
    assert!(guard.extend_to(secs(300)).await.unwrap() > before);
}
