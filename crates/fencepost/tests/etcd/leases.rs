//! Leases: shared, renewed together, and gone when nobody needs them.

use fencepost::EtcdExt as _;
use fencepost::{Loss, State};
use fencepost_testkit::Proxy;
use fencepost_testkit::etcd::Cluster;

use crate::harness::{LONG, bounded, connect, ms, patient, take, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_locks_of_one_ttl_share_a_lease_and_its_keep_alives() {
    let cluster = Cluster::start(1);
    let locks = connect(&cluster.url()).await;
    let mut guards = Vec::new();
    for number in 0..150 {
        guards.push(patient(&locks, &format!("n{number}")).renew_every(ms(400)).acquire().await.unwrap());
    }
    assert_eq!(cluster.leases().len(), 1);
    let before = cluster[0].requests("LeaseKeepAlive");
    until("all were renewed", async || locks.stats().renewed >= 600).await;
    let beats = cluster[0].requests("LeaseKeepAlive") - before;
    assert!(beats < 150, "{beats} keep-alives for {} renewals", locks.stats().renewed);
    drop(guards);
    locks.close().await;
    until("no lease is left", async || cluster.leases().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_goes_with_the_store_and_not_before_its_last_lock() {
    let cluster = Cluster::start(1);
    let locks = connect(&cluster.url()).await;
    let guard = take(&locks, "a").await;
    locks.clone().close().await;
    guard.extend().await.unwrap();
    assert_eq!(cluster.leases().len(), 1);
    guard.release().await.unwrap();
    until("no lease is left", async || cluster.leases().is_empty()).await;

    let guard = take(&locks, "a").await;
    drop((guard, locks));
    until("no lease is left", async || cluster.leases().is_empty()).await;
    assert_eq!(cluster.keys(""), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_detached_lock_has_a_lease_of_its_own_that_its_release_ends() {
    let cluster = Cluster::start(1);
    let locks = connect(&cluster.url()).await;
    let handle = take(&locks, "a").await.detach().await.unwrap();
    // The same client, the same name and the same ttl: it needs another key than the one that was detached.
    assert!(locks.lock("a").ttl(LONG).try_acquire().await.unwrap().is_none());
    assert!(locks.lock("a").ttl(LONG).wait(ms(300)).acquire().await.is_err());
    locks.close().await;
    until("only its own lease is left", async || cluster.leases().len() == 1).await;
    let locks = connect(&cluster.url()).await;
    locks.extend(&handle, LONG).await.unwrap();
    locks.release(&handle).await.unwrap();
    assert_eq!(cluster.keys(""), [""; 0]);
    drop(locks);
    until("no lease is left", async || cluster.leases().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attached_lock_is_extended_on_a_lease_of_its_own() {
    let cluster = Cluster::start(1);
    let locks = connect(&cluster.url()).await;
    let handle = take(&locks, "a").await.detach().await.unwrap();
    let guard = locks.lock("a").ttl(LONG).attach(&handle).await.unwrap();
    guard.extend_to(LONG * 2).await.unwrap();
    let token = guard.token();
    // And again without a guard, by a client that ends.
    let handle = guard.detach().await.unwrap();
    let other = connect(&cluster.url()).await;
    other.extend(&handle, LONG * 3).await.unwrap();
    other.close().await;
    locks.close().await;
    until("the others are gone", async || cluster.leases().len() == 1).await;
    let locks = connect(&cluster.url()).await;
    let shown = locks.show("a").await.unwrap().unwrap();
    assert!(shown.token == Some(token) && shown.expires_in.unwrap() > LONG * 2, "{shown:?}");
    locks.release(&handle).await.unwrap();
    until("no lease is left", async || cluster.leases().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_not_renewed_ends_though_its_lease_lives_on() {
    let cluster = Cluster::start(1);
    let (locks, rival) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let renewed = locks.lock("renewed").ttl(ms(5000)).acquire().await.unwrap();
    let ends = locks.lock("ends").ttl(ms(5000)).without_renewal().acquire().await.unwrap();
    let next = take(&rival, "ends").await;
    assert_eq!(ends.state(), State::Lost(Loss::Expired));
    renewed.check().unwrap();
    next.release().await.unwrap();
    renewed.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_at_max_hold_that_failed_goes_on_though_the_lease_lives_on() {
    let cluster = Cluster::start(1);
    let proxy = Proxy::start(cluster[0].addr());
    let locks = connect(&format!("{}?timeout=2s", cluster.url_at(&proxy.addr().to_string()))).await;
    let renewed = patient(&locks, "renewed").renew_every(ms(100)).acquire().await.unwrap();
    let ends = patient(&locks, "ends").max_hold(ms(500)).acquire().await.unwrap();
    proxy.cut();
    assert_eq!(bounded("it ends", ends.lost()).await, Loss::MaxHold);
    for _ in 0..2 {
        // Each takes as long as the release may.
        assert!(locks.lock("other").ttl(LONG).try_acquire().await.is_err());
    }
    proxy.pass();
    until("the key is gone", async || cluster.keys("ends/").is_empty()).await;
    renewed.extend().await.unwrap();
    renewed.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_lease_ends_all_its_locks_at_once() {
    let cluster = Cluster::start(1);
    let locks = connect(&cluster.url()).await;
    let guards = [take(&locks, "a").await, take(&locks, "b").await];
    let lease = cluster.leases().pop().unwrap();
    assert!(cluster.etcdctl(&["lease", "revoke", &lease]).contains("revoked"));
    for guard in &guards {
        let why = bounded("it is lost", guard.lost()).await;
        assert!(matches!(why, Loss::Taken | Loss::SessionEnded), "{why}");
    }
    // And a new lease is made for the next.
    take(&locks, "c").await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_callers_transaction_is_carried_out_only_while_the_lock_is_held() {
    let cluster = Cluster::start(1);
    let locks = connect(&cluster.url()).await;
    let guard = take(&locks, "a").await;
    let compare = guard.etcd_compare().unwrap();
    assert_eq!(u64::try_from(compare.create_revision).unwrap(), guard.token().get());
    let write = |value: &str| {
        let key = String::from_utf8(compare.key.clone()).unwrap();
        let txn = format!("create(\"{key}\") = \"{}\"\n\nput data {value}\n\n\n", compare.create_revision);
        cluster.etcdctl_with(&["txn"], &txn)
    };
    assert!(write("one").contains("SUCCESS"));
    guard.release().await.unwrap();
    assert!(write("two").contains("FAILURE"));
    assert_eq!(cluster.etcdctl(&["get", "data", "--print-value-only"]), "one");
    assert!(locks.lock("a").try_acquire().await.unwrap().unwrap().etcd_compare().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_went_to_another_lease_is_brought_back() {
    let cluster = Cluster::start(1);
    let locks = connect(&cluster.url()).await;
    let guard = patient(&locks, "a").without_renewal().acquire().await.unwrap();
    let key = cluster.keys("a/").pop().unwrap();
    // As an extension does whose answer was lost.
    let granted = cluster.etcdctl(&["lease", "grant", "500"]);
    let lease = granted.split(' ').nth(1).unwrap();
    let value = cluster.etcdctl(&["get", &key, "--print-value-only"]);
    assert_eq!(cluster.etcdctl(&["put", "--lease", lease, &key, &value]), "OK");
    guard.extend().await.unwrap();
    assert!(cluster.etcdctl(&["lease", "revoke", lease]).contains("revoked"));
    guard.extend().await.unwrap();
    assert_eq!(locks.show("a").await.unwrap().unwrap().token, Some(guard.token()));
    guard.release().await.unwrap();
}
