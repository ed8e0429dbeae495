//! What operators ask of a cluster.

use fencepost_testkit::redis::Cluster;

use crate::harness::{connect, elsewhere, slot_of, until};

#[tokio::test]
async fn all_masters_locks_are_listed_also_while_a_slot_moves() {
    let cluster = Cluster::start(3, 0);
    let locks = connect(&cluster).await;
    let mut guards = Vec::new();
    for number in 0..50 {
        guards.push(locks.lock(format!("n{number}")).acquire().await.unwrap());
    }
    let listed = async || {
        let listing = locks.list("n").await.unwrap();
        assert!(listing.unreadable.is_empty(), "{:?}", listing.unreadable);
        listing.holders.len()
    };
    assert_eq!(listed().await, 50);
    let on_its_way = cluster.begin_move(slot_of("n7"), elsewhere(&cluster, "n7"));
    assert_eq!(listed().await, 50);
    cluster.move_keys(&on_its_way, 2);
    assert_eq!(listed().await, 50);
    assert_eq!(locks.show("n7").await.unwrap().unwrap().token, Some(guards[7].token()));
    cluster.end_move(on_its_way);
    assert_eq!(listed().await, 50);
    locks.check().await.unwrap();
}

#[tokio::test]
async fn a_holder_and_its_waiters_are_shown_and_a_revocation_is_heard() {
    let cluster = Cluster::start(3, 0);
    let (locks, other) = (connect(&cluster).await, connect(&cluster).await);
    let guard = locks.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn({
        let lock = other.lock("a");
        async move { lock.acquire().await }
    });
    let queue = async || locks.show("a").await.unwrap().unwrap().queue.len();
    until("the waiter is shown", async || queue().await == 1).await;
    other.force_release("a", "stuck").await.unwrap();
    until("the holder hears of it", async || guard.state().is_lost()).await;
    let error = guard.check().unwrap_err().to_string();
    assert!(error.contains("stuck"), "{error}");
    let token = guard.token();
    drop(guard);
    assert!(waiter.await.unwrap().unwrap().token() > token);
}
