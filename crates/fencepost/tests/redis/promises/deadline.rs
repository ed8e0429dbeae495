//! Promise 6: the caller's deadline bounds everything.

use super::{Harness, LONG, bounded, take, until};
use fencepost::{Error, Locks};
use fencepost_testkit::Proxy;

on_redis!(
    connecting_to_a_silent_server_ends_at_the_timeout,
    a_try_on_a_silent_server_ends_at_the_timeout,
    a_release_on_a_silent_server_ends_at_the_timeout_and_goes_on_behind,
    a_wait_sits_out_a_short_outage,
);

async fn connecting_to_a_silent_server_ends_at_the_timeout(harness: Harness) {
    let proxy = Proxy::start(harness.server().addr());
    proxy.stall();
    let url = format!("{}?timeout=1s", harness.server().url_at(proxy.addr()));
    let error = bounded("connecting ends", Locks::connect(&url)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
}

async fn a_try_on_a_silent_server_ends_at_the_timeout(harness: Harness) {
    let locks = Locks::connect(&format!("{}?timeout=1s", harness.server().url())).await.unwrap();
    harness.stop();
    let outcome = bounded("the try ends", locks.lock("a").ttl(LONG).try_acquire()).await;
    harness.resume();
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    // What the server did when it woke up is undone.
    take(&harness.locks().await, "a").await.release().await.unwrap();
}

async fn a_release_on_a_silent_server_ends_at_the_timeout_and_goes_on_behind(harness: Harness) {
    let locks = Locks::connect(&format!("{}?timeout=1s", harness.server().url())).await.unwrap();
    let guard = take(&locks, "a").await;
    harness.stop();
    let outcome = bounded("the release ends", guard.release()).await;
    harness.resume();
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::Uncertain { .. }), "{error}");
    until("it is released behind", async || harness.server().keys_like("lock:*").is_empty()).await;
}

async fn a_wait_sits_out_a_short_outage(harness: Harness) {
    let proxy = Proxy::start(harness.server().addr());
    let locks = Locks::connect(&harness.server().url_at(proxy.addr())).await.unwrap();
    let held = take(&harness.locks().await, "a").await;
    let waiter = tokio::spawn({
        let lock = super::patient(&locks, "a");
        async move { lock.acquire().await }
    });
    until("it waits", async || locks.stats().waiting_now == 1).await;
    // Until it has heard from the server, an outage is an error.
    until("it queues", async || !harness.server().keys_like("{lock:a}:waiting").is_empty()).await;
    // Answers come in order on one connection: with this one it has its own.
    locks.show("a").await.unwrap();
    proxy.reset();
    held.release().await.unwrap();
    bounded("the waiter gets the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
}
