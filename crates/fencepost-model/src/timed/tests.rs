//! Small configurations in which nothing may go wrong. The large ones are in `large.rs`.

use super::rules::{BASE, Counter, Rules};
use crate::search::search;

fn holds(name: &str, rules: Rules) {
    search(&rules, 30_000_000).must_hold(name);
}

#[test]
fn without_faults() {
    holds("two attempts, no faults", BASE);
}

#[test]
fn without_faults_and_with_everything_kept() {
    holds("two attempts, no faults, everything kept", Rules { keep: super::rules::Keep::Everything, end: 4, ..BASE });
}

const WILD: Rules = Rules { client_clock: [4, -4, 0], ..BASE };

#[test]
fn an_empty_restart_with_wild_clocks_of_clients() {
    holds("two attempts, a restart, wild client clocks", Rules { restarts: 1, ..WILD });
}

#[test]
fn pure() {
    let rules = Rules { restarts: 1, counter: Counter::Pure, ..BASE };
    search(&rules, 30_000_000).must_break("7b", "FENCE");
}
#[test]
fn ext() {
    holds("ext", Rules { rounds: 2, ..WILD });
}
#[test]
fn ext_restart() {
    holds("ext restart", Rules { rounds: 2, restarts: 1, ..WILD });
}
