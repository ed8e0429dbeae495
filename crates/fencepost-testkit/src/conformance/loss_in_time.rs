//! Promise 3: the guard says lost before its lease can run out, from the local clock alone.

use super::{Harness, LONG, SHORT, becomes_free, bounded, ms, until};
use fencepost::SupervisorExt as _;
use fencepost::{Error, Guard, Loss, Risk, State};
use std::time::Duration;

const TTL: Duration = Duration::from_secs(30);

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The first state that is not `Held`, as a watcher is told.
async fn no_longer_held(guard: &Guard) -> State {
    match guard.state() {
        State::Held { .. } => bounded("it is held no longer, or at risk", guard.changed()).await,
        other => other,
    }
}

pub async fn renewal_keeps_a_lock_far_beyond_its_ttl(harness: Harness) {
    let (locks, rival) = (harness.locks().await, harness.locks().await);
    let guard = locks.lock("a").ttl(secs(2)).renew_every(ms(100)).acquire().await.unwrap();
    let until_before = guard.valid_until_boottime();
    // Sixty of these take three times the ttl.
    until("it was renewed often", async || locks.stats().renewed >= 60).await;
    until("it is held", async || matches!(guard.state(), State::Held { .. })).await;
    assert_eq!(locks.stats().lost, Default::default());
    assert!(until_before.is_none() || guard.valid_until_boottime() > until_before);
    assert!(rival.lock("a").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
}

pub async fn a_lock_is_given_back_at_its_max_hold(harness: Harness) {
    let locks = harness.locks().await;
    let guard = locks.lock("a").ttl(LONG).max_hold(ms(600)).acquire().await.unwrap();
    let risk = no_longer_held(&guard).await;
    assert!(
        matches!(risk, State::AtRisk { why: Risk::MaxHold, .. } | State::Lost(Loss::MaxHold)),
        "{risk:?}"
    );
    assert_eq!(bounded("it is lost", guard.lost()).await, Loss::MaxHold);
    // The guard lives on; the keeper gave the lock back.
    becomes_free(&harness.locks().await, "a").await;
    assert_eq!(locks.stats().lost.max_hold, 1);
    assert!(matches!(guard.release().await, Err(Error::Lost { why: Loss::MaxHold, .. })));
}

pub async fn a_guard_is_at_risk_and_then_lost_when_the_store_stops(harness: Harness) {
    let locks = harness.locks().await;
    let guard = locks.lock("a").ttl(secs(6)).acquire().await.unwrap();
    harness.stop();
    let risk = no_longer_held(&guard).await;
    let why = bounded("it is lost", guard.lost()).await;
    harness.resume();
    assert!(matches!(risk, State::AtRisk { .. }), "{risk:?}");
    assert_eq!(why, Loss::Unreachable);
    assert_eq!(guard.valid_for(), Some(Duration::ZERO));
}

pub async fn a_lost_guard_stays_lost_when_the_store_comes_back(harness: Harness) {
    let locks = harness.locks().await;
    let guard = locks.lock("a").ttl(SHORT).acquire().await.unwrap();
    harness.stop();
    let why = bounded("it is lost", guard.lost()).await;
    harness.resume();
    becomes_free(&harness.locks().await, "a").await;
    assert_eq!(guard.state(), State::Lost(why));
    assert!(matches!(guard.extend().await, Err(Error::Lost { .. })));
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
}

pub async fn a_lock_that_is_not_renewed_is_at_risk_and_then_expired(harness: Harness) {
    let locks = harness.locks().await;
    let guard = locks.lock("a").ttl(SHORT).without_renewal().acquire().await.unwrap();
    let risk = no_longer_held(&guard).await;
    assert!(matches!(risk, State::AtRisk { why: Risk::Ending, .. } | State::Lost(Loss::Expired)), "{risk:?}");
    assert_eq!(bounded("it is lost", guard.lost()).await, Loss::Expired);
    assert_eq!(locks.stats().lost.expired, 1);
}

pub async fn a_removed_lock_is_lost_at_the_next_renewal(harness: Harness) {
    let locks = harness.locks().await;
    // No renewal may come while it is removed from one node after the other: it would be mended.
    let guard = locks.lock("a").ttl(LONG).renew_every(secs(2)).acquire().await.unwrap();
    harness.remove("a");
    assert_eq!(bounded("it is lost", guard.lost()).await, Loss::Taken);
    // The renewal did not bring it back.
    harness.is_clear().await;
}

pub async fn an_extension_never_shortens(harness: Harness) {
    let locks = harness.locks().await;
    let guard = locks.lock("a").ttl(TTL).without_renewal().acquire().await.unwrap();
    match guard.extend_to(LONG).await {
        Ok(_) => {}
        // Where a lease never gets longer than its ttl.
        Err(error) => {
            assert!(matches!(error, Error::Invalid { .. } | Error::Unsupported { .. }), "{error}");
            return guard.check().unwrap();
        }
    }
    let end = guard.valid_until_boottime();
    guard.extend_to(secs(1)).await.unwrap();
    guard.extend().await.unwrap();
    assert!(guard.valid_until_boottime() >= end);
    let expires_in = locks.show("a").await.unwrap().unwrap().expires_in.unwrap();
    assert!(expires_in > TTL && expires_in >= guard.valid_for().unwrap(), "{expires_in:?}");
}

pub async fn an_extension_of_a_lost_lock_says_so(harness: Harness) {
    let locks = harness.locks().await;
    let guard = locks.lock("a").ttl(LONG).without_renewal().acquire().await.unwrap();
    harness.remove("a");
    let error = guard.extend().await.unwrap_err();
    assert!(matches!(error, Error::Lost { why: Loss::Taken, .. }), "{error}");
    assert!(guard.state().is_lost());
    harness.is_clear().await;
}
