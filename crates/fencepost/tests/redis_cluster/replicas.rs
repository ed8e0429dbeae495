//! Grants that count only once replicas have them.

use fencepost::{Error, Locks};
use fencepost_testkit::redis::{Cluster, programs};

use crate::harness::{bounded, elsewhere, ms, secs, slot_of, until, use_once};

#[tokio::test]
async fn a_grant_that_no_replica_has_is_undone() {
    let cluster = Cluster::start(2, 1);
    let locks = Locks::connect(&format!("{}?replicas=1&timeout=4s", cluster.url())).await.unwrap();
    let at = cluster.master_of(slot_of("a"));
    let first = locks.lock("a").acquire().await.unwrap();
    first.release().await.unwrap();
    for replica in cluster.replicas_of(at) {
        cluster[replica].pause();
    }
    let error = locks.lock("a").try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    until("it is given back", async || cluster[at].cli(&["EXISTS", "lock:a"]).trim() == "0").await;
    for replica in cluster.replicas_of(at) {
        cluster[replica].resume();
    }
    until("it is granted again", async || matches!(locks.lock("a").try_acquire().await, Ok(Some(_)))).await;
}

#[tokio::test]
async fn a_renewal_that_no_replica_has_does_not_count() {
    let cluster = Cluster::start(2, 1);
    let locks = Locks::connect(&format!("{}?replicas=1&timeout=1s", cluster.url())).await.unwrap();
    let at = cluster.master_of(slot_of("a"));
    let guard = locks.lock("a").ttl(secs(3)).renew_every(ms(200)).acquire().await.unwrap();
    until("it is renewed", async || locks.stats().renewed > 2).await;
    for replica in cluster.replicas_of(at) {
        cluster[replica].pause();
    }
    until("it is lost", async || guard.state().is_lost()).await;
    for replica in cluster.replicas_of(at) {
        cluster[replica].resume();
    }
}

#[tokio::test]
async fn a_waiter_that_is_pushed_the_lock_makes_sure_that_replicas_have_it() {
    let cluster = Cluster::start(2, 1);
    let locks = Locks::connect(&format!("{}?replicas=1", cluster.url())).await.unwrap();
    let at = cluster.master_of(slot_of("a"));
    let held = locks.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn({
        let lock = locks.lock("a");
        async move { lock.acquire().await }
    });
    until("it waits", async || cluster[at].cli(&["LLEN", "{lock:a}:waiting"]).trim() == "1").await;
    held.release().await.unwrap();
    let guard = bounded("it is served", waiter).await.unwrap().unwrap();
    guard.check().unwrap();
}

/// A server that refuses to wait for replicas: the grant is undone, and nothing stays behind.
#[tokio::test]
async fn a_refused_wait_leaves_no_lock_behind() {
    let cluster = Cluster::start(2, 1);
    for node in cluster.iter() {
        node.cli(&["ACL", "SETUSER", "app", "on", ">pw", "+@all", "-wait", "~*", "&*"]);
    }
    let addr = cluster[0].addr();
    let locks = Locks::connect(&format!("redis+cluster://app:pw@{addr}?replicas=1")).await.unwrap();
    let error = locks.lock("a").try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("WAIT"), "{error}");
    until("it is given back", async || cluster.keys_like("lock:*").is_empty()).await;
}

/// It was carried out: it is undone, so that the handle goes on to mean the lock.
#[tokio::test]
async fn a_handle_is_good_again_after_an_attachment_that_no_replica_has() {
    let cluster = Cluster::start(2, 1);
    let locks = Locks::connect(&format!("{}?replicas=1", cluster.url())).await.unwrap();
    let replicas = cluster.replicas_of(cluster.master_of(slot_of("a")));
    let handle = locks.lock("a").ttl(secs(60)).acquire().await.unwrap().detach().await.unwrap();
    replicas.iter().for_each(|replica| cluster[*replica].pause());
    let attached = locks.attach(&handle).await;
    replicas.iter().for_each(|replica| cluster[*replica].resume());
    let error = attached.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    until("it can be attached", async || match locks.attach(&handle).await {
        Ok(guard) => guard.token() == handle.token(),
        Err(error) => {
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            false
        }
    })
    .await;
}

/// The old master follows the new one, and refuses to wait for replicas. What it says of the call counts.
#[tokio::test]
async fn a_failover_is_followed_also_where_grants_wait_for_replicas() {
    for program in programs() {
        let cluster = Cluster::start_with(3, 1, |config| config.program(&program));
        let locks = Locks::connect(&format!("{}?replicas=1", cluster.url())).await.unwrap();
        let guard = locks.lock("a").ttl(secs(20)).renew_every(ms(200)).acquire().await.unwrap();
        let first = use_once(&locks, "{a}b").await;
        cluster.failover(cluster.master_of(slot_of("a")));
        let renewed = locks.stats().renewed;
        until("renewals go on", async || {
            guard.check().unwrap();
            locks.stats().renewed >= renewed + 3
        })
        .await;
        assert!(use_once(&locks, "{a}b").await > first);
        guard.release().await.unwrap();
    }
}

/// That nobody has a copy of what a node did not do is no news.
#[tokio::test]
async fn a_moved_slot_is_followed_also_where_its_old_master_has_no_replicas() {
    let cluster = Cluster::start(2, 1);
    let locks = Locks::connect(&format!("{}?replicas=1", cluster.url())).await.unwrap();
    let first = use_once(&locks, "a").await;
    let from = cluster.master_of(slot_of("a"));
    cluster.reshard([slot_of("a")], elsewhere(&cluster, "a"), ms(0));
    let replicas = cluster.replicas_of(from);
    replicas.iter().for_each(|replica| cluster[*replica].pause());
    let next = locks.lock("a").try_acquire().await;
    replicas.iter().for_each(|replica| cluster[*replica].resume());
    assert!(next.unwrap().unwrap().token().get() > first);
}
