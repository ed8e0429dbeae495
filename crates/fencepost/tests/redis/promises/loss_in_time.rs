//! Promise 3: the guard says lost before its lease can run out, from the local clock alone.

use super::{Harness, SHORT, bounded, ms, take, until};
use fencepost::{Guard, Locks, State};
use fencepost_testkit::Proxy;
use std::time::Duration;

on_redis!(
    the_old_guard_is_lost_before_the_next_holder_gets_the_lock,
    a_guard_is_held_again_when_the_server_comes_back_in_time,
    a_guard_survives_a_reset_connection,
);

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

async fn the_old_guard_is_lost_before_the_next_holder_gets_the_lock(harness: Harness) {
    let proxy = Proxy::start(harness.server().addr());
    let locks = Locks::connect(&harness.server().url_at(proxy.addr())).await.unwrap();
    let rival = harness.locks().await;
    for _ in 0..3 {
        let guard = locks.lock("a").ttl(SHORT).acquire().await.unwrap();
        proxy.stall();
        let next = take(&rival, "a").await;
        assert!(guard.state().is_lost(), "{:?} while another has it", guard.state());
        proxy.pass();
        next.release().await.unwrap();
    }
}

async fn a_guard_is_held_again_when_the_server_comes_back_in_time(harness: Harness) {
    let locks = harness.locks().await;
    let guard = locks.lock("a").ttl(secs(8)).renew_every(ms(300)).acquire().await.unwrap();
    harness.stop();
    let risk = no_longer_held(&guard).await;
    harness.resume();
    assert!(matches!(risk, State::AtRisk { .. }), "{risk:?}");
    until("it is held again", async || matches!(guard.state(), State::Held { .. })).await;
    assert_eq!(locks.stats().lost, Default::default());
    guard.release().await.unwrap();
}

async fn a_guard_survives_a_reset_connection(harness: Harness) {
    let proxy = Proxy::start(harness.server().addr());
    let locks = Locks::connect(&harness.server().url_at(proxy.addr())).await.unwrap();
    let guard = locks.lock("a").ttl(secs(20)).renew_every(ms(50)).acquire().await.unwrap();
    for _ in 0..3 {
        proxy.reset();
        let before = locks.stats().renewed;
        until("it is renewed over a new connection", async || locks.stats().renewed > before + 1).await;
    }
    assert!(matches!(guard.state(), State::Held { .. }));
    guard.release().await.unwrap();
}
