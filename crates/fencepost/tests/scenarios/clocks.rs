//! Clocks that are wrong: the servers' from the start, a server's that leaps, a client's.

use fencepost::SupervisorExt as _;
use fencepost::{Error, Locks, Loss};
use fencepost_testkit::redis::{Nodes, Server};
use fencepost_testkit::{Clock, Folder, Proxy};

use crate::children::client_with;
use crate::family::Family;
use crate::redis_nodes::{
    CALM, LONG, NODE, boottime, clock, connect, connect_to_all, counter, declare, declared, holds, ms,
    patient, take, until, use_once,
};

const HOUR: i64 = 3600;

/// Clients with and without links of their own belong to one deployment if its name says so. Answers are
/// waited for.
const NAMED: &str = "max_ttl=20m&deployment=test&timeout=1m";

/// Servers whose clocks can be moved, the first of which is wrong by so many seconds already.
async fn with_a_wrong_clock(count: usize, seconds: i64) -> (Nodes, Locks) {
    let nodes = Nodes::start_with(count, |config| config.movable_clock());
    nodes[0].set_clock(seconds);
    declare(&nodes, CALM).await;
    let locks = connect(&nodes, CALM).await;
    (nodes, locks)
}

/// Tokens with all nodes, without the wrong one, and with it and another one missing.
async fn tokens_grow(nodes: &mut Nodes, locks: &Locks) {
    let mut tokens = Vec::new();
    for _ in 0..3 {
        tokens.push(use_once(locks).await);
    }
    nodes[0].pause();
    tokens.push(use_once(locks).await);
    tokens.push(use_once(&connect(nodes, CALM).await).await);
    nodes[0].resume();
    nodes[1].kill();
    tokens.push(use_once(&connect(nodes, CALM).await).await);
    tokens.push(use_once(locks).await);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s12_tokens_grow_with_a_node_whose_clock_is_an_hour_ahead() {
    let (mut nodes, locks) = with_a_wrong_clock(3, HOUR).await;
    tokens_grow(&mut nodes, &locks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s13_tokens_grow_with_a_node_whose_clock_is_an_hour_behind() {
    let (mut nodes, locks) = with_a_wrong_clock(3, -HOUR).await;
    tokens_grow(&mut nodes, &locks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s12_tokens_grow_over_a_clock_that_leaps_there_and_back() {
    let (nodes, locks) = with_a_wrong_clock(5, 0).await;
    let mut tokens = vec![use_once(&locks).await];
    for offset in [HOUR, -HOUR, 0] {
        nodes[0].set_clock(offset);
        tokens.push(use_once(&locks).await);
        tokens.push(use_once(&connect(&nodes, CALM).await).await);
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s12_a_clock_that_leaps_ahead_does_not_bring_a_second_holder() {
    let (nodes, locks) = with_a_wrong_clock(3, 0).await;
    let rival = connect(&nodes, CALM).await;
    use_once(&rival).await;
    let guard = patient(&locks, "a").without_renewal().acquire().await.unwrap();
    until("the last node has it, too", async || holds(&nodes[2], "a")).await;
    nodes[2].cli(&["DEL", "lock:a"]);
    // Its leases end early: the rival would now have nodes 0 and 2.
    nodes[0].set_clock(HOUR);
    assert!(!matches!(rival.lock("a").ttl(LONG).try_acquire().await, Ok(Some(_))));
    let found = rival.show("a").await.unwrap().unwrap().nodes;
    assert!(found[0].problem.as_ref().is_some_and(|trouble| trouble.contains("leapt")), "{found:?}");
    guard.check().unwrap();
    // The other two are a majority.
    drop(guard);
    take(&rival).await.release().await.unwrap();
    assert!(!holds(&nodes[0], "a"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s12_tokens_grow_on_one_redis_whose_clock_leaps_past_a_lease_and_back() {
    let server = Server::config().movable_clock().start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let old = take(&locks).await;
    // Exclusion is broken: the server has ended the lease. The old holder learns it at its next renewal.
    server.set_clock(HOUR);
    let next = take(&locks).await;
    assert!(next.token() > old.token());
    let error = old.extend().await.unwrap_err();
    assert!(matches!(error, Error::Lost { why: Loss::Taken, .. }), "{error:?}");
    next.release().await.unwrap();
    let last = use_once(&locks).await;
    server.set_clock(0);
    let mut last = next_token(&locks, last).await;
    for _ in 0..5 {
        last = next_token(&locks, last).await;
    }
}

async fn next_token(locks: &Locks, last: u64) -> u64 {
    let token = use_once(locks).await;
    assert!(token > last, "{token} after {last}");
    token
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s13_where_a_clock_goes_back_a_lock_lasts_longer_and_never_less() {
    let (nodes, locks) = with_a_wrong_clock(3, 0).await;
    let rival = connect(&nodes, CALM).await;
    let before = use_once(&rival).await;
    let guard = locks.lock("a").ttl(ms(3000)).without_renewal().acquire().await.unwrap();
    let (token, end) = (guard.token().get(), guard.valid_until_boottime().unwrap());
    nodes.iter().for_each(|node| node.set_clock(-HOUR));
    until("its time is over", async || boottime() > end + ms(500)).await;
    assert!(guard.state().is_lost(), "a client counts by its own clock");
    assert!(nodes.iter().any(|node| holds(node, "a")), "the nodes count from an hour ago");
    assert!(!matches!(rival.lock("a").ttl(LONG).try_acquire().await, Ok(Some(_))));
    // It is not stuck for that hour: who lets go of the guard gives it back.
    drop(guard);
    until("it is given back", async || !nodes.iter().any(|node| holds(node, "a"))).await;
    // Who has not seen these clocks leap takes their votes.
    let next = use_once(&connect(&nodes, CALM).await).await;
    assert!(next > token && token > before, "counters do not follow it: {before}, {token}, {next}");
}

/// Asks a node for the lock `a` as a client with such a clock would.
fn ask(nodes: &Nodes, proposal: u64) -> u64 {
    let script = include_str!("../../src/backends/redlock/scripts/ops.lua");
    let node = &nodes[0];
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
    let nodes = declared(3, CALM).await;
    let decade = 10 * 365 * 24 * 3600 * 1_000_000;
    let (before, bound) = (clock(&nodes[0]), 5_000_000);
    for proposal in [0, before - decade, before, before + decade, 1 << 53] {
        let granted = ask(&nodes, proposal);
        assert!(granted + bound >= before && granted <= clock(&nodes[0]) + bound, "{proposal}: {granted}");
    }
    assert!(ask(&nodes, before + decade) > before, "within them, a proposal counts");
    let token = use_once(&connect(&nodes, CALM).await).await;
    assert!(token <= clock(&nodes[0]) + bound);
}

/// A client with a wall clock of its own.
fn with_clock(url: &str, seconds: i64) -> (Clock, Family, Folder) {
    let folder = Folder::new("clocks");
    let clock = Clock::make(folder.path());
    clock.set(seconds);
    let client = client_with(url, |command| {
        command.envs(clock.environment());
    });
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", client.child.id())).unwrap();
    assert!(maps.contains("/clock.so"), "its clock can be moved");
    (clock, client, folder)
}

/// Acquires and releases the lock; its token.
fn token_of(client: &mut Family) -> u64 {
    let token = client.ask("acquire 600000").parse().unwrap();
    assert_eq!(client.ask("release"), "fine");
    token
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s11_a_client_whose_clock_leaps_an_hour_there_and_back_holds_as_long_as_before() {
    let (nodes, server) = (declared(3, NAMED).await, Server::start());
    let (links, link) = (nodes.proxies(), [Proxy::start(server.addr())]);
    for (url, links, rival) in [
        (nodes.url_through(&links, NAMED), &links[..], connect(&nodes, NAMED).await),
        (server.url_at(link[0].addr()), &link[..], Locks::connect(&server.url()).await.unwrap()),
    ] {
        let granted = || match links.len() {
            1 => holds(&server, "a"),
            _ => nodes.iter().all(|node| holds(node, "a")),
        };
        let (clock, mut client, _folder) = with_clock(&url, 0);
        // Its connections are all there behind this: answers are held back that it asks for, not greetings.
        let mut last = client.ask("acquire 600000").parse().unwrap();
        until("it is granted everywhere", async || granted()).await;
        assert_eq!(client.ask("release"), "fine");
        for (offset, during) in [(HOUR, -HOUR), (-HOUR, HOUR), (HOUR, 0)] {
            // The clock leaps before the acquire, and in the middle of it.
            clock.set(offset);
            links.iter().for_each(Proxy::hold_answers);
            client.tell("acquire 600000");
            until("it is granted", async || granted()).await;
            clock.set(during);
            links.iter().for_each(Proxy::pass);
            let token = client.answer().parse().unwrap();
            assert!(token > last, "{token} after {last}");
            let left = client.ask("state");
            let left: u64 = left.split(' ').nth(2).unwrap().parse().unwrap();
            assert!((500_000..=600_000).contains(&left), "{left}");
            assert!(rival.lock("a").ttl(LONG).try_acquire().await.unwrap().is_none());
            assert_eq!(client.ask("extend"), "fine");
            assert_eq!(client.ask("release"), "fine");
            last = use_once(&rival).await;
            assert!(last > token, "{last} after {token}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s14_a_client_that_lives_ten_years_ahead_poisons_no_counter() {
    let nodes = declared(3, CALM).await;
    let (locks, bound) = (connect_to_all(&nodes, CALM).await, 5_000_000);
    let mut last = use_once(&locks).await;
    for years in [10, -10] {
        let (_clock, mut client, _folder) = with_clock(&nodes.url_with(CALM), years * 365 * 24 * HOUR);
        for token in [token_of(&mut client), use_once(&locks).await, token_of(&mut client)] {
            assert!(token > last, "{token} after {last}");
            last = token;
        }
    }
    assert!(last <= clock(&nodes[0]) + bound, "{last}");
}
