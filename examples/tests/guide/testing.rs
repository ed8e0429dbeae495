//! Tests of code that uses locks.

use std::time::Duration;

use fencepost::memory::{Call, ManualClock, Store};
use fencepost::{Error, Loss, State};

#[tokio::test]
async fn a_frozen_worker_learns_that_it_lost_the_lock() {
    let clock = ManualClock::new();
    let store = Store::with_clock(&clock);
    let locks = store.locks().unwrap();
    let guard = locks.lock("job").ttl(Duration::from_secs(30)).acquire().await.unwrap();

    clock.advance(Duration::from_secs(600)).await; // time passes, renewals are made
    assert!(matches!(guard.state(), State::Held { .. }));

    clock.leap(Duration::from_secs(60)); // the process was frozen for a minute
    assert_eq!(guard.state(), State::Lost(Loss::Paused));
}

#[tokio::test]
async fn what_fails_on_command() {
    let store = Store::new();
    let locks = store.locks().unwrap();
    store.fail(Call::Acquire, 1); // the next call has no effect
    let error = locks.lock("job").try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }));

    let guard = locks.lock("job").acquire().await.unwrap();
    store.lose("job", Loss::Taken); // as a push from the store would tell
    assert_eq!(guard.lost().await, Loss::Taken);
    assert_eq!(store.held(), 0); // nothing is left behind
}
