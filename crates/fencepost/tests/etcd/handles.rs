//! Handles: what renewing by one costs, and that an attach that came to nothing leaves it good.

use fencepost::{Error, Loss};
use fencepost_testkit::Proxy;
use fencepost_testkit::etcd::Cluster;

use crate::harness::{LONG, connect, patient, take, until};

/// How many entries the cluster's log has.
fn entries(cluster: &Cluster) -> u64 {
    let status = cluster.etcdctl(&["endpoint", "status", "-w", "json"]);
    let (_, rest) = status.split_once("\"raftIndex\":").unwrap();
    rest.split_once([',', '}']).unwrap().0.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_by_handle_writes_nothing_unless_it_is_for_longer() {
    let cluster = Cluster::start(1);
    let locks = connect(&cluster.url()).await;
    let handle = take(&locks, "a").await.detach().await.unwrap();
    let other = connect(&cluster.url()).await;
    until("only its own lease is left", async || {
        locks.clone().close().await;
        cluster.leases().len() == 1
    })
    .await;
    let before = entries(&cluster);
    for _ in 0..20 {
        other.extend(&handle, LONG).await.unwrap();
    }
    assert_eq!(entries(&cluster), before);
    other.extend(&handle, LONG * 2).await.unwrap();
    assert!(other.show("a").await.unwrap().unwrap().expires_in.unwrap() > LONG);
    until("the lease before it is gone", async || cluster.leases().len() == 1).await;
    other.release(&handle).await.unwrap();
    other.close().await;
    assert_eq!(cluster.leases(), [""; 0], "closing waits for that");
}

/// The client that made the lease may put the key of another lock on it in that moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_attaches_a_live_lock_does_not_end_the_lease_that_it_was_on() {
    let cluster = Cluster::start(1);
    let (locks, other) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let guard = take(&locks, "a").await;
    let leases = cluster.leases();
    let attached = patient(&other, "a").attach(&guard.handle()).await.unwrap();
    assert_eq!(cluster.leases().len(), 2, "one of its own");
    attached.release().await.unwrap();
    other.close().await;
    assert_eq!(cluster.leases(), leases);
    drop(guard);
    locks.close().await;
    assert_eq!(cluster.leases(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_detached_lock_that_ended_is_told_as_such() {
    let cluster = Cluster::start(1);
    let locks = connect(&cluster.url()).await;
    let handle = take(&locks, "a").await.detach().await.unwrap();
    for lease in cluster.leases() {
        cluster.etcdctl(&["lease", "revoke", &lease]);
    }
    let error = locks.extend(&handle, LONG).await.unwrap_err();
    assert!(matches!(error, Error::Lost { why: Loss::Expired, .. }), "{error}");
    assert!(matches!(locks.release(&handle).await, Err(Error::Lost { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attach_that_is_dropped_before_its_answer_leaves_the_handle_good() {
    let cluster = Cluster::start(1);
    let proxy = Proxy::start(cluster[0].addr());
    let near = connect(&cluster.url()).await;
    let far = connect(&format!("{}?timeout=20s", cluster.url_at(&proxy.addr().to_string()))).await;
    let handle = take(&near, "a").await.detach().await.unwrap();
    // Slow enough to see the request come before its answer does.
    proxy.delay(std::time::Duration::from_secs(1));
    let attach = tokio::spawn({
        let (lock, handle) = (patient(&far, "a"), handle.clone());
        async move { lock.attach(&handle).await.map(drop) }
    });
    let owner = async || near.show("a").await.unwrap().unwrap().owner.unwrap();
    until("it is taken over", async || owner().await != handle.owner()).await;
    attach.abort();
    assert!(attach.await.unwrap_err().is_cancelled());
    until("it is given back", async || owner().await == handle.owner()).await;
    far.close().await;
    near.extend(&handle, LONG).await.unwrap();
    near.release(&handle).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_goes_on_when_its_lock_was_renewed_for_longer_by_its_handle() {
    let cluster = Cluster::start(1);
    let (locks, other) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let handle = take(&locks, "a").await.detach().await.unwrap();
    let guard = patient(&locks, "a").attach(&handle).await.unwrap();
    other.extend(&guard.handle(), LONG * 2).await.unwrap();
    other.close().await;
    guard.extend().await.unwrap();
    guard.release().await.unwrap();
    assert!(cluster.keys("a/").is_empty());
}
