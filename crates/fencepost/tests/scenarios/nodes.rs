//! Nodes that are dead or frozen: a minority is not missed, a majority is, and says so.

use fencepost::SupervisorExt as _;
use fencepost::{Error, Loss, State, Verdict};
use fencepost_testkit::redis::Server;

use crate::redis_nodes::{
    CALM, LONG, QUICK, boottime, bounded, connect, connect_to_all, declared, is_clear, ms, take, until,
    use_once,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s01_one_of_five_is_killed_and_then_another() {
    // Whoever waited for an answer of a dead one would wait for longer than a test may take.
    let patient = &format!("{CALM}&timeout=10m");
    let mut nodes = declared(5, patient).await;
    let (locks, mut tokens) = (connect_to_all(&nodes, patient).await, Vec::new());
    tokens.push(use_once(&locks).await);
    for (dead, alive) in [(4, 0..4), (0, 1..4)] {
        let held = take(&locks).await;
        tokens.push(held.token().get());
        let owner = held.owner().to_string();
        // Else it might have needed the one that dies.
        until("all others have it", async || {
            held.extend().await.unwrap();
            alive.clone().all(|node| nodes[node].cli(&["GET", "lock:a"]).starts_with(&owner))
        })
        .await;
        nodes[dead].kill();
        held.extend().await.unwrap();
        held.release().await.unwrap();
        tokens.push(bounded("a client that was connected", use_once(&locks)).await);
        tokens.push(bounded("a new one", async { use_once(&connect(&nodes, patient).await).await }).await);
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s02_a_majority_is_killed_and_every_node_is_reported() {
    let mut nodes = declared(5, QUICK).await;
    let locks = connect_to_all(&nodes, QUICK).await;
    let before = {
        let guard = locks.lock("a").ttl(ms(1000)).acquire().await.unwrap();
        guard.token()
    };
    for dead in 0..3 {
        nodes[dead].kill();
    }
    let stranger = fencepost::Locks::connect(&nodes.url_with(QUICK)).await.unwrap_err();
    for lock in [locks.lock("b").ttl(ms(1000)), locks.lock("b").ttl(ms(1000)).wait(ms(3000))] {
        let error = bounded("an error", lock.acquire()).await.unwrap_err();
        for error in [&error, &stranger] {
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            let verdicts: Vec<_> = error.nodes().iter().map(|node| &node.verdict).collect();
            assert_eq!(verdicts.len(), 5, "{error}");
            assert!(verdicts[..3].iter().all(|verdict| unreachable(verdict)), "{error}");
            assert!(verdicts[3..].iter().all(|verdict| **verdict == Verdict::Granted), "{error}");
            assert!(error.nodes().iter().all(|node| error.to_string().contains(&node.node)), "{error}");
        }
    }
    for dead in 0..3 {
        nodes[dead].restart();
    }
    // They may have lost data, and are in quarantine first.
    let guard = locks.lock("a").ttl(ms(1000)).acquire().await.unwrap();
    assert!(guard.token() > before);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s02_a_majority_that_says_nothing_is_reported_when_the_callers_time_is_over() {
    // Nothing else ends before the test does: not the wait for an answer, and not the lease.
    let patient = &format!("{CALM}&timeout=10m");
    let nodes = declared(5, patient).await;
    let locks = connect_to_all(&nodes, patient).await;
    use_once(&locks).await;
    nodes.iter().take(3).for_each(Server::pause);
    let lock = locks.lock("a").ttl(LONG).wait(ms(500));
    let error = bounded("an error", lock.acquire()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    nodes.iter().take(3).for_each(Server::resume);
    is_clear(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s02_a_majority_is_killed_and_the_holder_holds_until_its_validity_ends() {
    let mut nodes = declared(5, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    let guard = locks.lock("a").ttl(ms(6000)).acquire().await.unwrap();
    for dead in 2..5 {
        nodes[dead].kill();
    }
    guard.check().unwrap();
    let state = match guard.state() {
        State::Held { .. } => bounded("it is at risk", guard.changed()).await,
        state => state,
    };
    assert!(matches!(state, State::AtRisk { .. }), "{state:?}");
    assert_eq!(bounded("it is lost", guard.lost()).await, Loss::Unreachable);
    assert!(boottime() >= guard.valid_until_boottime().unwrap(), "not before its validity ended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s07_a_frozen_node_is_not_waited_for() {
    // Whoever waited for its answer would wait for longer than a test may take.
    let parameters = &format!("{CALM}&timeout=10m");
    let nodes = declared(5, parameters).await;
    let locks = connect_to_all(&nodes, parameters).await;
    for frozen in [0, 3] {
        nodes[frozen].pause();
        bounded("a client that was connected", use_once(&locks)).await;
        bounded("a new one", async { use_once(&connect(&nodes, parameters).await).await }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s07_a_held_lock_is_renewed_while_a_minority_is_frozen() {
    let nodes = declared(5, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    let guard = locks.lock("a").ttl(ms(3000)).acquire().await.unwrap();
    nodes[1].pause();
    nodes[2].pause();
    let before = locks.stats().renewed;
    until("it is renewed three times", async || locks.stats().renewed >= before + 3).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s07_a_node_frozen_during_an_acquire_and_the_release_keeps_nothing() {
    let nodes = declared(3, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    use_once(&locks).await;
    for frozen in 0..3 {
        nodes[frozen].pause();
        use_once(&locks).await;
        drop(take(&locks).await);
        nodes[frozen].resume();
        is_clear(&nodes).await;
    }
}

fn unreachable(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Unreachable { .. })
}
