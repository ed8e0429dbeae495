//! Promise 2: validity starts when the request was sent; an answer that did not come grants nothing.

use super::{Harness, LONG, becomes_free, bounded, ms, until};
use fencepost::SupervisorExt as _;
use fencepost::{Error, Locks};
use fencepost_testkit::Proxy;
use std::time::Duration;

on_redis!(
    on_a_slow_link_validity_counts_from_the_send,
    an_acquire_whose_answer_is_lost_holds_nothing,
    an_extension_whose_answer_is_lost_lengthens_nothing,
);

const TTL: Duration = Duration::from_secs(30);

async fn on_a_slow_link_validity_counts_from_the_send(harness: Harness) {
    let proxy = Proxy::start(harness.server().addr());
    let locks = Locks::connect(&harness.server().url_at(proxy.addr())).await.unwrap();
    proxy.delay(ms(150));
    let guard = locks.lock("a").ttl(TTL).acquire().await.unwrap();
    // There and back. A slow machine makes it less.
    assert!(guard.valid_for().unwrap() <= TTL - ms(300));
    assert!(guard.extend().await.unwrap().unwrap() <= TTL - ms(300));
}

async fn an_acquire_whose_answer_is_lost_holds_nothing(harness: Harness) {
    let proxy = Proxy::start(harness.server().addr());
    let locks = Locks::connect(&harness.server().url_at(proxy.addr())).await.unwrap();
    proxy.hold_answers();
    let acquire = tokio::spawn({
        let lock = locks.lock("a").ttl(LONG);
        async move { lock.acquire().await }
    });
    until("the server has granted it", async || harness.server().keys_like("lock:*") == ["lock:a"]).await;
    proxy.reset();
    let outcome = bounded("the caller is told", acquire).await.unwrap();
    // Whether it failed or was tried again: the first grant must not stay.
    drop(outcome);
    becomes_free(&harness.locks().await, "a").await;
}

async fn an_extension_whose_answer_is_lost_lengthens_nothing(harness: Harness) {
    let proxy = Proxy::start(harness.server().addr());
    let locks = Locks::connect(&harness.server().url_at(proxy.addr())).await.unwrap();
    let guard = locks.lock("a").ttl(TTL).without_renewal().acquire().await.unwrap();
    // By now the keeper has a connection.
    guard.extend().await.unwrap();
    let (before, name) = (guard.valid_until_boottime(), "lock:a");
    proxy.hold_answers();
    let extend = async { guard.extend_to(LONG).await };
    let cut = async {
        let left = || harness.server().cli(&["PTTL", name]).parse::<i64>().unwrap();
        until("the server has extended it", async || left() > 60_000).await;
        proxy.cut();
    };
    let (extended, ()) = bounded("the caller is told", async { tokio::join!(extend, cut) }).await;
    let error = extended.unwrap_err();
    assert!(matches!(error, Error::Uncertain { .. }), "{error}");
    assert_eq!(guard.valid_until_boottime(), before);
}
