//! Nodes that lost their data: they do not vote until every lock that they may have granted has ended, and tokens grow
//! all the same.

use fencepost::{Error, Guard, Locks};
use fencepost_testkit::redis::{Fleet, Server};

use crate::fleet::{
    CALM, LONG, NODE, QUICK, connect, counter, declared, holds, ms, patient, quarantined, ready, take, until,
    use_once,
};

/// A lock that only nodes 0 and 1 of three have: any other majority needs the vote of one of them.
async fn held_by_a_bare_majority(fleet: &Fleet, locks: &Locks) -> Guard {
    let guard = patient(locks, "a").renew(false).acquire().await.unwrap();
    until("the last node has it, too", async || holds(&fleet[2], "a")).await;
    fleet[2].cli(&["DEL", "lock:a"]);
    guard
}

/// Shows that node 1, which has lost the lock, does not help a rival to it.
async fn a_rival_does_not_get_the_vote(fleet: &Fleet, guard: Guard, why: &str) {
    let rival = connect(fleet, CALM).await;
    assert!(rival.lock("a").ttl(LONG).try_acquire().await.unwrap().is_none());
    assert!(!holds(&fleet[1], "a"));
    let nodes = rival.show("a").await.unwrap().unwrap().nodes;
    let trouble = nodes[1].trouble.as_deref().unwrap();
    assert!(trouble.contains("does not vote for another") && trouble.contains(why), "{trouble}");
    // The vote is refused by the node, not by what this client knows.
    fleet[2].pause();
    let error = rival.lock("a").ttl(LONG).try_acquire().await.unwrap_err();
    assert!(quarantined(&error.nodes()[1].verdict, why), "{error}");
    fleet[2].resume();
    guard.check().unwrap();
    let token = guard.token();
    drop(guard);
    let next = take(&rival).await;
    assert!(next.token() > token && !holds(&fleet[1], "a"));
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s03_a_node_restarted_empty_does_not_give_its_vote_again() {
    let mut fleet = declared(3, CALM).await;
    let guard = held_by_a_bare_majority(&fleet, &connect(&fleet, CALM).await).await;
    fleet[1].restart_empty();
    a_rival_does_not_get_the_vote(&fleet, guard, "new, or has lost").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s04_a_node_restarted_from_an_old_snapshot_does_not_give_its_vote_again() {
    let mut fleet = declared(3, CALM).await;
    let before = fleet[1].snapshot();
    let guard = held_by_a_bare_majority(&fleet, &connect(&fleet, CALM).await).await;
    fleet[1].restart_from(&before);
    a_rival_does_not_get_the_vote(&fleet, guard, "restarted").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s04_a_key_that_came_back_with_an_old_snapshot_counts_for_nothing() {
    let mut fleet = declared(3, CALM).await;
    let locks = connect(&fleet, CALM).await;
    let guard = patient(&locks, "a").renew(false).acquire().await.unwrap();
    until("all nodes have it", async || fleet.iter().all(|node| holds(node, "a"))).await;
    let before = fleet[1].snapshot();
    fleet[1].restart_from(&before);
    fleet[2].pause();
    // Two of three have the key, but one of them is a ghost.
    let error = guard.extend().await.unwrap_err();
    assert!(matches!(error, Error::Uncertain { .. }), "{error:?}");
    fleet[2].resume();
    guard.extend().await.unwrap();
}

/// When a node granted the lock `a` for `ttl`, in milliseconds of its clock, by the time that is left.
fn granted_at(node: &Server, ttl: u64) -> Option<u64> {
    let script = "local time, left = redis.call('TIME'), redis.call('PTTL', KEYS[1]) \
        return left < 0 and -1 or time[1] * 1000 + math.floor(time[2] / 1000) + left";
    let end: i64 = node.cli(&["EVAL", script, "1", "lock:a"]).parse().unwrap();
    u64::try_from(end).ok().map(|end| end - ttl)
}

/// Lets every node lose everything while a lock is held, and shows that the next one is granted after the quarantine, with a
/// larger token.
async fn nobody_acquires_before_the_quarantine_ends(fleet: &mut Fleet, lose: impl Fn(&mut Server)) {
    let locks = connect(fleet, QUICK).await;
    let held = locks.lock("a").ttl(ms(1000)).acquire().await.unwrap();
    let before = held.token();
    for node in 0..fleet.len() {
        lose(&mut fleet[node]);
    }
    let rival = connect(fleet, QUICK).await;
    let error = rival.lock("a").ttl(ms(1000)).try_acquire().await.unwrap_err();
    assert!(error.nodes().iter().all(|node| quarantined(&node.verdict, "")), "{error}");
    let ends: Vec<u64> = fleet.iter().map(|node| ready(node).unwrap()).collect();
    assert!(!held.lost().await.to_string().is_empty());
    drop(held);
    let next = rival.lock("a").ttl(ms(1000)).renew(false).acquire().await.unwrap();
    let grants: Vec<_> = fleet.iter().map(|node| granted_at(node, 1000)).collect();
    let early = grants.iter().zip(&ends).filter(|(grant, end)| grant.is_some_and(|at| at + 1 < **end / 1000));
    assert_eq!(early.count(), 0, "{grants:?} before {ends:?}");
    assert!(grants.iter().flatten().count() > fleet.len() / 2 || next.state().is_lost(), "{grants:?}");
    assert!(next.token() > before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s05_all_nodes_restarted_empty_and_nobody_acquires_before_the_quarantine_ends() {
    nobody_acquires_before_the_quarantine_ends(&mut declared(5, QUICK).await, Server::restart_empty).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s06_tokens_grow_while_one_node_after_the_other_loses_everything() {
    let mut fleet = declared(3, QUICK).await;
    let locks = connect(&fleet, QUICK).await;
    let mut tokens = Vec::new();
    for lost in 0..3 {
        tokens.push(locks.lock("a").ttl(ms(1000)).acquire().await.unwrap().token());
        fleet[lost].restart_empty();
        tokens.push(locks.lock("a").ttl(ms(1000)).acquire().await.unwrap().token());
        until("it votes again", async || {
            let _ = locks.lock("a").ttl(ms(1000)).try_acquire().await;
            fleet[lost].cli(&["EXISTS", NODE]) == "1" && ready(&fleet[lost]).is_none()
        })
        .await;
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s24_a_flushed_node_does_not_give_its_vote_again() {
    let fleet = declared(3, CALM).await;
    let guard = held_by_a_bare_majority(&fleet, &connect(&fleet, CALM).await).await;
    fleet[1].cli(&["FLUSHALL"]);
    a_rival_does_not_get_the_vote(&fleet, guard, "new, or has lost").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s24_a_node_flushed_under_a_connected_rival_does_not_give_its_vote_again() {
    let fleet = declared(3, CALM).await;
    let rival = connect(&fleet, CALM).await;
    use_once(&rival).await;
    let guard = held_by_a_bare_majority(&fleet, &connect(&fleet, CALM).await).await;
    fleet[1].cli(&["FLUSHALL"]);
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
    let mut fleet = declared(3, parameters).await;
    let locks = connect(&fleet, parameters).await;
    let guard = locks.lock("a").ttl(ms(3000)).acquire().await.unwrap();
    let token = guard.token().get();
    for lost in 0..3 {
        fleet[lost].restart_empty();
        until("it is held there again", async || {
            let held = holds(&fleet[lost], "a");
            assert!(!held || ready(&fleet[lost]).is_none(), "not while it is in quarantine");
            guard.check().unwrap();
            held
        })
        .await;
        assert_eq!((counter(&fleet[lost]), guard.token().get()), (token, token));
    }
    // None of them has it from the acquire, and they are a majority all the same.
    fleet[0].pause();
    guard.extend().await.unwrap();
    fleet[0].resume();
    guard.release().await.unwrap();
    let next = locks.lock("a").ttl(ms(3000)).acquire().await.unwrap();
    assert!(next.token().get() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s24_a_node_whose_databases_were_swapped_does_not_give_its_vote_again() {
    let fleet = declared(3, CALM).await;
    let guard = held_by_a_bare_majority(&fleet, &connect(&fleet, CALM).await).await;
    fleet[1].cli(&["SWAPDB", "0", "1"]);
    a_rival_does_not_get_the_vote(&fleet, guard, "new, or has lost").await;
}
