//! Many clients on one lock: everybody gets it, never two at once, and tokens grow in the order in which it
//! was had.

use std::time::Duration;

use fencepost::Locks;
use fencepost::SupervisorExt as _;
use fencepost_testkit::LIMIT;
use fencepost_testkit::history::{Client, History};
use fencepost_testkit::redis::{Nodes, Server};

use crate::redis_nodes::{CALM, LONG, bounded, connect, declared, is_clear, patient};

async fn turn(client: &Client, locks: &Locks) {
    client.invoke("a");
    let guard = patient(locks, "a").acquire().await.unwrap();
    client.acquired(guard.token().get(), guard.valid_until_boottime());
    tokio::task::yield_now().await;
    client.released(guard.valid_until_boottime());
    guard.release().await.unwrap();
}

/// Lets many tasks, with few connections or one each, have the lock until each has had it `turns` times.
async fn everybody_gets_it(url: &str, clients: usize, connections: usize, turns: usize) {
    let history = History::new();
    let mut stores = Vec::new();
    for _ in 0..connections {
        stores.push(Locks::connect(url).await.unwrap());
    }
    let tasks: Vec<_> = (0..clients)
        .map(|client| {
            let locks = stores[client % connections].clone();
            let client = history.client(u32::try_from(client).unwrap());
            tokio::spawn(async move {
                for _ in 0..turns {
                    turn(&client, &locks).await;
                }
            })
        })
        .collect();
    for task in tasks {
        bounded("everybody has had it", task).await.unwrap();
    }
    assert_eq!(history.check().acquisitions, (clients * turns) as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s32_fifty_clients_share_a_lock() {
    let nodes = Nodes::start(5);
    let links = nodes.proxies();
    let url = nodes.url_through(&links, CALM);
    Locks::init(&url).await.unwrap();
    // There and back: a round trip of one millisecond.
    links.iter().for_each(|link| link.delay(Duration::from_micros(500)));
    everybody_gets_it(&url, 50, 10, 3).await;
    is_clear(&nodes).await;
    // Who meets others tries again, but not so often that nobody gets through.
    let requests: u64 = nodes.iter().map(Server::evalsha_calls).sum();
    assert!(requests < 5 * 150 * 20, "{requests} requests for 150 locks");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s07_clients_share_a_lock_while_a_node_is_frozen() {
    for frozen in [0, 2] {
        let nodes = declared(5, CALM).await;
        nodes[frozen].pause();
        everybody_gets_it(&nodes.url_with(CALM), 12, 6, 2).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s01_clients_share_a_lock_while_two_nodes_are_dead() {
    let mut nodes = declared(5, CALM).await;
    nodes[1].kill();
    nodes[2].kill();
    everybody_gets_it(&nodes.url_with(CALM), 12, 6, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s32_of_two_who_try_at_the_same_time_one_gets_it() {
    let nodes = declared(5, CALM).await;
    one_of_two_gets_it(&nodes, CALM, 100).await;
    is_clear(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s32_of_two_who_try_at_the_same_time_one_gets_it_without_waiting_for_a_frozen_node() {
    // Whoever waited for its answer would wait for longer than a test may take.
    let parameters = &format!("{CALM}&timeout=10m");
    let nodes = declared(3, parameters).await;
    nodes[1].pause();
    bounded("all rounds", one_of_two_gets_it(&nodes, parameters, 30)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s32_two_who_are_each_near_to_half_of_the_nodes_do_not_split_the_votes_for_ever() {
    let parameters = &format!("{CALM}&deployment=test");
    let mut nodes = declared(5, parameters).await;
    let mut clients = Vec::new();
    for far in [[3, 4], [0, 1]] {
        let links = nodes.proxies();
        let locks = Locks::connect(&nodes.url_through(&links, parameters)).await.unwrap();
        far.iter().for_each(|&node: &usize| links[node].delay(Duration::from_millis(20)));
        clients.push((locks, links));
    }
    // Each gets the votes that are near before the other one's request arrives there, and they decide
    // nothing.
    nodes[2].kill();
    for round in 0..10 {
        let tasks: Vec<_> = clients
            .iter()
            .map(|(locks, _)| {
                let lock = locks.lock(format!("round:{round}")).ttl(LONG).wait(LIMIT / 4);
                tokio::spawn(async move {
                    let guard = lock.acquire().await.expect("the votes are not split for ever");
                    guard.release().await.unwrap();
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    }
    let requests: u64 = [0, 1, 3, 4].map(|node| nodes[node].evalsha_calls()).iter().sum();
    assert!(requests < 4 * 20 * 40, "the votes are not split for ever: {requests} requests for 20 locks");
}

async fn one_of_two_gets_it(nodes: &Nodes, parameters: &str, rounds: usize) {
    let (one, two) = (connect(nodes, parameters).await, connect(nodes, parameters).await);
    for round in 0..rounds {
        let name = format!("round:{round}");
        let attempt = |locks: &Locks| {
            let lock = locks.lock(name.as_str()).ttl(LONG);
            tokio::spawn(async move { lock.try_acquire().await.unwrap() })
        };
        let (first, second) = (attempt(&one), attempt(&two));
        let got = [first.await.unwrap(), second.await.unwrap()];
        assert_eq!(got.iter().flatten().count(), 1, "round {round}");
    }
}
