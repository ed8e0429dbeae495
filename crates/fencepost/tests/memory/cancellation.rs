//! Promise 5: a future dropped at any await leaves nothing behind, and so does a dropped guard or runtime.
//!
//! Each test polls a future n times and drops it, for every n until it completes. Leases are long here: what
//! becomes free did so because it was given back.

use crate::{LONG, until};
use fencepost::State;
use fencepost::memory::{ManualClock, Store};
use std::pin::pin;
use std::task::Poll;

#[tokio::test]
async fn a_dropped_extension_leaves_renewal_to_the_keeper() {
    let clock = ManualClock::new();
    let store = Store::with_clock(&clock);
    let locks = store.locks().unwrap();
    let guard = locks.lock("a").ttl(LONG).acquire().await.unwrap();
    store.freeze();
    {
        let mut extend = pin!(guard.extend());
        let polled = std::future::poll_fn(|context| Poll::Ready(extend.as_mut().poll(context).is_pending()));
        assert!(polled.await);
    }
    // A renewal falls due while the extension that nobody waits for is still under way.
    clock.leap(LONG / 3);
    store.thaw();
    until("the lock is renewed", async || locks.stats().renewed > 0).await;
    assert!(matches!(guard.state(), State::Held { .. }));
}
