//! Promise 3: the guard says lost before its lease can run out, from the local clock alone.

use crate::{ms, until};
use fencepost::memory::{Call, ManualClock, Store};
use fencepost::{Error, Locks, Loss, Risk, State};
use std::time::Duration;

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

#[tokio::test]
async fn validity_ends_before_the_store_ends_the_lease() {
    let (clock, store, locks) = on_manual_clock();
    let guard = locks.lock("a").ttl(TTL).without_renewal().acquire().await.unwrap();
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

/// `docs/guide/testing.md` says so.
#[tokio::test(start_paused = true)]
async fn the_paused_clock_of_tokio_moves_no_lease_and_a_manual_one_does() {
    let connected = Locks::connect("memory:").await.unwrap();
    let kept = connected.lock("a").ttl(TTL).without_renewal().acquire().await.unwrap();
    let (clock, _store, locks) = on_manual_clock();
    let moved = locks.lock("a").ttl(TTL).without_renewal().acquire().await.unwrap();
    tokio::time::advance(TTL * 2).await;
    assert!(kept.valid_for() > Some(Duration::ZERO) && moved.valid_for() > Some(Duration::ZERO));
    clock.leap(TTL * 2);
    assert!(moved.state().is_lost() && !kept.state().is_lost());
}
