//! A held lock whose keys are lost on some nodes: renewal makes them anew, but never takes from others what
//! is theirs.

use fencepost::{Error, Loss};

use crate::harness::{CALM, connect_to_all, counter, declared, holds, is_clear, take, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_deleted_on_a_minority_are_made_anew() {
    let nodes = declared(5, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    let guard = take(&locks).await;
    until("all nodes have it", async || nodes.iter().all(|node| holds(node, "a"))).await;
    let (token, value) = (guard.token(), nodes[2].cli(&["GET", "lock:a"]));
    for node in [0, 1] {
        assert_eq!(nodes[node].cli(&["DEL", "lock:a", "{lock:a}:fence"]), "2");
    }
    guard.extend().await.unwrap();
    until("all nodes have it again", async || {
        nodes.iter().all(|node| node.cli(&["GET", "lock:a"]) == value && counter(node) == token.get())
    })
    .await;
    assert_eq!(guard.token(), token);
    guard.release().await.unwrap();
    is_clear(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_of_which_others_have_a_majority_is_lost() {
    let nodes = declared(5, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    let guard = take(&locks).await;
    until("all nodes have it", async || nodes.iter().all(|node| holds(node, "a"))).await;
    let seize = |node: usize| nodes[node].cli(&["SET", "lock:a", "foreign", "PX", "600000"]);
    for node in [1, 3] {
        seize(node);
    }
    guard.extend().await.unwrap();
    seize(4);
    let error = guard.extend().await.unwrap_err();
    assert!(matches!(error, Error::Lost { why: Loss::Taken, .. }), "{error:?}");
    drop(guard);
    until("ours are given back", async || !holds(&nodes[0], "a") && !holds(&nodes[2], "a")).await;
    for node in [1, 3, 4] {
        assert_eq!(nodes[node].cli(&["GET", "lock:a"]), "foreign");
    }
}
