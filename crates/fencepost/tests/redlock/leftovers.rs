//! Attempts that failed: no key and no waiter stays behind.
//!
//! Leases are long here: what is gone was given back.

use crate::harness::{CALM, LONG, connect_to_all, declared, holds, is_clear, ms, take, until, use_once};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_at_a_held_lock_leave_nothing() {
    let nodes = declared(5, CALM).await;
    let (locks, others) = (connect_to_all(&nodes, CALM).await, connect_to_all(&nodes, CALM).await);
    let guard = take(&locks).await;
    for _ in 0..10 {
        assert!(others.lock("a").ttl(LONG).try_acquire().await.unwrap().is_none());
        // Perhaps before any node has answered.
        let error = others.lock("a").ttl(LONG).wait(ms(20)).acquire().await.unwrap_err();
        assert!(error.is_transient(), "{error:?}");
    }
    let queues = || nodes.iter().map(|node| node.keys_like("*:waiters").len()).sum::<usize>();
    until("no waiter is left in a queue", async || queues() == 0).await;
    guard.release().await.unwrap();
    is_clear(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_got_a_minority_leaves_nothing() {
    let nodes = declared(5, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    for node in [0, 2, 4] {
        nodes[node].cli(&["SET", "lock:a", "foreign", "PX", "600000"]);
    }
    for _ in 0..10 {
        assert!(locks.lock("a").ttl(LONG).try_acquire().await.unwrap().is_none());
    }
    until("its keys are given back", async || !holds(&nodes[1], "a") && !holds(&nodes[3], "a")).await;
    for node in [0, 2, 4] {
        assert_eq!(nodes[node].cli(&["GET", "lock:a"]), "foreign");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_without_a_majority_of_nodes_leaves_nothing() {
    let mut nodes = declared(5, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    use_once(&locks).await;
    for dead in 2..5 {
        nodes[dead].kill();
    }
    for _ in 0..10 {
        locks.lock("a").ttl(LONG).try_acquire().await.unwrap_err();
    }
    until("its keys are given back", async || !holds(&nodes[0], "a") && !holds(&nodes[1], "a")).await;
}
