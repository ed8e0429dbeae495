//! etcd: leases that end in the queue, leaders that die, histories that are cut short.

use std::time::Duration;

use fencepost::{Error, Loss, State};
use fencepost_testkit::Proxy;
use fencepost_testkit::etcd::Cluster;

use crate::cluster::{LONG, bounded, connect, ms, patient, take, until, waiter};
use crate::crowd::Crowd;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The lease of the last key in the queue of `a`.
fn last_lease(cluster: &Cluster) -> String {
    let words = ["get", "--prefix", "a/", "--keys-only", "--sort-by=CREATE", "--order=DESCEND"];
    cluster.etcdctl(&words).lines().next().unwrap().strip_prefix("a/").unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s43_a_waiter_whose_lease_ends_queues_again() {
    let cluster = Cluster::start(1);
    let (locks, rival) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let held = take(&locks, "a").await;
    let waits = waiter(patient(&rival, "a"), &rival).await;
    until("it is in the queue", async || cluster.keys("a/").len() == 2).await;
    let (place, owner) =
        (format!("a/{}", last_lease(&cluster)), rival.show("a").await.unwrap().unwrap().queue[0].owner);
    assert!(cluster.etcdctl(&["lease", "revoke", &last_lease(&cluster)]).contains("revoked"));
    until("it is out of the queue", async || !cluster.keys("a/").contains(&place)).await;
    until("and in it again", async || cluster.keys("a/").len() == 2).await;
    held.check().unwrap();
    assert_ne!(rival.show("a").await.unwrap().unwrap().queue[0].owner, owner, "under a new identity");
    held.release().await.unwrap();
    bounded("its turn comes", waits).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s43_a_waiter_whose_lease_ran_out_in_silence_never_gets_its_old_place() {
    let cluster = Cluster::start(1);
    let proxy = Proxy::start(cluster[0].addr());
    let far = connect(&cluster.url_at(&proxy.addr().to_string())).await;
    let near = connect(&cluster.url()).await;
    let held = take(&near, "a").await;
    let waits = waiter(patient(&far, "a").ttl(ms(1000)), &far).await;
    until("it is in the queue", async || cluster.keys("a/").len() == 2).await;
    proxy.stall();
    until("its lease has ended", async || cluster.keys("a/").len() == 1).await;
    held.release().await.unwrap();
    let rival = take(&near, "a").await;
    proxy.pass();
    until("it stands behind the rival", async || cluster.keys("a/").len() == 2).await;
    let token = rival.token();
    rival.release().await.unwrap();
    let next = bounded("its turn comes", waits).await.unwrap().unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s44_a_held_lock_outlives_the_leader() {
    let mut cluster = Cluster::start(3);
    let (locks, rival) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let guard = locks.lock("a").ttl(secs(20)).renew_every(ms(200)).acquire().await.unwrap();
    for _ in 0..2 {
        let leader = cluster.leader();
        cluster[leader].kill();
        let before = locks.stats().renewed;
        until("it is renewed under a new leader", async || locks.stats().renewed > before + 1).await;
        assert!(matches!(guard.state(), State::Held { .. }), "{:?}", guard.state());
        assert!(rival.lock("a").try_acquire().await.unwrap().is_none());
        cluster[leader].restart();
    }
    let token = guard.token();
    guard.release().await.unwrap();
    assert!(take(&rival, "a").await.token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s44_a_waiter_outlives_the_leader() {
    let mut cluster = Cluster::start(3);
    let (locks, rival) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let held = take(&locks, "a").await;
    let waits = waiter(patient(&rival, "a"), &rival).await;
    until("it is in the queue", async || cluster.keys("a/").len() == 2).await;
    let leader = cluster.leader();
    cluster[leader].kill();
    let token = held.token();
    until("the holder can let go", async || locks.show("a").await.is_ok()).await;
    held.release().await.unwrap();
    let next = bounded("the waiter gets the lock", waits).await.unwrap().unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s44_without_a_majority_the_cluster_is_out_of_reach_and_says_so() {
    let mut cluster = Cluster::start(3);
    let locks = connect(&cluster.url()).await;
    let guard = take(&locks, "a").await;
    cluster[0].kill();
    cluster[1].kill();
    let error = bounded("the try ends", locks.lock("b").ttl(LONG).try_acquire()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    guard.check().unwrap();
    cluster[0].restart();
    guard.release().await.unwrap();
    take(&locks, "b").await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s44_compaction_stops_neither_a_waiter_nor_the_watch_of_a_holder() {
    let cluster = Cluster::start(1);
    let proxy = Proxy::start(cluster[0].addr());
    let far = connect(&cluster.url_at(&proxy.addr().to_string())).await;
    let near = connect(&cluster.url()).await;
    let held = patient(&far, "a").without_renewal().acquire().await.unwrap();
    let other = take(&near, "b").await;
    let waits = waiter(patient(&far, "b"), &far).await;
    until("it is in the queue", async || cluster.keys("b/").len() == 2).await;
    for _ in 0..10 {
        cluster.etcdctl(&["put", "x", "y"]);
    }
    let revision = cluster.etcdctl(&["get", "x", "-w", "fields"]);
    let revision = revision.lines().find_map(|line| line.strip_prefix("\"Revision\" : ")).unwrap();
    assert!(cluster.etcdctl(&["compaction", revision]).contains("compacted"));
    // Both watches begin anew, and what they began with is gone.
    proxy.reset();
    other.release().await.unwrap();
    bounded("the waiter gets the lock", waits).await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(cluster.etcdctl(&["del", "--prefix", "a/"]), "1");
    bounded("the holder learns that its key is gone", held.lost()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s45_a_cluster_whose_revision_went_back_is_refused() {
    let mut cluster = Cluster::start(1);
    let locks = connect(&cluster.url()).await;
    for _ in 0..5 {
        take(&locks, "a").await.release().await.unwrap();
    }
    cluster[0].restart_empty();
    let error = bounded("the try ends", locks.lock("a").try_acquire()).await.unwrap_err();
    assert!(
        matches!(&error, Error::Config { message, .. } if message.contains("--bump-revision")),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s45_a_lock_is_lost_when_the_cluster_is_restored_from_an_older_snapshot() {
    for renew in [true, false] {
        let mut cluster = Cluster::start(1);
        let locks = connect(&cluster.url()).await;
        take(&locks, "a").await.release().await.unwrap();
        let snapshot = cluster.snapshot();
        for _ in 0..50 {
            cluster.etcdctl(&["put", "x", "y"]);
        }
        // By a renewal, or by what looks after the lock when its watch ends.
        let lock = patient(&locks, "a").renew_every(ms(100));
        let lock = if renew { lock } else { lock.without_renewal() };
        let held = lock.acquire().await.unwrap();
        cluster[0].restore(&snapshot);
        let rival = connect(&cluster.url()).await;
        let next = take(&rival, "a").await;
        assert!(next.token() < held.token(), "the snapshot is older");
        assert_eq!(bounded("it is lost", held.lost()).await, Loss::Taken);
        // And for good: also when the revisions are larger again.
        for _ in 0..60 {
            cluster.etcdctl(&["put", "x", "y"]);
        }
        let error = bounded("the try ends", locks.lock("b").try_acquire()).await.unwrap_err();
        assert!(
            matches!(&error, Error::Config { message, .. } if message.contains("--bump-revision")),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s44_exclusion_and_the_order_of_tokens_outlive_dying_leaders() {
    let mut cluster = Cluster::start(3);
    let mut crowd = Crowd::new(secs(2), secs(10));
    for _ in 0..4 {
        crowd.join(&cluster.url()).await;
    }
    for _ in 0..2 {
        crowd.goes_on(6).await;
        let leader = cluster.leader();
        cluster[leader].kill();
        crowd.goes_on(6).await;
        cluster[leader].restart();
    }
    crowd.end().await;
}
