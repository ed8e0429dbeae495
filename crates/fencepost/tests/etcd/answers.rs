//! Answers that come late or never: nothing is held on their strength, and nothing stays behind.

use std::time::Duration;

use fencepost::SupervisorExt as _;
use fencepost::{Error, Locks};
use fencepost_testkit::Proxy;
use fencepost_testkit::etcd::Cluster;

use crate::harness::{LONG, bounded, connect, ms, patient, take, until};

const TTL: Duration = Duration::from_secs(30);

async fn through(proxy: &Proxy, cluster: &Cluster) -> Locks {
    connect(&cluster.url_at(&proxy.addr().to_string())).await
}

/// Drops an acquire when the server has granted it and its answer is held back.
async fn drop_before_the_answer(cluster: &Cluster, proxy: &Proxy) -> Locks {
    let locks = through(proxy, cluster).await;
    // With a lease, so that the one transaction is all that is under way.
    take(&locks, "b").await.release().await.unwrap();
    proxy.hold_answers();
    let acquire = tokio::spawn({
        let lock = patient(&locks, "a");
        async move { lock.acquire().await.map(drop) }
    });
    until("the server has granted it", async || cluster.keys("a/").len() == 1).await;
    acquire.abort();
    assert!(acquire.await.unwrap_err().is_cancelled());
    locks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_dropped_before_its_answer_is_undone() {
    let cluster = Cluster::start(1);
    let proxy = Proxy::start(cluster[0].addr());
    let _locks = drop_before_the_answer(&cluster, &proxy).await;
    proxy.pass();
    until("no key is left", async || cluster.keys("a/").is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_dropped_before_its_answer_is_undone_over_a_new_connection() {
    let cluster = Cluster::start(1);
    let proxy = Proxy::start(cluster[0].addr());
    let _locks = drop_before_the_answer(&cluster, &proxy).await;
    proxy.reset();
    until("no key is left", async || cluster.keys("a/").is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_an_unanswered_request_made_is_swept_while_its_lease_is_in_use() {
    let cluster = Cluster::start(1);
    let proxy = Proxy::start(cluster[0].addr());
    let locks = connect(&format!("{}?timeout=2s", cluster.url_at(&proxy.addr().to_string()))).await;
    let other = take(&locks, "other").await;
    proxy.hold_answers();
    let outcome = bounded("the try ends", locks.lock("a").ttl(LONG).try_acquire()).await;
    assert!(outcome.is_err());
    until("the server has granted it", async || cluster.keys("a/").len() == 1).await;
    proxy.reset();
    until("no key is left", async || cluster.keys("a/").is_empty()).await;
    other.extend().await.unwrap();
    other.release().await.unwrap();
    until("and no lease", async || cluster.leases().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_was_lost_is_asked_for_again() {
    let cluster = Cluster::start(1);
    let proxy = Proxy::start(cluster[0].addr());
    let locks = through(&proxy, &cluster).await;
    take(&locks, "b").await.release().await.unwrap();
    proxy.hold_answers();
    let acquire = tokio::spawn({
        let lock = patient(&locks, "a");
        async move { lock.acquire().await }
    });
    until("the server has granted it", async || cluster.keys("a/").len() == 1).await;
    proxy.reset();
    let guard = bounded("it is told", acquire).await.unwrap().unwrap();
    assert_eq!(locks.show("a").await.unwrap().unwrap().token, Some(guard.token()));
    guard.release().await.unwrap();
    until("no key is left", async || cluster.keys("a/").is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_dropped_while_the_server_is_out_of_reach_releases_later() {
    let cluster = Cluster::start(1);
    let proxy = Proxy::start(cluster[0].addr());
    let locks = through(&proxy, &cluster).await;
    let guard = take(&locks, "a").await;
    proxy.cut();
    drop(guard);
    until("the store is out of reach", async || locks.lock("b").try_acquire().await.is_err()).await;
    proxy.pass();
    until("no key is left", async || cluster.keys("a/").is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_slow_link_validity_counts_from_the_send() {
    let cluster = Cluster::start(1);
    let proxy = Proxy::start(cluster[0].addr());
    let locks = through(&proxy, &cluster).await;
    proxy.delay(ms(100));
    let guard = locks.lock("a").ttl(TTL).acquire().await.unwrap();
    // There and back. A slow machine makes it less.
    assert!(guard.valid_for().unwrap() <= TTL - ms(200));
    assert!(guard.extend().await.unwrap().unwrap() <= TTL - ms(200));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_old_guard_is_lost_before_the_next_holder_gets_the_lock() {
    let cluster = Cluster::start(1);
    let proxy = Proxy::start(cluster[0].addr());
    let (locks, rival) = (through(&proxy, &cluster).await, connect(&cluster.url()).await);
    for _ in 0..2 {
        let guard = locks.lock("a").ttl(ms(1000)).acquire().await.unwrap();
        proxy.stall();
        let next = take(&rival, "a").await;
        assert!(guard.state().is_lost(), "{:?} while another has it", guard.state());
        proxy.pass();
        next.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_and_a_waiter_survive_reset_connections() {
    let cluster = Cluster::start(1);
    let proxy = Proxy::start(cluster[0].addr());
    let (locks, near) = (through(&proxy, &cluster).await, connect(&cluster.url()).await);
    let guard = locks.lock("a").ttl(TTL).renew_every(ms(50)).acquire().await.unwrap();
    let other = take(&near, "b").await;
    let waits = crate::harness::waiter(patient(&locks, "b"), &locks).await;
    until("it is in the queue", async || cluster.keys("b/").len() == 2).await;
    for _ in 0..3 {
        proxy.reset();
        let before = locks.stats().renewed;
        until("it is renewed over a new connection", async || locks.stats().renewed > before + 1).await;
    }
    other.release().await.unwrap();
    bounded("the waiter gets the lock", waits).await.unwrap().unwrap().release().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connecting_to_a_silent_server_ends_at_the_timeout() {
    let cluster = Cluster::start(1);
    let proxy = Proxy::start(cluster[0].addr());
    proxy.stall();
    let url = format!("{}?timeout=2s", cluster.url_at(&proxy.addr().to_string()));
    let error = bounded("connecting ends", Locks::connect(&url)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_on_a_silent_server_ends_at_the_timeout_and_is_undone() {
    let cluster = Cluster::start(1);
    let locks = connect(&format!("{}?timeout=2s", cluster.url())).await;
    cluster[0].pause();
    let outcome = bounded("the try ends", locks.lock("a").ttl(LONG).try_acquire()).await;
    cluster[0].resume();
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    // What the server did when it woke up is undone.
    take(&connect(&cluster.url()).await, "a").await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_on_a_silent_server_ends_at_the_timeout_and_goes_on_behind() {
    let cluster = Cluster::start(1);
    let locks = connect(&format!("{}?timeout=2s", cluster.url())).await;
    let guard = take(&locks, "a").await;
    cluster[0].pause();
    let outcome = bounded("the release ends", guard.release()).await;
    cluster[0].resume();
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::Uncertain { .. }), "{error}");
    until("it is released behind", async || cluster.keys("a/").is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extension_whose_answer_is_lost_lengthens_nothing_and_the_next_one_does() {
    let cluster = Cluster::start(1);
    let proxy = Proxy::start(cluster[0].addr());
    let url = format!("{}?timeout=2s", cluster.url_at(&proxy.addr().to_string()));
    let locks = connect(&url).await;
    let guard = locks.lock("a").ttl(TTL).without_renewal().acquire().await.unwrap();
    let before = guard.valid_until_boottime();
    proxy.hold_answers();
    let error = bounded("the caller is told", guard.extend_to(LONG)).await.unwrap_err();
    assert!(matches!(error, Error::Uncertain { .. }), "{error}");
    assert_eq!(guard.valid_until_boottime(), before);
    proxy.reset();
    assert!(guard.extend_to(LONG).await.unwrap() > Some(TTL));
    let shown = locks.show("a").await.unwrap().unwrap();
    assert!(shown.expires_in > Some(TTL) && shown.token == Some(guard.token()), "{shown:?}");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_late_request_makes_after_a_detach_is_swept_while_the_lease_is_in_use() {
    let cluster = Cluster::start(1);
    let proxy = Proxy::start(cluster[0].addr());
    let locks = through(&proxy, &cluster).await;
    let other = take(&locks, "b").await;
    proxy.hold_answers();
    let acquire = tokio::spawn({
        let lock = patient(&locks, "a");
        async move { lock.acquire().await }
    });
    until("the server has granted it", async || cluster.keys("a/").len() == 1).await;
    proxy.reset();
    let guard = bounded("it is told", acquire).await.unwrap().unwrap();
    let handle = guard.detach().await.unwrap();
    // Long enough for a first look.
    tokio::time::sleep(ms(600)).await;
    let shown = locks.show("a").await.unwrap().expect("the detached lock is held");
    assert_eq!(shown.token, Some(handle.token()));
    let key = cluster.keys("a/").remove(0);
    let value = cluster.etcdctl(&["get", &key, "--print-value-only"]);
    let lease = key.rsplit('/').next().unwrap();
    locks.release(&handle).await.unwrap();
    assert_eq!(cluster.etcdctl(&["put", "--lease", lease, &key, &value]), "OK");
    until("the late key is gone", async || cluster.keys("a/").is_empty()).await;
    other.extend().await.unwrap();
    other.release().await.unwrap();
}
