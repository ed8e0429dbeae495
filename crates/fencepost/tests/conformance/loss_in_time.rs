//! Promise 3: the guard says lost before its lease can run out, from the local clock alone.

use std::time::Duration;

use fencepost::SupervisorExt as _;
use fencepost::memory::{Call, ManualClock, Store};
use fencepost::{Error, Guard, Locks, Loss, Risk, State};
use fencepost_testkit::Proxy;

use crate::stage::{LONG, SHORT, Stage, becomes_free, bounded, ms, take, until};

on_every_store!(renewal_keeps_a_lock_far_beyond_its_ttl, a_lock_is_given_back_at_its_max_hold);
on_stores_with_leases!(
    a_guard_is_at_risk_and_then_lost_when_the_store_stops,
    a_lost_guard_stays_lost_when_the_store_comes_back,
    a_lock_that_is_not_renewed_is_at_risk_and_then_expired,
    a_removed_lock_is_lost_at_the_next_renewal,
    an_extension_of_a_lost_lock_says_so,
);
// On ZooKeeper a lease is never longer than its session's timeout, which is its ttl.
on_stores!(an_extension_never_shortens: memory, redis, redlock);
on_redis!(
    the_old_guard_is_lost_before_the_next_holder_gets_the_lock,
    a_guard_is_held_again_when_the_server_comes_back_in_time,
    a_guard_survives_a_reset_connection,
);

const TTL: Duration = Duration::from_secs(30);

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn on_manual_clock() -> (ManualClock, Store, Locks) {
    let clock = ManualClock::new();
    let store = Store::with_clock(&clock);
    let locks = store.locks().unwrap();
    (clock, store, locks)
}

/// The first state that is not `Held`, as a watcher is told.
async fn no_longer_held(guard: &Guard) -> State {
    match guard.state() {
        State::Held { .. } => bounded("it is held no longer, or at risk", guard.changed()).await,
        other => other,
    }
}

#[tokio::test]
async fn validity_ends_before_the_store_ends_the_lease() {
    let (clock, store, locks) = on_manual_clock();
    let guard = locks.lock("a").ttl(TTL).renew(false).acquire().await.unwrap();
    clock.leap(TTL - ms(1));
    assert!(guard.state().is_lost());
    assert_eq!(store.held(), 1, "the store still has it");
}

#[tokio::test]
async fn a_pause_longer_than_the_lease_is_noticed_at_the_first_check() {
    let (clock, store, locks) = on_manual_clock();
    let guard = locks.lock("a").ttl(TTL).acquire().await.unwrap();
    clock.advance(secs(100)).await;
    assert!(matches!(guard.state(), State::Held { .. }));
    clock.leap(TTL * 2);
    assert_eq!(guard.state(), State::Lost(Loss::Paused));
    assert!(matches!(guard.release().await, Err(Error::Lost { why: Loss::Paused, .. })));
    assert_eq!(store.held(), 0);
}

#[tokio::test]
async fn a_pause_shorter_than_the_lease_is_survived() {
    let (clock, _store, locks) = on_manual_clock();
    let guard = locks.lock("a").ttl(TTL).acquire().await.unwrap();
    clock.leap(TTL * 9 / 10);
    // At risk, or held again if the keeper was quick.
    guard.check().unwrap();
    until("the renewal is made", async || locks.stats().renewed == 1).await;
    clock.leap(TTL * 9 / 10);
    assert!(!guard.state().is_lost());
}

#[tokio::test]
async fn the_store_back_in_time_means_held_again() {
    let (clock, store, locks) = on_manual_clock();
    let guard = locks.lock("a").ttl(TTL).acquire().await.unwrap();
    store.freeze();
    clock.leap(secs(20));
    assert!(matches!(guard.state(), State::AtRisk { why: Risk::RenewalLate, .. }), "{:?}", guard.state());
    store.thaw();
    until("it is held again", async || matches!(guard.state(), State::Held { .. })).await;
    assert_eq!(locks.stats().lost, Default::default());
}

#[tokio::test]
async fn a_renewal_that_fails_is_tried_again_inside_the_lease() {
    let store = Store::new();
    let locks = store.locks().unwrap();
    let guard = locks.lock("a").ttl(secs(20)).renew_every(ms(50)).acquire().await.unwrap();
    store.fail(Call::Renew, 3);
    until("it failed", async || locks.stats().renewals_failed == 3).await;
    let renewed = locks.stats().renewed;
    until("it is renewed again", async || locks.stats().renewed > renewed).await;
    assert!(matches!(guard.state(), State::Held { .. }));
}

#[tokio::test]
async fn a_loss_that_the_store_pushes_is_known_at_once() {
    let (_clock, store, locks) = on_manual_clock();
    let guard = locks.lock("a").ttl(TTL).acquire().await.unwrap();
    assert!(store.lose("a", Loss::SessionEnded));
    assert_eq!(guard.state(), State::Lost(Loss::SessionEnded));
    assert_eq!(guard.lost().await, Loss::SessionEnded);
    assert_eq!(locks.stats().lost.session_ended, 1);
}

async fn renewal_keeps_a_lock_far_beyond_its_ttl(stage: Stage) {
    let (locks, rival) = (stage.locks().await, stage.locks().await);
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

async fn a_lock_is_given_back_at_its_max_hold(stage: Stage) {
    let locks = stage.locks().await;
    let guard = locks.lock("a").ttl(LONG).max_hold(ms(600)).acquire().await.unwrap();
    let risk = no_longer_held(&guard).await;
    assert!(
        matches!(risk, State::AtRisk { why: Risk::MaxHold, .. } | State::Lost(Loss::MaxHold)),
        "{risk:?}"
    );
    assert_eq!(bounded("it is lost", guard.lost()).await, Loss::MaxHold);
    // The guard lives on; the keeper gave the lock back.
    becomes_free(&stage.locks().await, "a").await;
    assert_eq!(locks.stats().lost.max_hold, 1);
    assert!(matches!(guard.release().await, Err(Error::Lost { why: Loss::MaxHold, .. })));
}

async fn a_guard_is_at_risk_and_then_lost_when_the_store_stops(stage: Stage) {
    let locks = stage.locks().await;
    let guard = locks.lock("a").ttl(secs(6)).acquire().await.unwrap();
    stage.stop();
    let risk = no_longer_held(&guard).await;
    let why = bounded("it is lost", guard.lost()).await;
    stage.resume();
    assert!(matches!(risk, State::AtRisk { .. }), "{risk:?}");
    assert_eq!(why, Loss::Unreachable);
    assert_eq!(guard.valid_for(), Some(Duration::ZERO));
}

async fn a_lost_guard_stays_lost_when_the_store_comes_back(stage: Stage) {
    let locks = stage.locks().await;
    let guard = locks.lock("a").ttl(SHORT).acquire().await.unwrap();
    stage.stop();
    let why = bounded("it is lost", guard.lost()).await;
    stage.resume();
    becomes_free(&stage.locks().await, "a").await;
    assert_eq!(guard.state(), State::Lost(why));
    assert!(matches!(guard.extend().await, Err(Error::Lost { .. })));
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
}

async fn a_lock_that_is_not_renewed_is_at_risk_and_then_expired(stage: Stage) {
    let locks = stage.locks().await;
    let guard = locks.lock("a").ttl(SHORT).renew(false).acquire().await.unwrap();
    let risk = no_longer_held(&guard).await;
    assert!(matches!(risk, State::AtRisk { why: Risk::Ending, .. } | State::Lost(Loss::Expired)), "{risk:?}");
    assert_eq!(bounded("it is lost", guard.lost()).await, Loss::Expired);
    assert_eq!(locks.stats().lost.expired, 1);
}

async fn a_removed_lock_is_lost_at_the_next_renewal(stage: Stage) {
    let locks = stage.locks().await;
    // No renewal may come while it is removed from one node after the other: it would be mended.
    let guard = locks.lock("a").ttl(LONG).renew_every(secs(2)).acquire().await.unwrap();
    stage.remove("a");
    assert_eq!(bounded("it is lost", guard.lost()).await, Loss::Taken);
    // The renewal did not bring it back.
    stage.is_clear().await;
}

async fn an_extension_never_shortens(stage: Stage) {
    let locks = stage.locks().await;
    let guard = locks.lock("a").ttl(TTL).renew(false).acquire().await.unwrap();
    guard.extend_to(LONG).await.unwrap();
    let end = guard.valid_until_boottime();
    guard.extend_to(secs(1)).await.unwrap();
    guard.extend().await.unwrap();
    assert!(guard.valid_until_boottime() >= end);
    let expires_in = locks.show("a").await.unwrap().unwrap().expires_in.unwrap();
    assert!(expires_in > TTL && expires_in >= guard.valid_for().unwrap(), "{expires_in:?}");
}

async fn an_extension_of_a_lost_lock_says_so(stage: Stage) {
    let locks = stage.locks().await;
    let guard = locks.lock("a").ttl(LONG).renew(false).acquire().await.unwrap();
    stage.remove("a");
    let error = guard.extend().await.unwrap_err();
    assert!(matches!(error, Error::Lost { why: Loss::Taken, .. }), "{error}");
    assert!(guard.state().is_lost());
    stage.is_clear().await;
}

async fn the_old_guard_is_lost_before_the_next_holder_gets_the_lock(stage: Stage) {
    let proxy = Proxy::start(stage.server().addr());
    let locks = Locks::connect(&stage.server().url_at(proxy.addr())).await.unwrap();
    let rival = stage.locks().await;
    for _ in 0..3 {
        let guard = locks.lock("a").ttl(SHORT).acquire().await.unwrap();
        proxy.stall();
        let next = take(&rival, "a").await;
        assert!(guard.state().is_lost(), "{:?} while another has it", guard.state());
        proxy.pass();
        next.release().await.unwrap();
    }
}

async fn a_guard_is_held_again_when_the_server_comes_back_in_time(stage: Stage) {
    let locks = stage.locks().await;
    let guard = locks.lock("a").ttl(secs(8)).renew_every(ms(300)).acquire().await.unwrap();
    stage.stop();
    let risk = no_longer_held(&guard).await;
    stage.resume();
    assert!(matches!(risk, State::AtRisk { .. }), "{risk:?}");
    until("it is held again", async || matches!(guard.state(), State::Held { .. })).await;
    assert_eq!(locks.stats().lost, Default::default());
    guard.release().await.unwrap();
}

async fn a_guard_survives_a_reset_connection(stage: Stage) {
    let proxy = Proxy::start(stage.server().addr());
    let locks = Locks::connect(&stage.server().url_at(proxy.addr())).await.unwrap();
    let guard = locks.lock("a").ttl(secs(20)).renew_every(ms(50)).acquire().await.unwrap();
    for _ in 0..3 {
        proxy.reset();
        let before = locks.stats().renewed;
        until("it is renewed over a new connection", async || locks.stats().renewed > before + 1).await;
    }
    assert!(matches!(guard.state(), State::Held { .. }));
    guard.release().await.unwrap();
}
