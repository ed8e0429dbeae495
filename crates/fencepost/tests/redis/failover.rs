//! One Redis whose master and replica change their places, everything in sync, with links that stay open.

use fencepost::{Error, Locks};
use fencepost_testkit::redis::Server;

use crate::harness::{connect, ms, pair, queues, secs, swap, until, use_once};

#[tokio::test]
async fn a_client_leaves_a_server_that_has_become_a_replica() {
    let (master, replica, address) = pair().await;
    let locks = Locks::connect(&master.url_at(address.addr())).await.unwrap();
    let before = use_once(&locks, "a").await;
    let guard = locks.lock("held").ttl(secs(60)).acquire().await.unwrap();
    let handle = locks.lock("handle").ttl(secs(60)).acquire().await.unwrap().detach().await.unwrap();
    address.redirect(replica.addr());
    swap(&master, &replica).await;
    // Each of these finds a connection to the old master.
    assert!(use_once(&locks, "a").await > before);
    guard.extend().await.unwrap();
    guard.release().await.unwrap();
    locks.release(&handle).await.unwrap();
    assert!(replica.keys_like("lock:*").is_empty());
}

#[tokio::test]
async fn a_server_that_has_become_a_replica_is_named_where_there_is_no_other() {
    let (master, replica, address) = pair().await;
    let locks = Locks::connect(&master.url_at(address.addr())).await.unwrap();
    swap(&master, &replica).await;
    for _ in 0..3 {
        let error = locks.lock("a").try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }) && error.to_string().contains("replica"), "{error:?}");
    }
}

/// A waiter at the old master must not believe what the new one says about waiters that it cannot reach.
#[tokio::test]
async fn a_waiter_at_a_demoted_master_is_not_told_of_a_lock_that_others_get() {
    for _ in 0..5 {
        let (master, replica, address) = pair().await;
        let holder = connect(&master).await;
        let held =
            holder.lock("a").ttl(secs(60)).without_renewal().acquire().await.unwrap().detach().await.unwrap();
        let locks = Locks::connect(&master.url_at(address.addr())).await.unwrap();
        let waiter = tokio::spawn({
            let lock = locks.lock("a").ttl(secs(60));
            async move { lock.acquire().await }
        });
        queues(&master, "a", 1).await;
        swap(&master, &replica).await;
        let third = connect(&replica).await;
        third.release(&held).await.unwrap();
        let guard = third.lock("a").ttl(secs(60)).try_acquire().await.unwrap();
        let Some(guard) = guard else {
            // The waiter has looked, and is at the new master already.
            continue;
        };
        // It may end with an error, but it does not hold what another one holds.
        if let Ok(Ok(Ok(stray))) = tokio::time::timeout(ms(500), waiter).await {
            panic!("two hold it: {} and {}", stray.token(), guard.token());
        }
        guard.check().unwrap();
    }
}

/// A master and the locks of a client whose keeper is connected to it; then another one is the master, and
/// the first one is a replica that has heard of nothing since.
async fn demoted_and_behind() -> (Server, Server, fencepost_testkit::Proxy, Locks) {
    let (master, replica, address) = pair().await;
    let locks = Locks::connect(&master.url_at(address.addr())).await.unwrap();
    use_once(&locks, "a").await;
    until("the keeper has connected, too", async || {
        master.cli(&["CLIENT", "LIST", "TYPE", "pubsub"]).lines().count() == 2
    })
    .await;
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    address.redirect(replica.addr());
    master.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    (master, replica, address, locks)
}

#[tokio::test]
async fn a_lock_that_a_demoted_server_has_not_heard_of_is_renewed() {
    let (_master, _replica, _address, locks) = demoted_and_behind().await;
    let guard = locks.lock("b").ttl(ms(3000)).renew_every(ms(300)).acquire().await.unwrap();
    until("renewals go on", async || locks.stats().renewed >= 3 || guard.state().is_lost()).await;
    assert!(!guard.state().is_lost(), "{:?}", guard.state());
}

#[tokio::test]
async fn a_lock_that_a_demoted_server_has_not_heard_of_is_given_back() {
    let (_master, replica, _address, locks) = demoted_and_behind().await;
    drop(locks.lock("b").ttl(secs(600)).acquire().await.unwrap());
    until("it is given back", async || replica.keys_like("lock:*").is_empty()).await;
}
