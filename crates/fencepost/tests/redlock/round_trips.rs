//! What an acquire costs: one request to every node, as long as their counters agree; and how they agree again.

use crate::stage::{CALM, LONG, connect, counter, declared, holds, patient, take, until, use_once};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_and_a_release_are_one_request_each_to_every_node() {
    let fleet = declared(5, CALM).await;
    let locks = connect(&fleet, CALM).await;
    patient(&locks, "a").acquire().await.unwrap().release().await.unwrap();
    until("all nodes are connected", async || fleet.iter().all(|node| node.evalsha_calls() == 2)).await;
    for _ in 0..50 {
        patient(&locks, "a").acquire().await.unwrap().release().await.unwrap();
    }
    until("all requests are heard", async || fleet.iter().all(|node| node.evalsha_calls() >= 102)).await;
    let calls: Vec<_> = fleet.iter().map(|node| node.evalsha_calls()).collect();
    assert_eq!(calls, [102; 5]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_answer_is_one_attempt_also_where_a_node_is_dead() {
    for dead in [0, 1] {
        let mut fleet = declared(3, CALM).await;
        let (locks, others) = (connect(&fleet, CALM).await, connect(&fleet, CALM).await);
        let _guard = take(&locks).await;
        until("all nodes have it", async || fleet.iter().all(|node| holds(node, "a"))).await;
        if dead == 1 {
            fleet[2].kill();
            // Until the client has noticed.
            assert!(others.lock("b").ttl(LONG).try_acquire().await.unwrap().is_some());
            until("it is given back", async || !holds(&fleet[0], "b") && !holds(&fleet[1], "b")).await;
        }
        let before = fleet[0].evalsha_calls();
        assert!(others.lock("a").ttl(LONG).try_acquire().await.unwrap().is_none());
        // The attempt, and giving it back.
        until("all is heard", async || fleet[0].evalsha_calls() >= before + 2).await;
        assert_eq!(fleet[0].evalsha_calls(), before + 2, "{dead} dead");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_a_counter_is_ahead_the_token_is_larger_and_the_others_follow() {
    let fleet = declared(3, CALM).await;
    let locks = connect(&fleet, CALM).await;
    let ahead = use_once(&locks).await + 60_000_000;
    fleet[1].cli(&["SET", "{lock:a}:fence", &ahead.to_string()]);
    let mut tokens = Vec::new();
    // Nodes that answer late do not take part in the agreement at once.
    until("the counters agree", async || {
        tokens.push(use_once(&locks).await);
        let last = *tokens.last().unwrap();
        last > ahead && fleet.iter().all(|node| counter(node) == last)
    })
    .await;
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    // From then on an acquire is one request again.
    let before: Vec<_> = fleet.iter().map(|node| node.evalsha_calls()).collect();
    patient(&locks, "a").acquire().await.unwrap().release().await.unwrap();
    let calls = || fleet.iter().zip(&before).map(|(node, before)| node.evalsha_calls() - before);
    until("all requests are heard", async || calls().all(|calls| calls >= 2)).await;
    assert_eq!(calls().collect::<Vec<_>>(), [2; 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_missed_grants_catches_up() {
    let mut fleet = declared(3, CALM).await;
    let locks = connect(&fleet, CALM).await;
    let mut tokens = vec![use_once(&locks).await];
    fleet[2].pause();
    for _ in 0..5 {
        tokens.push(use_once(&locks).await);
    }
    // Far ahead of any clock, so that only what the nodes remember can keep the order.
    let ahead = tokens[5] + 60_000_000;
    for node in [0, 1] {
        fleet[node].cli(&["SET", "{lock:a}:fence", &ahead.to_string()]);
    }
    fleet[2].resume();
    fleet[0].kill();
    tokens.push(use_once(&locks).await);
    assert!(*tokens.last().unwrap() > ahead);
    fleet[0].restart_empty();
    tokens.push(use_once(&connect(&fleet, CALM).await).await);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    assert!(counter(&fleet[2]) >= *tokens.last().unwrap());
}
