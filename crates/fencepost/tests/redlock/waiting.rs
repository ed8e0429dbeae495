//! Waiters stand in a queue on each node, and a release wakes the first of them that can be reached.

use fencepost::{Guard, Locks};
use fencepost_testkit::redis::Fleet;
use tokio::task::JoinHandle;

use crate::stage::{
    CALM, boottime, bounded, connect_to_all, declared, holds, is_clear, ms, patient, take, until,
};

const QUEUE: &str = "{lock:a}:waiters";

fn wait(locks: &Locks) -> JoinHandle<Guard> {
    let lock = patient(locks, "a");
    tokio::spawn(async move { lock.acquire().await.unwrap() })
}

/// Holds the lock on every node. One that has not heard of the holder yet would give it to a waiter, over and
/// over, which stands in no queue there.
async fn hold(fleet: &Fleet, locks: &Locks) -> Guard {
    let guard = take(locks).await;
    until("all nodes have it", async || fleet.iter().all(|node| holds(node, "a"))).await;
    guard
}

fn queue(fleet: &Fleet, node: usize) -> Vec<String> {
    let entries = fleet[node].cli(&["LRANGE", QUEUE, "0", "-1"]);
    entries.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

async fn queued(fleet: &Fleet, count: usize) {
    until("all wait", async || (0..fleet.len()).all(|node| queue(fleet, node).len() == count)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_takes_the_waiter_out_of_the_queues_and_wakes_it() {
    let fleet = declared(3, CALM).await;
    let (locks, others) = (connect_to_all(&fleet, CALM).await, connect_to_all(&fleet, CALM).await);
    let guard = hold(&fleet, &locks).await;
    let waiter = wait(&others);
    queued(&fleet, 1).await;
    let channel = queue(&fleet, 0)[0].split(' ').next().unwrap().to_owned();
    assert_eq!(fleet[0].cli(&["PUBSUB", "NUMSUB", &channel]), format!("{channel}\n1"), "it listens");
    let before = publications(&fleet);
    guard.release().await.unwrap();
    let next = bounded("the waiter has it", waiter).await.unwrap();
    assert!(publications(&fleet) > before, "somebody was told");
    next.release().await.unwrap();
    is_clear(&fleet).await;
}

/// How many messages the nodes have sent to waiters.
fn publications(fleet: &Fleet) -> u64 {
    let calls = |node: &fencepost_testkit::redis::Server| {
        let stats = node.cli(&["INFO", "commandstats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_publish:calls="));
        line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
    };
    fleet.iter().map(calls).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_told_so_looks_before_its_time() {
    let fleet = declared(3, CALM).await;
    let (locks, others) = (connect_to_all(&fleet, CALM).await, connect_to_all(&fleet, CALM).await);
    let guard = hold(&fleet, &locks).await;
    let waiter = wait(&others);
    queued(&fleet, 1).await;
    let entry = queue(&fleet, 0).remove(0);
    let (channel, owner) = entry.split_once(' ').unwrap();
    // By itself it looks every 300 ms at the most. On a slow machine it takes a while until it is seen to be
    // faster.
    until("it looks five times in less time than by itself", async || {
        let started = boottime();
        for _ in 0..5 {
            let before = fleet[0].evalsha_calls();
            assert_eq!(fleet[0].cli(&["PUBLISH", channel, &format!("free {owner} ")]), "1");
            // An attempt, and giving it back.
            until("it looks", async || fleet[0].evalsha_calls() >= before + 2).await;
        }
        boottime() - started < ms(4 * 300)
    })
    .await;
    guard.release().await.unwrap();
    bounded("the waiter has it", waiter).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_entry_of_a_dead_waiter_is_passed_over() {
    let fleet = declared(3, CALM).await;
    let (locks, others) = (connect_to_all(&fleet, CALM).await, connect_to_all(&fleet, CALM).await);
    let guard = hold(&fleet, &locks).await;
    // As a process leaves them that was killed.
    for node in fleet.iter() {
        for dead in ["0000000000000000", "1111111111111111"] {
            node.cli(&["RPUSH", QUEUE, &format!("{dead} 01890000-0000-7000-8000-000000000000")]);
        }
    }
    let waiter = wait(&others);
    queued(&fleet, 3).await;
    guard.release().await.unwrap();
    let next = bounded("the waiter has it", waiter).await.unwrap();
    next.release().await.unwrap();
    is_clear(&fleet).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_outlives_a_node_that_dies_and_the_holders_release() {
    let mut fleet = declared(3, CALM).await;
    let (locks, others) = (connect_to_all(&fleet, CALM).await, connect_to_all(&fleet, CALM).await);
    let guard = hold(&fleet, &locks).await;
    let waiter = wait(&others);
    queued(&fleet, 1).await;
    fleet[0].kill();
    guard.release().await.unwrap();
    bounded("the waiter has it", waiter).await.unwrap().release().await.unwrap();
}

/// Gives the lock to a client that is none of ours, on some nodes.
fn foreign(fleet: &Fleet, nodes: std::ops::Range<usize>) {
    for node in nodes {
        fleet[node].cli(&["SET", "lock:a", "somebody else's"]);
    }
}

fn queues(fleet: &Fleet) -> usize {
    (0..fleet.len()).filter(|&node| !queue(fleet, node).is_empty()).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gets_the_lock_at_once_stands_in_no_queue() {
    let fleet = declared(5, CALM).await;
    let locks = connect_to_all(&fleet, CALM).await;
    foreign(&fleet, 3..5);
    // If a node is slow, it is a later attempt that wins.
    until("who gets it at once stands in no queue", async || {
        let guard = take(&locks).await;
        until("all others have it", async || (0..3).all(|node| holds(&fleet[node], "a"))).await;
        let stands = queues(&fleet) > 0;
        guard.release().await.unwrap();
        until("it is gone", async || queues(&fleet) == 0 && (0..3).all(|node| !holds(&fleet[node], "a")))
            .await;
        !stands
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_leaves_all_queues_when_a_later_attempt_wins() {
    let fleet = declared(5, CALM).await;
    let locks = connect_to_all(&fleet, CALM).await;
    // An attempt may fall between two of the deletions.
    until("all nodes grant it", async || {
        foreign(&fleet, 0..5);
        let waiter = wait(&locks);
        queued(&fleet, 1).await;
        for node in fleet.iter() {
            node.cli(&["DEL", "lock:a"]);
        }
        let guard = bounded("it gets the lock", waiter).await.unwrap();
        // Comes behind the attempt on every node.
        locks.show("a").await.unwrap();
        let owner = guard.owner().to_string();
        let all = fleet.iter().all(|node| node.cli(&["GET", "lock:a"]).starts_with(&owner));
        if all {
            until("all have forgotten it", async || queues(&fleet) == 0).await;
        }
        guard.release().await.unwrap();
        let gone = || queues(&fleet) == 0 && !fleet.iter().any(|node| holds(node, "a"));
        until("it is gone", async || gone()).await;
        all
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_leaves_takes_no_lock_with_it() {
    let fleet = declared(3, CALM).await;
    let locks = connect_to_all(&fleet, CALM).await;
    // A foreign client that writes no value.
    for node in fleet.iter() {
        node.cli(&["SET", "lock:a", "", "PX", "600000"]);
    }
    let waiter = wait(&locks);
    until("it stands in the queues", async || (0..3).all(|node| queue(&fleet, node).len() == 1)).await;
    waiter.abort();
    until("it has left them", async || (0..3).all(|node| queue(&fleet, node).is_empty())).await;
    assert!(fleet.iter().all(|node| node.cli(&["EXISTS", "lock:a"]) == "1"));
}
