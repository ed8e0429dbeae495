//! Waiters stand in a queue on each node, and a release wakes the first of them that can be reached.

use fencepost::{Guard, Locks};
use fencepost_testkit::redis::Nodes;
use tokio::task::JoinHandle;

use crate::harness::{
    CALM, boottime, bounded, connect_to_all, declared, holds, is_clear, ms, patient, take, until,
};

const QUEUE: &str = "{lock:a}:waiters";

fn wait(locks: &Locks) -> JoinHandle<Guard> {
    let lock = patient(locks, "a");
    tokio::spawn(async move { lock.acquire().await.unwrap() })
}

/// Holds the lock on every node. One that has not heard of the holder yet would give it to a waiter, over and
/// over, which stands in no queue there.
async fn hold(nodes: &Nodes, locks: &Locks) -> Guard {
    let guard = take(locks).await;
    until("all nodes have it", async || nodes.iter().all(|node| holds(node, "a"))).await;
    guard
}

fn queue(nodes: &Nodes, node: usize) -> Vec<String> {
    let entries = nodes[node].cli(&["LRANGE", QUEUE, "0", "-1"]);
    entries.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

async fn queued(nodes: &Nodes, count: usize) {
    until("all wait", async || (0..nodes.len()).all(|node| queue(nodes, node).len() == count)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_takes_the_waiter_out_of_the_queues_and_wakes_it() {
    let nodes = declared(3, CALM).await;
    let (locks, others) = (connect_to_all(&nodes, CALM).await, connect_to_all(&nodes, CALM).await);
    let guard = hold(&nodes, &locks).await;
    let waiter = wait(&others);
    queued(&nodes, 1).await;
    let channel = queue(&nodes, 0)[0].split(' ').next().unwrap().to_owned();
    assert_eq!(nodes[0].cli(&["PUBSUB", "NUMSUB", &channel]), format!("{channel}\n1"), "it listens");
    let before = publications(&nodes);
    guard.release().await.unwrap();
    let next = bounded("the waiter has it", waiter).await.unwrap();
    assert!(publications(&nodes) > before, "somebody was told");
    next.release().await.unwrap();
    is_clear(&nodes).await;
}

/// How many messages the nodes have sent to waiters.
fn publications(nodes: &Nodes) -> u64 {
    let calls = |node: &fencepost_testkit::redis::Server| {
        let stats = node.cli(&["INFO", "commandstats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_publish:calls="));
        line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
    };
    nodes.iter().map(calls).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_told_so_looks_before_its_time() {
    let nodes = declared(3, CALM).await;
    let (locks, others) = (connect_to_all(&nodes, CALM).await, connect_to_all(&nodes, CALM).await);
    let guard = hold(&nodes, &locks).await;
    let waiter = wait(&others);
    queued(&nodes, 1).await;
    let entry = queue(&nodes, 0).remove(0);
    let (channel, owner) = entry.split_once(' ').unwrap();
    // By itself it looks every 300 ms at the most. On a slow machine it takes a while until it is seen to be
    // faster.
    until("it looks five times in less time than by itself", async || {
        let started = boottime();
        for _ in 0..5 {
            let before = nodes[0].evalsha_calls();
            assert_eq!(nodes[0].cli(&["PUBLISH", channel, &format!("free {owner} ")]), "1");
            // An attempt, and giving it back.
            until("it looks", async || nodes[0].evalsha_calls() >= before + 2).await;
        }
        boottime() - started < ms(4 * 300)
    })
    .await;
    guard.release().await.unwrap();
    bounded("the waiter has it", waiter).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_entry_of_a_dead_waiter_is_passed_over() {
    let nodes = declared(3, CALM).await;
    let (locks, others) = (connect_to_all(&nodes, CALM).await, connect_to_all(&nodes, CALM).await);
    let guard = hold(&nodes, &locks).await;
    // As a process leaves them that was killed.
    for node in nodes.iter() {
        for dead in ["0000000000000000", "1111111111111111"] {
            node.cli(&["RPUSH", QUEUE, &format!("{dead} 01890000-0000-7000-8000-000000000000")]);
        }
    }
    let waiter = wait(&others);
    queued(&nodes, 3).await;
    guard.release().await.unwrap();
    let next = bounded("the waiter has it", waiter).await.unwrap();
    next.release().await.unwrap();
    is_clear(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_outlives_a_node_that_dies_and_the_holders_release() {
    let mut nodes = declared(3, CALM).await;
    let (locks, others) = (connect_to_all(&nodes, CALM).await, connect_to_all(&nodes, CALM).await);
    let guard = hold(&nodes, &locks).await;
    let waiter = wait(&others);
    queued(&nodes, 1).await;
    nodes[0].kill();
    guard.release().await.unwrap();
    bounded("the waiter has it", waiter).await.unwrap().release().await.unwrap();
}

/// Gives the lock to a client that is none of ours, on some nodes.
fn foreign(nodes: &Nodes, which: std::ops::Range<usize>) {
    for node in which {
        nodes[node].cli(&["SET", "lock:a", "somebody else's"]);
    }
}

fn queues(nodes: &Nodes) -> usize {
    (0..nodes.len()).filter(|&node| !queue(nodes, node).is_empty()).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gets_the_lock_at_once_stands_in_no_queue() {
    let nodes = declared(5, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    foreign(&nodes, 3..5);
    // If a node is slow, it is a later attempt that wins.
    until("who gets it at once stands in no queue", async || {
        let guard = take(&locks).await;
        until("all others have it", async || (0..3).all(|node| holds(&nodes[node], "a"))).await;
        let stands = queues(&nodes) > 0;
        guard.release().await.unwrap();
        until("it is gone", async || queues(&nodes) == 0 && (0..3).all(|node| !holds(&nodes[node], "a")))
            .await;
        !stands
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_leaves_all_queues_when_a_later_attempt_wins() {
    let nodes = declared(5, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    // An attempt may fall between two of the deletions.
    until("all nodes grant it", async || {
        foreign(&nodes, 0..5);
        let waiter = wait(&locks);
        queued(&nodes, 1).await;
        for node in nodes.iter() {
            node.cli(&["DEL", "lock:a"]);
        }
        let guard = bounded("it gets the lock", waiter).await.unwrap();
        // Comes behind the attempt on every node.
        locks.show("a").await.unwrap();
        let owner = guard.owner().to_string();
        let all = nodes.iter().all(|node| node.cli(&["GET", "lock:a"]).starts_with(&owner));
        if all {
            until("all have forgotten it", async || queues(&nodes) == 0).await;
        }
        guard.release().await.unwrap();
        let gone = || queues(&nodes) == 0 && !nodes.iter().any(|node| holds(node, "a"));
        until("it is gone", async || gone()).await;
        all
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_leaves_takes_no_lock_with_it() {
    let nodes = declared(3, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    // A foreign client that writes no value.
    for node in nodes.iter() {
        node.cli(&["SET", "lock:a", "", "PX", "600000"]);
    }
    let waiter = wait(&locks);
    until("it stands in the queues", async || (0..3).all(|node| queue(&nodes, node).len() == 1)).await;
    waiter.abort();
    until("it has left them", async || (0..3).all(|node| queue(&nodes, node).is_empty())).await;
    assert!(nodes.iter().all(|node| node.cli(&["EXISTS", "lock:a"]) == "1"));
}
