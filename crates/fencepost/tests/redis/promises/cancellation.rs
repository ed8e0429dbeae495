//! Promise 5: a future dropped at any await leaves nothing behind, and so does a dropped guard or runtime.
//!
//! Each test polls a future n times and drops it, for every n until it completes. Leases are long here: what
//! becomes free did so because it was given back.

use super::{Harness, patient, take, until};
use fencepost::Locks;
use fencepost_testkit::Proxy;

on_redis!(
    an_acquire_dropped_before_its_answer_is_undone,
    an_acquire_dropped_before_its_answer_is_undone_over_a_new_connection,
    a_guard_dropped_while_the_server_is_out_of_reach_releases_later,
);

/// Starts an acquire over `proxy`, drops it when the server has granted it and its answer is held back.
async fn drop_before_the_answer(harness: &Harness, proxy: &Proxy) -> Locks {
    let locks = Locks::connect(&harness.server().url_at(proxy.addr())).await.unwrap();
    proxy.hold_answers();
    let acquire = tokio::spawn({
        let lock = patient(&locks, "a");
        async move { lock.acquire().await.map(drop) }
    });
    until("the server has granted it", async || harness.server().keys_like("lock:*") == ["lock:a"]).await;
    acquire.abort();
    assert!(acquire.await.unwrap_err().is_cancelled());
    locks
}

async fn an_acquire_dropped_before_its_answer_is_undone(harness: Harness) {
    let proxy = Proxy::start(harness.server().addr());
    let _locks = drop_before_the_answer(&harness, &proxy).await;
    proxy.pass();
    harness.is_clear().await;
}

async fn an_acquire_dropped_before_its_answer_is_undone_over_a_new_connection(harness: Harness) {
    let proxy = Proxy::start(harness.server().addr());
    let _locks = drop_before_the_answer(&harness, &proxy).await;
    proxy.reset();
    harness.is_clear().await;
}

async fn a_guard_dropped_while_the_server_is_out_of_reach_releases_later(harness: Harness) {
    let proxy = Proxy::start(harness.server().addr());
    let locks = Locks::connect(&harness.server().url_at(proxy.addr())).await.unwrap();
    let guard = take(&locks, "a").await;
    proxy.cut();
    drop(guard);
    until("the release has failed once", async || locks.lock("b").try_acquire().await.is_err()).await;
    proxy.pass();
    harness.is_clear().await;
}
