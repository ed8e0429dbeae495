//! Members and leaders that die, stand still and come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost::{Error, Loss, State};
use fencepost_testkit::Proxy;
use fencepost_testkit::etcd::Cluster;

use crate::stage::{LONG, bounded, connect, ms, patient, take, until, waiter};

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_lock_outlives_the_leader() {
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
async fn a_waiter_outlives_the_leader() {
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
async fn nobody_gets_an_error_while_leaders_hand_over() {
    let cluster = Cluster::start(3);
    let stop = Arc::new(AtomicBool::new(false));
    let mut workers = Vec::new();
    for member in cluster.iter() {
        // Time for several tries: what is forwarded to a leader that hands over may get lost in silence.
        let url = format!("{}?timeout=6s", cluster.url_at(&member.addr().to_string()));
        let locks = connect(&url).await;
        for number in 0..4 {
            let (lock, stop) = (patient(&locks, &format!("{}/{number}", member.addr())), stop.clone());
            workers.push(tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    lock.acquire().await.unwrap().release().await.unwrap();
                }
            }));
        }
    }
    for _ in 0..8 {
        cluster.move_leader();
    }
    stop.store(true, Ordering::SeqCst);
    for worker in workers {
        bounded("the workers end", worker).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_outlives_the_restart_of_a_single_member() {
    let mut cluster = Cluster::start(1);
    let (locks, rival) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let held = locks.lock("a").ttl(secs(30)).renew_every(ms(100)).acquire().await.unwrap();
    let waits = waiter(patient(&rival, "a"), &rival).await;
    until("it is in the queue", async || cluster.keys("a/").len() == 2).await;
    cluster[0].restart();
    let before = locks.stats().renewed;
    until("it is renewed again", async || locks.stats().renewed > before + 1).await;
    assert!(matches!(held.state(), State::Held { .. }), "{:?}", held.state());
    assert!(!waits.is_finished());
    held.release().await.unwrap();
    bounded("the waiter gets the lock", waits).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_stands_still_is_left_for_another() {
    let cluster = Cluster::start(3);
    // The first in the list is the one that is asked first, and here not the leader.
    let quiet = (cluster.leader() + 1) % 3;
    let order: Vec<_> = (0..3).map(|step| cluster[(quiet + step) % 3].addr().to_string()).collect();
    let locks = connect(&cluster.url_at(&order.join(","))).await;
    let guard = take(&locks, "a").await;
    cluster[quiet].pause();
    let extended = bounded("the extension ends", guard.extend()).await;
    cluster[quiet].resume();
    extended.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_connections_hang_is_left_once_however_many_wait_for_it() {
    let cluster = Cluster::config().password("hush").start(1);
    let proxy = Proxy::start(cluster[0].addr());
    // Half of that is for the member that hangs, and the other half has to do for a login on a busy machine.
    let url = cluster.url_at(&format!("{},{}?timeout=8s", proxy.addr(), cluster[0].addr()));
    let locks = connect(&url).await;
    // With a lease, so that each of them has but one request.
    take(&locks, "a").await.release().await.unwrap();
    proxy.cut();
    // New connections are made and nobody answers the login.
    proxy.stall();
    let names = ["a", "b", "c", "d"].map(|name| locks.lock(name).ttl(LONG));
    let [a, b, c, d] = &names;
    let all = async { tokio::join!(a.try_acquire(), b.try_acquire(), c.try_acquire(), d.try_acquire()) };
    let (a, b, c, d) = bounded("the tries end", all).await;
    for guard in [a, b, c, d] {
        guard.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_died_in_silence_is_replaced_within_one_request() {
    let cluster = Cluster::start(1);
    let far = Proxy::start(cluster[0].addr());
    let near = Proxy::start(far.addr());
    let locks = connect(&cluster.url_at(&near.addr().to_string())).await;
    take(&locks, "a").await.release().await.unwrap();
    // What was connected hangs, and what connects passes.
    near.redirect(cluster[0].addr());
    far.stall();
    let guard = bounded("the try ends", locks.lock("a").ttl(LONG).try_acquire()).await;
    guard.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_the_cluster_is_out_of_reach_and_says_so() {
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
async fn a_cluster_whose_revision_went_back_is_refused() {
    let mut cluster = Cluster::start(1);
    let locks = connect(&cluster.url()).await;
    for _ in 0..5 {
        take(&locks, "a").await.release().await.unwrap();
    }
    cluster[0].restart_empty();
    let error = bounded("the try ends", locks.lock("a").try_acquire()).await.unwrap_err();
    assert!(matches!(&error, Error::Config { message } if message.contains("--bump-revision")), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_lost_when_the_cluster_is_restored_from_an_older_snapshot() {
    for renew in [true, false] {
        let mut cluster = Cluster::start(1);
        let locks = connect(&cluster.url()).await;
        take(&locks, "a").await.release().await.unwrap();
        let snapshot = cluster.snapshot();
        for _ in 0..50 {
            cluster.etcdctl(&["put", "x", "y"]);
        }
        // By a renewal, or by what looks after the lock when its watch ends.
        let lock = patient(&locks, "a").renew_every(ms(100)).renew(renew);
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
            matches!(&error, Error::Config { message } if message.contains("--bump-revision")),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_lost_when_its_address_leads_to_another_cluster() {
    let (one, two) = (Cluster::start(1), Cluster::start(1));
    let proxy = Proxy::start(one[0].addr());
    let locks = connect(&one.url_at(&proxy.addr().to_string())).await;
    let held = take(&locks, "a").await;
    // Its revision is larger, so that alone does not give it away.
    for _ in 0..10 {
        two.etcdctl(&["put", "x", "y"]);
    }
    proxy.redirect(two[0].addr());
    proxy.reset();
    bounded("it is lost", held.lost()).await;
    let error = bounded("the try ends", locks.lock("b").try_acquire()).await.unwrap_err();
    assert!(matches!(&error, Error::Config { message } if message.contains("two clusters")), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_stops_neither_a_waiter_nor_the_watch_of_a_holder() {
    let cluster = Cluster::start(1);
    let proxy = Proxy::start(cluster[0].addr());
    let far = connect(&cluster.url_at(&proxy.addr().to_string())).await;
    let near = connect(&cluster.url()).await;
    let held = patient(&far, "a").renew(false).acquire().await.unwrap();
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
