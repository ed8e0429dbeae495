//! One Redis that is replaced by its replica: exclusion may break, as SAFETY.md says, and tokens do not.

use fencepost::fence::Fence;
use fencepost::{Error, Locks, Loss};
use fencepost_testkit::Proxy;
use fencepost_testkit::redis::Server;

use crate::redis_nodes::{LONG, holds, take, until, use_once};

/// A master and its replica, with the link from one to the other, and an address that leads to the master.
async fn pair() -> (Server, Server, Proxy, Proxy) {
    let master = Server::start();
    let link = Proxy::start(master.addr());
    let replica = Server::config().line(format!("replicaof 127.0.0.1 {}", link.addr().port())).start();
    until("the replica follows", async || {
        replica.cli(&["INFO", "replication"]).contains("master_link_status:up")
    })
    .await;
    let address = Proxy::start(master.addr());
    (master, replica, link, address)
}

/// Waits until the replica knows of a lock that was had, and of its end.
async fn has_seen(replica: &Server) {
    let seen = || !replica.keys_like("{lock:a}:fence*").is_empty() && !holds(replica, "a");
    until("the replica has seen it come and go", async || seen()).await;
}

/// What Sentinel does.
fn fail_over(replica: &Server, address: &Proxy) {
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    address.redirect(replica.addr());
    address.reset();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s29_a_lock_that_the_replica_has_seen_outlives_a_failover() {
    let (mut master, replica, _link, address) = pair().await;
    let locks = Locks::connect(&master.url_at(address.addr())).await.unwrap();
    let guard = take(&locks).await;
    until("the replica has it", async || holds(&replica, "a")).await;
    master.kill();
    fail_over(&replica, &address);
    let rival = Locks::connect(&replica.url()).await.unwrap();
    assert!(rival.lock("a").ttl(LONG).try_acquire().await.unwrap().is_none());
    until("it is extended there", async || guard.extend().await.is_ok()).await;
    let before = guard.token().get();
    guard.release().await.unwrap();
    assert!(use_once(&rival).await > before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s29_tokens_grow_over_a_failover_to_a_replica_that_was_behind() {
    let (mut master, replica, link, address) = pair().await;
    let locks = Locks::connect(&master.url_at(address.addr())).await.unwrap();
    let mut last = use_once(&locks).await;
    has_seen(&replica).await;
    // It hears nothing of what follows.
    link.stall();
    for _ in 0..20 {
        last = use_once(&locks).await;
    }
    let old = take(&locks).await;
    assert!(old.token().get() > last);
    link.cut();
    master.kill();
    fail_over(&replica, &address);
    // Exclusion is broken: the lock was never heard of here. Its holder learns it at its next renewal.
    let rival = Locks::connect(&replica.url()).await.unwrap();
    let next = take(&rival).await;
    assert!(next.token() > old.token(), "{} after {}", next.token(), old.token());
    let mut told = None;
    until("the old holder is told", async || {
        told = old.extend().await.err().filter(|error| matches!(error, Error::Lost { .. }));
        told.is_some()
    })
    .await;
    assert!(matches!(told, Some(Error::Lost { why: Loss::Taken, .. })), "{told:?}");
    next.check().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s30_two_masters_give_out_one_lock_twice_and_the_resource_takes_one_writer() {
    let (master, replica, _link, address) = pair().await;
    let (old_side, new_side) = (Locks::connect(&master.url()).await.unwrap(), master.url_at(address.addr()));
    let account = Fence::connect("memory:").await.unwrap().resource("a");
    use_once(&old_side).await;
    has_seen(&replica).await;
    fail_over(&replica, &address);
    let new_side = Locks::connect(&new_side).await.unwrap();
    // Nothing can keep these two apart but the resource.
    let (old, new) = (take(&old_side).await, take(&new_side).await);
    assert!(new.token() > old.token(), "a master that was promoted starts at its clock");
    let stale = account.activate(old.token()).await.unwrap();
    stale.write("old").await.unwrap();
    let current = account.activate(new.token()).await.unwrap();
    current.write("new").await.unwrap();
    assert!(stale.write("lost").await.unwrap_err().stale().is_some());
    old.release().await.unwrap();
    assert_eq!(current.read().await.unwrap().as_deref(), Some(&b"new"[..]));
    // Each grant has its server's clock: whichever side came last is the one that writes.
    let last = take(&old_side).await;
    account.activate(last.token()).await.unwrap();
    assert!(current.write("lost").await.unwrap_err().stale().is_some());
}
