//! The queue: who stands where in it, names below names, and the order of tokens.

use fencepost::Error;
use fencepost_testkit::etcd::Cluster;

use crate::harness::{LONG, bounded, connect, ms, patient, take, until, waiter};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_several_clients_are_served_in_order() {
    let cluster = Cluster::start(1);
    let locks = connect(&cluster.url()).await;
    let held = take(&locks, "a").await;
    let (mut waiters, mut rivals) = (Vec::new(), Vec::new());
    for number in 0..5 {
        let rival = connect(&cluster.url()).await;
        waiters.push(waiter(patient(&rival, "a"), &rival).await);
        rivals.push(rival);
        until("it is in the queue", async || cluster.keys("a/").len() == number + 2).await;
    }
    let shown = locks.show("a").await.unwrap().unwrap();
    assert_eq!(shown.token, Some(held.token()));
    let queue: Vec<_> = shown.queue.iter().map(|waiting| waiting.token).collect();
    assert!(queue.len() == 5 && queue.is_sorted() && queue[0] > shown.token, "{queue:?}");
    assert!(shown.queue.iter().all(|waiting| waiting.pid == Some(std::process::id())));
    let mut last = held.token();
    held.release().await.unwrap();
    for waits in waiters {
        let guard = bounded("its turn comes", waits).await.unwrap().unwrap();
        assert!(guard.token() > last);
        last = guard.token();
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiters_of_one_client_are_one_key_in_the_queue() {
    let cluster = Cluster::start(1);
    let (locks, rival) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let held = take(&locks, "a").await;
    let waiters: Vec<_> = (0..30)
        .map(|_| {
            let lock = patient(&rival, "a");
            tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() })
        })
        .collect();
    until("they wait", async || rival.stats().waiting_now == 30).await;
    until("one of them is in the queue", async || cluster.keys("a/").len() == 2).await;
    held.release().await.unwrap();
    for waits in waiters {
        bounded("every turn comes", waits).await.unwrap();
    }
    assert_eq!(cluster.keys("a/"), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_below_another_does_not_hold_it_up() {
    let cluster = Cluster::start(1);
    let (locks, rival) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let _below = (take(&locks, "a/b").await, take(&locks, "a/1f").await);
    let guard = rival.lock("a").ttl(LONG).try_acquire().await.unwrap().unwrap();
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    take(&locks, "a").await.release().await.unwrap();
    assert_eq!(cluster.keys("a/").len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_behind_a_task_of_its_own_client_knows_who_has_the_lock_by_now() {
    let cluster = Cluster::start(1);
    let (locks, rival) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let (first, third) = (take(&locks, "a").await, connect(&cluster.url()).await);
    let next = waiter(patient(&rival, "a"), &rival).await;
    until("it is in the queue", async || cluster.keys("a/").len() == 2).await;
    let ahead = waiter(patient(&third, "a"), &third).await;
    until("it is in the queue, too", async || cluster.keys("a/").len() == 3).await;
    // It looks every 5 s at least.
    let behind = waiter(third.lock("a").ttl(LONG).wait(ms(8000)), &third).await;
    first.release().await.unwrap();
    let next = bounded("its turn comes", next).await.unwrap().unwrap();
    match bounded("its time is up", behind).await.unwrap() {
        Err(Error::Timeout { holder: Some(holder), .. }) => assert_eq!(holder.token, Some(next.token())),
        other => panic!("{other:?}"),
    }
    next.release().await.unwrap();
    bounded("and the last one's", ahead).await.unwrap().unwrap().release().await.unwrap();
}
