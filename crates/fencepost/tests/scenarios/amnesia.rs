//! Nodes that lost their data: they do not vote until every lock that they may have granted has ended, and
//! tokens grow all the same.

use fencepost::{Error, Guard, Locks};
use fencepost_testkit::redis::{Nodes, Server};

use crate::redis_nodes::{
    CALM, LONG, NODE, QUICK, bounded, clock, connect, connect_to_all, counter, declared, holds, ms, patient,
    quarantined, ready, take, until, use_once,
};

/// A lock that only nodes 0 and 1 of three have: any other majority needs the vote of one of them.
async fn held_by_a_bare_majority(nodes: &Nodes, locks: &Locks) -> Guard {
    let guard = patient(locks, "a").without_renewal().acquire().await.unwrap();
    until("the last node has it, too", async || holds(&nodes[2], "a")).await;
    nodes[2].cli(&["DEL", "lock:a"]);
    guard
}

/// Shows that node 1, which has lost the lock, does not help a rival to it.
async fn a_rival_does_not_get_the_vote(nodes: &Nodes, guard: Guard, why: &str) {
    let rival = connect(nodes, CALM).await;
    assert!(rival.lock("a").ttl(LONG).try_acquire().await.unwrap().is_none());
    assert!(!holds(&nodes[1], "a"));
    let found = rival.show("a").await.unwrap().unwrap().nodes;
    let trouble = found[1].problem.as_deref().unwrap();
    assert!(trouble.contains("does not vote for another") && trouble.contains(why), "{trouble}");
    // The vote is refused by the node, not by what this client knows.
    nodes[2].pause();
    let error = rival.lock("a").ttl(LONG).try_acquire().await.unwrap_err();
    assert!(quarantined(&error.nodes()[1].verdict, why), "{error}");
    nodes[2].resume();
    guard.check().unwrap();
    let token = guard.token();
    drop(guard);
    let next = take(&rival).await;
    assert!(next.token() > token && !holds(&nodes[1], "a"));
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s03_a_node_restarted_empty_does_not_give_its_vote_again() {
    let mut nodes = declared(3, CALM).await;
    let guard = held_by_a_bare_majority(&nodes, &connect_to_all(&nodes, CALM).await).await;
    nodes[1].restart_empty();
    a_rival_does_not_get_the_vote(&nodes, guard, "new, or has lost").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s04_a_node_restarted_from_an_old_snapshot_does_not_give_its_vote_again() {
    let mut nodes = declared(3, CALM).await;
    let before = nodes[1].snapshot();
    let guard = held_by_a_bare_majority(&nodes, &connect(&nodes, CALM).await).await;
    nodes[1].restart_from(&before);
    a_rival_does_not_get_the_vote(&nodes, guard, "restarted").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s04_a_key_that_came_back_with_an_old_snapshot_counts_for_nothing() {
    let mut nodes = declared(3, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    let guard = patient(&locks, "a").without_renewal().acquire().await.unwrap();
    until("all nodes have it", async || nodes.iter().all(|node| holds(node, "a"))).await;
    let before = nodes[1].snapshot();
    nodes[1].restart_from(&before);
    nodes[2].pause();
    // Two of three have the key, but one of them is a ghost.
    let error = guard.extend().await.unwrap_err();
    assert!(matches!(error, Error::Uncertain { .. }), "{error:?}");
    nodes[2].resume();
    guard.extend().await.unwrap();
}

/// The quarantine of [`QUICK`], in microseconds.
const QUARANTINE: u64 = 3_000_000;

/// Lets every node lose everything while a lock is held, and shows that the next one is granted a whole
/// quarantine after that, with a larger token.
async fn nobody_acquires_before_the_quarantine_ends(nodes: &mut Nodes, lose: impl Fn(&mut Server)) {
    let locks = connect(nodes, QUICK).await;
    // No renewal tells it of the loss: it is valid for all of its time.
    let held = locks.lock("a").ttl(ms(1000)).without_renewal().acquire().await.unwrap();
    let mut lost_at = Vec::new();
    for node in 0..nodes.len() {
        lost_at.push(clock(&nodes[node]));
        lose(&mut nodes[node]);
    }
    let rival = connect(nodes, QUICK).await;
    let lock = rival.lock("a").ttl(ms(1000));
    // A node that answers late is not waited for.
    until("all are in quarantine", async || {
        let error = lock.try_acquire().await.unwrap_err();
        error.nodes().iter().all(|node| quarantined(&node.verdict, ""))
    })
    .await;
    // It asks all the time, also while the first one still holds.
    let asks = async {
        loop {
            if let Ok(Some(guard)) = lock.try_acquire().await {
                return guard;
            }
        }
    };
    let next = bounded("the nodes vote again", asks).await;
    // It has the votes of a majority; these nodes lost everything then or later.
    let since = clock(&nodes[0]) - lost_at[nodes.len() / 2];
    assert!(since >= QUARANTINE, "granted {since} us after a majority had lost everything");
    assert!(held.state().is_lost(), "{:?} while another has it", held.state());
    assert!(next.token() > held.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s05_all_nodes_restarted_empty_and_nobody_acquires_before_the_quarantine_ends() {
    nobody_acquires_before_the_quarantine_ends(&mut declared(5, QUICK).await, Server::restart_empty).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s06_tokens_grow_while_one_node_after_the_other_loses_everything() {
    let mut nodes = declared(3, QUICK).await;
    let locks = connect_to_all(&nodes, QUICK).await;
    let mut tokens = Vec::new();
    for lost in 0..3 {
        tokens.push(locks.lock("a").ttl(ms(1000)).acquire().await.unwrap().token());
        nodes[lost].restart_empty();
        tokens.push(locks.lock("a").ttl(ms(1000)).acquire().await.unwrap().token());
        until("it votes again", async || {
            let _ = locks.lock("a").ttl(ms(1000)).try_acquire().await;
            nodes[lost].cli(&["EXISTS", NODE]) == "1" && ready(&nodes[lost]).is_none()
        })
        .await;
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s24_a_flushed_node_does_not_give_its_vote_again() {
    let nodes = declared(3, CALM).await;
    let guard = held_by_a_bare_majority(&nodes, &connect_to_all(&nodes, CALM).await).await;
    nodes[1].cli(&["FLUSHALL"]);
    a_rival_does_not_get_the_vote(&nodes, guard, "new, or has lost").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s24_a_node_flushed_under_a_connected_rival_does_not_give_its_vote_again() {
    let nodes = declared(3, CALM).await;
    let rival = connect_to_all(&nodes, CALM).await;
    use_once(&rival).await;
    let guard = held_by_a_bare_majority(&nodes, &connect(&nodes, CALM).await).await;
    nodes[1].cli(&["FLUSHALL"]);
    assert!(rival.lock("a").ttl(LONG).try_acquire().await.unwrap().is_none());
    guard.check().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s24_all_nodes_flushed_and_nobody_acquires_before_the_quarantine_ends() {
    let flush = |node: &mut Server| drop(node.cli(&["FLUSHALL"]));
    nobody_acquires_before_the_quarantine_ends(&mut declared(3, QUICK).await, flush).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s06_a_holder_keeps_its_lock_while_one_node_after_the_other_loses_everything() {
    let parameters = "max_ttl=3s&quarantine=5s";
    let mut nodes = declared(3, parameters).await;
    let locks = connect_to_all(&nodes, parameters).await;
    let guard = locks.lock("a").ttl(ms(3000)).acquire().await.unwrap();
    let token = guard.token().get();
    for lost in 0..3 {
        nodes[lost].restart_empty();
        until("it is held there again", async || {
            let held = holds(&nodes[lost], "a");
            assert!(!held || ready(&nodes[lost]).is_none(), "not while it is in quarantine");
            guard.check().unwrap();
            held
        })
        .await;
        assert_eq!((counter(&nodes[lost]), guard.token().get()), (token, token));
    }
    // None of them has it from the acquire, and they are a majority all the same.
    nodes[0].pause();
    guard.extend().await.unwrap();
    nodes[0].resume();
    guard.release().await.unwrap();
    let next = locks.lock("a").ttl(ms(3000)).acquire().await.unwrap();
    assert!(next.token().get() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s24_a_node_whose_databases_were_swapped_does_not_give_its_vote_again() {
    let nodes = declared(3, CALM).await;
    let guard = held_by_a_bare_majority(&nodes, &connect_to_all(&nodes, CALM).await).await;
    nodes[1].cli(&["SWAPDB", "0", "1"]);
    a_rival_does_not_get_the_vote(&nodes, guard, "new, or has lost").await;
}
