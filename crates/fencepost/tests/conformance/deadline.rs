//! Promise 6: the caller's deadline bounds everything.

use fencepost::{Error, Locks};
use fencepost_testkit::Proxy;

use crate::stage::{IN_VAIN, LONG, Stage, bounded, ms, take, until};

on_every_store!(a_wait_ends_at_its_deadline, one_deadline_bounds_a_whole_set);
on_stores_with_leases!(
    a_wait_ends_at_its_deadline_though_the_store_stands_still,
    an_extension_ends_with_the_lease_though_the_store_stands_still,
);
on_redis!(
    connecting_to_a_silent_server_ends_at_the_timeout,
    a_try_on_a_silent_server_ends_at_the_timeout,
    a_release_on_a_silent_server_ends_at_the_timeout_and_goes_on_behind,
    a_wait_sits_out_a_short_outage,
);

async fn a_wait_ends_at_its_deadline(stage: Stage) {
    let locks = stage.locks().await;
    let _held = take(&locks, "a").await;
    let error = bounded("the wait ends", locks.lock("a").wait(IN_VAIN).acquire()).await.unwrap_err();
    let Error::Timeout { waited, .. } = error else { panic!("{error}") };
    assert!(waited >= IN_VAIN);
    assert_eq!((locks.stats().timed_out, locks.stats().waiting_now), (1, 0));
}

async fn one_deadline_bounds_a_whole_set(stage: Stage) {
    let locks = stage.locks().await;
    let _held = take(&locks, "b").await;
    let error =
        bounded("the wait ends", locks.all(["a", "b", "c"]).wait(IN_VAIN).acquire()).await.unwrap_err();
    assert!(matches!(&error, Error::Timeout { name, .. } if name.as_str() == "b"), "{error}");
    take(&locks, "a").await.release().await.unwrap();
}

async fn a_wait_ends_at_its_deadline_though_the_store_stands_still(stage: Stage) {
    let locks = stage.locks().await;
    stage.stop();
    let outcome = bounded("the wait ends", locks.lock("a").ttl(LONG).wait(ms(100)).acquire()).await;
    stage.resume();
    let error = outcome.unwrap_err();
    // Not a timeout: nobody has said that somebody else has the lock.
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    // What the store may have done when it woke up is undone.
    take(&locks, "a").await.release().await.unwrap();
    stage.is_clear().await;
}

async fn an_extension_ends_with_the_lease_though_the_store_stands_still(stage: Stage) {
    let locks = stage.locks().await;
    let guard = locks.lock("a").ttl(ms(1500)).renew(false).acquire().await.unwrap();
    stage.stop();
    let mut error = bounded("the extension ends", guard.extend()).await.unwrap_err();
    // The store's own timeout may come first, and says so.
    while matches!(error, Error::Uncertain { .. }) {
        error = bounded("the extension ends", guard.extend()).await.unwrap_err();
    }
    stage.resume();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
}

async fn connecting_to_a_silent_server_ends_at_the_timeout(stage: Stage) {
    let proxy = Proxy::start(stage.server().addr());
    proxy.stall();
    let url = format!("{}?timeout=1s", stage.server().url_at(proxy.addr()));
    let error = bounded("connecting ends", Locks::connect(&url)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
}

async fn a_try_on_a_silent_server_ends_at_the_timeout(stage: Stage) {
    let locks = Locks::connect(&format!("{}?timeout=1s", stage.server().url())).await.unwrap();
    stage.stop();
    let outcome = bounded("the try ends", locks.lock("a").ttl(LONG).try_acquire()).await;
    stage.resume();
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    // What the server did when it woke up is undone.
    take(&stage.locks().await, "a").await.release().await.unwrap();
}

async fn a_release_on_a_silent_server_ends_at_the_timeout_and_goes_on_behind(stage: Stage) {
    let locks = Locks::connect(&format!("{}?timeout=1s", stage.server().url())).await.unwrap();
    let guard = take(&locks, "a").await;
    stage.stop();
    let outcome = bounded("the release ends", guard.release()).await;
    stage.resume();
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::Uncertain { .. }), "{error}");
    until("it is released behind", async || stage.server().keys_like("lock:*").is_empty()).await;
}

async fn a_wait_sits_out_a_short_outage(stage: Stage) {
    let proxy = Proxy::start(stage.server().addr());
    let locks = Locks::connect(&stage.server().url_at(proxy.addr())).await.unwrap();
    let held = take(&stage.locks().await, "a").await;
    let waiter = tokio::spawn({
        let lock = crate::stage::patient(&locks, "a");
        async move { lock.acquire().await }
    });
    until("it waits", async || locks.stats().waiting_now == 1).await;
    // Until it has heard from the server, an outage is an error.
    until("it queues", async || !stage.server().keys_like("{lock:a}:waiting").is_empty()).await;
    // Answers come in order on one connection: with this one it has its own.
    locks.show("a").await.unwrap();
    proxy.reset();
    held.release().await.unwrap();
    bounded("the waiter gets the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
}
