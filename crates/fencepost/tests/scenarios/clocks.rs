//! Clocks that are wrong: the servers' from the start, a server's that leaps, a client's.

use fencepost::Locks;
use fencepost_testkit::redis::Fleet;

use crate::fleet::{
    CALM, LONG, NODE, clock, connect, counter, declare, declared, holds, patient, take, until, use_once,
};

const HOUR: i64 = 3600;

/// Servers whose clocks can be moved, the first of which is wrong by so many seconds already.
async fn with_a_wrong_clock(count: usize, seconds: i64) -> (Fleet, Locks) {
    let fleet = Fleet::start_with(count, |config| config.movable_clock());
    fleet[0].set_clock(seconds);
    declare(&fleet, CALM).await;
    let locks = connect(&fleet, CALM).await;
    (fleet, locks)
}

/// Tokens with all nodes, without the wrong one, and with it and another one missing.
async fn tokens_grow(fleet: &mut Fleet, locks: &Locks) {
    let mut tokens = Vec::new();
    for _ in 0..3 {
        tokens.push(use_once(locks).await);
    }
    fleet[0].pause();
    tokens.push(use_once(locks).await);
    tokens.push(use_once(&connect(fleet, CALM).await).await);
    fleet[0].resume();
    fleet[1].kill();
    tokens.push(use_once(&connect(fleet, CALM).await).await);
    tokens.push(use_once(locks).await);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s12_tokens_grow_with_a_node_whose_clock_is_an_hour_ahead() {
    let (mut fleet, locks) = with_a_wrong_clock(3, HOUR).await;
    tokens_grow(&mut fleet, &locks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s13_tokens_grow_with_a_node_whose_clock_is_an_hour_behind() {
    let (mut fleet, locks) = with_a_wrong_clock(3, -HOUR).await;
    tokens_grow(&mut fleet, &locks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s12_tokens_grow_over_a_clock_that_leaps_there_and_back() {
    let (fleet, locks) = with_a_wrong_clock(5, 0).await;
    let mut tokens = vec![use_once(&locks).await];
    for offset in [HOUR, -HOUR, 0] {
        fleet[0].set_clock(offset);
        tokens.push(use_once(&locks).await);
        tokens.push(use_once(&connect(&fleet, CALM).await).await);
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s12_a_clock_that_leaps_ahead_does_not_bring_a_second_holder() {
    let (fleet, locks) = with_a_wrong_clock(3, 0).await;
    let rival = connect(&fleet, CALM).await;
    use_once(&rival).await;
    let guard = patient(&locks, "a").renew(false).acquire().await.unwrap();
    until("the last node has it, too", async || holds(&fleet[2], "a")).await;
    fleet[2].cli(&["DEL", "lock:a"]);
    // Its leases end early: the rival would now have nodes 0 and 2.
    fleet[0].set_clock(HOUR);
    assert!(!matches!(rival.lock("a").ttl(LONG).try_acquire().await, Ok(Some(_))));
    let nodes = rival.show("a").await.unwrap().unwrap().nodes;
    assert!(nodes[0].trouble.as_ref().is_some_and(|trouble| trouble.contains("leapt")), "{nodes:?}");
    guard.check().unwrap();
    // The other two are a majority.
    drop(guard);
    take(&rival).await.release().await.unwrap();
    assert!(!holds(&fleet[0], "a"));
}

/// Asks a node for the lock `a` as a client with such a clock would.
fn ask(fleet: &Fleet, proposal: u64) -> u64 {
    let script = include_str!("../../src/backends/redlock/turn.lua");
    let node = &fleet[0];
    let (votes, proposal) = (node.cli(&["GET", NODE]), proposal.to_string());
    let not_after = (clock(node) + 60_000_000).to_string();
    let keys = ["lock:a", "{lock:a}:fence", NODE];
    let words =
        [["EVAL", script, "3"], keys, ["1000", "somebody", &proposal], [&not_after, &votes, "5000000"]];
    let granted = node.cli(&words.concat()).parse().unwrap();
    assert_eq!(counter(node), granted);
    node.cli(&["DEL", "lock:a", "{lock:a}:fence"]);
    granted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s14_a_client_whose_clock_is_ten_years_off_moves_no_counter_out_of_bounds() {
    let fleet = declared(3, CALM).await;
    let decade = 10 * 365 * 24 * 3600 * 1_000_000;
    let (before, bound) = (clock(&fleet[0]), 5_000_000);
    for proposal in [0, before - decade, before, before + decade, 1 << 53] {
        let granted = ask(&fleet, proposal);
        assert!(granted + bound >= before && granted <= clock(&fleet[0]) + bound, "{proposal}: {granted}");
    }
    assert!(ask(&fleet, before + decade) > before, "within them, a proposal counts");
    let token = use_once(&connect(&fleet, CALM).await).await;
    assert!(token <= clock(&fleet[0]) + bound);
}
