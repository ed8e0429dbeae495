//! Members and leaders that die, stand still and come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost::{Error, State};
use fencepost_testkit::Proxy;
use fencepost_testkit::etcd::Cluster;

use crate::harness::{LONG, bounded, connect, ms, patient, take, until, waiter};

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
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
    let locks = connect(&format!("{}?timeout=8s", cluster.url_at(&order.join(",")))).await;
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
    let locks = connect(&format!("{}?timeout=8s", cluster.url_at(&near.addr().to_string()))).await;
    take(&locks, "a").await.release().await.unwrap();
    // What was connected hangs, and what connects passes.
    near.redirect(cluster[0].addr());
    far.stall();
    let guard = bounded("the try ends", locks.lock("a").ttl(LONG).try_acquire()).await;
    guard.unwrap().unwrap().release().await.unwrap();
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
    assert!(matches!(&error, Error::Config { message, .. } if message.contains("two clusters")), "{error}");
}
