//! Small configurations in which nothing may go wrong. The large ones are in `large.rs`.

use super::rules::{BASE, Counter, Keep, Rules};
use crate::search::search;

/// Searches all states.
pub(super) fn holds(name: &str, rules: Rules) {
    search(&rules, 100_000_000).must_hold(name);
}

/// Clocks of clients that are wrong by more than all bounds.
pub(super) const WILD: Rules = Rules { client_clock: [4, -4, 0], ..BASE };

#[test]
fn two_attempts_without_faults() {
    holds("two attempts", BASE);
    holds("two attempts, everything kept", Rules { keep: Keep::Everything, end: 4, ..BASE });
}

#[test]
fn two_attempts_that_ask_one_node_first() {
    holds("asked in order", Rules { in_order: true, keep: Keep::Everything, end: 3, ..BASE });
    let restart = Rules { in_order: true, restarts: 1, keep: Keep::Everything, end: 3, ..BASE };
    holds("asked in order, a restart", restart);
}

#[test]
fn requests_that_nodes_refuse_when_they_are_late() {
    holds("late requests are refused", Rules { restarts: 1, acquire_within: Some(1), ..WILD });
}

#[test]
fn requests_that_are_delivered_twice() {
    holds("delivered twice", Rules { copies: 2, acquire_within: Some(2), end: 5, ..BASE });
}

#[test]
fn an_empty_restart_whatever_the_clocks_of_clients_show() {
    holds("a restart, equal clocks", Rules { restarts: 1, ..BASE });
    holds("a restart, first client ahead", Rules { restarts: 1, ..WILD });
    holds("a restart, first client behind", Rules { restarts: 1, client_clock: [-4, 4, 0], ..WILD });
}

#[test]
fn as_many_empty_restarts_as_there_are_nodes() {
    holds("three restarts", Rules { restarts: 3, ..WILD });
}

#[test]
fn restarts_with_an_old_snapshot() {
    holds("two restarts, two snapshots", Rules { restarts: 2, snapshots: 2, end: 5, ..WILD });
}

#[test]
fn clocks_of_nodes_that_are_apart_by_less_than_the_quarantine() {
    let rules = Rules { node_clock: [1, -1, 0], delta: 0, tau: 0, restarts: 1, ..WILD };
    holds("clocks of nodes apart", rules);
    let rules = Rules { node_clock: [1, -1, 0], quarantine: 5, end: 8, restarts: 1, ..WILD };
    holds("clocks of nodes apart, bounds of one tick", rules);
}

const UNCLAMPED: Rules = Rules { counter: Counter::Unclamped, quarantine: 2, restarts: 1, ..BASE };

#[test]
fn unbounded_proposals_of_clients_with_good_clocks() {
    holds("unbounded proposals", UNCLAMPED);
    holds("unbounded proposals, three restarts", Rules { restarts: 3, ..UNCLAMPED });
    holds("unbounded proposals, clients a tick off", Rules { client_clock: [1, -1, 0], ..UNCLAMPED });
}

#[test]
fn pure_counters_with_fresh_reads_and_a_quarantine() {
    holds("resync", Rules { counter: Counter::Resync, restarts: 1, ..BASE });
    holds("resync, three restarts", Rules { counter: Counter::Resync, restarts: 3, ..BASE });
}

#[test]
fn extensions() {
    holds("two rounds", Rules { rounds: 2, ..WILD });
}

#[test]
fn extensions_and_an_empty_restart() {
    holds("two rounds, a restart", Rules { rounds: 2, restarts: 1, ..WILD });
}

#[test]
fn a_quarantine_no_longer_than_a_lease_where_clocks_are_exact() {
    let rules = Rules { rounds: 2, restarts: 2, quarantine: 2, delta: 0, tau: 0, ..WILD };
    holds("two rounds, two restarts, a quarantine of one lease", rules);
}

#[test]
fn extensions_that_nodes_accept_at_any_time() {
    holds("two rounds, a restart, no limit", Rules { rounds: 2, restarts: 1, extend_within: false, ..WILD });
}

#[test]
fn extensions_and_an_old_snapshot() {
    holds("a round, an old snapshot", Rules { rounds: 1, restarts: 1, snapshots: 1, ..WILD });
}

#[test]
fn retries_of_one_client_beside_another() {
    holds("retries", Rules { attempts: 3, client: [0, 0, 1], ..BASE });
    holds("retries, a restart", Rules { attempts: 3, client: [0, 0, 1], restarts: 1, end: 5, ..BASE });
}

#[test]
fn three_attempts_and_an_empty_restart() {
    holds("three attempts, a restart", Rules { attempts: 3, restarts: 1, ..BASE });
}

#[test]
fn a_lock_that_is_detached_and_taken_over_beside_an_attempt() {
    holds("attach", Rules { attach: true, attempts: 3, rounds: 1, end: 4, ..BASE });
    let timely = Rules { attach: true, attempts: 3, rounds: 1, acquire_within: Some(1), end: 4, ..BASE };
    holds("attach, a restart", Rules { restarts: 1, ..timely });
}
