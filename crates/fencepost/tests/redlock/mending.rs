//! A held lock whose keys are lost on some nodes: renewal makes them anew, but never takes from others what is theirs,
//! and never after the release.

use fencepost::{Error, Loss};

use crate::stage::{CALM, connect, counter, declared, holds, is_clear, ms, patient, ready, take, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_deleted_on_a_minority_are_made_anew() {
    let fleet = declared(5, CALM).await;
    let locks = connect(&fleet, CALM).await;
    let guard = take(&locks).await;
    until("all nodes have it", async || fleet.iter().all(|node| holds(node, "a"))).await;
    let (token, value) = (guard.token(), fleet[2].cli(&["GET", "lock:a"]));
    for node in [0, 1] {
        assert_eq!(fleet[node].cli(&["DEL", "lock:a", "{lock:a}:fence"]), "2");
    }
    guard.extend().await.unwrap();
    until("all nodes have it again", async || {
        fleet.iter().all(|node| node.cli(&["GET", "lock:a"]) == value && counter(node) == token.get())
    })
    .await;
    assert_eq!(guard.token(), token);
    guard.release().await.unwrap();
    is_clear(&fleet).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_lost_with_a_node_are_made_anew_when_its_quarantine_is_over() {
    let parameters = "max_ttl=2s&quarantine=4s";
    let mut fleet = declared(3, parameters).await;
    let locks = connect(&fleet, parameters).await;
    let guard = locks.lock("a").ttl(ms(2000)).acquire().await.unwrap();
    let token = guard.token().get();
    fleet[1].restart_empty();
    until("it is held there again", async || {
        let held = holds(&fleet[1], "a");
        assert!(!held || ready(&fleet[1]).is_none(), "not while it is in quarantine");
        guard.check().unwrap();
        held
    })
    .await;
    assert_eq!((counter(&fleet[1]), guard.token().get()), (token, token));
    // With that node it is a majority again.
    fleet[0].pause();
    guard.extend().await.unwrap();
    fleet[0].resume();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_of_which_others_have_a_majority_is_lost() {
    let fleet = declared(5, CALM).await;
    let locks = connect(&fleet, CALM).await;
    let guard = take(&locks).await;
    until("all nodes have it", async || fleet.iter().all(|node| holds(node, "a"))).await;
    let seize = |node: usize| fleet[node].cli(&["SET", "lock:a", "foreign", "PX", "600000"]);
    for node in [1, 3] {
        seize(node);
    }
    guard.extend().await.unwrap();
    seize(4);
    let error = guard.extend().await.unwrap_err();
    assert!(matches!(error, Error::Lost { why: Loss::Taken, .. }), "{error:?}");
    drop(guard);
    until("ours are given back", async || !holds(&fleet[0], "a") && !holds(&fleet[2], "a")).await;
    for node in [1, 3, 4] {
        assert_eq!(fleet[node].cli(&["GET", "lock:a"]), "foreign");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extension_that_a_frozen_node_hears_after_the_release_makes_nothing_anew() {
    let fleet = declared(3, CALM).await;
    let locks = connect(&fleet, CALM).await;
    for _ in 0..3 {
        let guard = take(&locks).await;
        guard.extend().await.unwrap();
        fleet[0].pause();
        guard.extend().await.unwrap();
        guard.release().await.unwrap();
        fleet[0].resume();
        is_clear(&fleet).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extension_that_reaches_a_node_after_the_validity_makes_nothing_anew() {
    let fleet = declared(3, CALM).await;
    let locks = connect(&fleet, CALM).await;
    let guard = locks.lock("a").ttl(ms(500)).acquire().await.unwrap();
    guard.extend().await.unwrap();
    fleet[0].pause();
    guard.extend().await.unwrap();
    let until_then = guard.valid_until_boottime().unwrap();
    guard.release().await.unwrap();
    until("the validity ends", async || crate::stage::boottime() > until_then + ms(200)).await;
    fleet[0].resume();
    // An answer over the same connection: what was sent over it before has been acted on, and what followed from it.
    assert!(locks.show("a").await.unwrap().is_none());
    for _ in 0..20 {
        assert!(!holds(&fleet[0], "a"), "made anew");
        tokio::time::sleep(ms(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extension_that_waits_for_a_connection_does_not_outlive_the_release() {
    let parameters = &format!("{CALM}&timeout=20s");
    let fleet = declared(3, parameters).await;
    fleet[0].pause();
    let locks = connect(&fleet, parameters).await;
    let guard = take(&locks).await;
    guard.extend().await.unwrap();
    guard.release().await.unwrap();
    let next = patient(&locks, "b").acquire().await.unwrap();
    next.extend().await.unwrap();
    fleet[0].resume();
    // It goes the same way as the other one would, behind it.
    until("an extension is heard there", async || holds(&fleet[0], "b")).await;
    next.release().await.unwrap();
    is_clear(&fleet).await;
}
