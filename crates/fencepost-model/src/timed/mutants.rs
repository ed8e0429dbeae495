//! Each rule left out in turn: the search must find what goes wrong then, or it would find nothing at all.

use super::rules::{BASE, Counter, Flaw, Judge, Keep, Rules};
use crate::search::search;

fn breaks(name: &str, rule: &str, rules: Rules) {
    search(&rules, 60_000_000).must_break(name, rule);
}

const RESTART: Rules = Rules { restarts: 1, ..BASE };
const WILD: Rules = Rules { client_clock: [4, -4, 0], ..RESTART };

#[test]
fn pure_counters_repeat_a_token_after_a_restart_though_there_is_a_quarantine() {
    breaks("pure counters", "FENCE", Rules { counter: Counter::Pure, ..RESTART });
}

const ONE_OWNER: Rules =
    Rules { attempts: 3, client: [0, 0, 1], end: 4, flaw: Flaw::OneOwner, keep: Keep::Releases, ..BASE };

#[test]
fn one_owner_id_for_all_tries_takes_an_old_key_for_a_new_grant() {
    breaks("one owner id for all tries, tokens", "FENCE", ONE_OWNER);
}

#[test]
fn one_owner_id_for_all_tries_lets_a_late_release_free_the_next_lock() {
    breaks("one owner id for all tries", "MUTEX", Rules { judge: Judge::Exclusion, ..ONE_OWNER });
}

const LATE: Rules = Rules { rounds: 1, flaw: Flaw::LateAdoption, extend_within: false, ..BASE };

#[test]
fn an_extension_adopted_late_that_made_its_keys_anew_passes_over_another_lock() {
    breaks("late extension that makes keys anew", "CONTINUITY", LATE);
}

#[test]
fn an_extension_adopted_late_that_only_prolongs_keys_passes_over_another_lock() {
    breaks("late extension that prolongs keys", "CONTINUITY", Rules { remake: false, ..LATE });
}

#[test]
fn that_nodes_refuse_late_extensions_is_not_enough_in_the_tick_of_the_end() {
    breaks("late extension that nodes refuse", "CONTINUITY", Rules { extend_within: true, ..LATE });
}

#[test]
fn without_a_quarantine_a_restart_gives_the_lock_to_two() {
    breaks("no quarantine", "MUTEX", Rules { quarantine: 0, ..RESTART });
}

#[test]
fn a_quarantine_shorter_than_a_lease_gives_the_lock_to_two() {
    breaks("quarantine shorter than a lease", "MUTEX", Rules { quarantine: 1, ..RESTART });
}

#[test]
fn a_validity_from_the_end_of_the_acquisition_outlives_the_keys() {
    let rules = Rules { flaw: Flaw::ValidFromTheEnd, keep: Keep::Everything, ..BASE };
    breaks("validity from the end", "MUTEX", rules);
}

const RESYNC: Rules = Rules { counter: Counter::Resync, ..RESTART };

#[test]
fn counters_of_others_that_were_read_before_the_restart_repeat_a_token() {
    breaks("resync from stale reads", "FENCE", Rules { flaw: Flaw::StaleReads, ..RESYNC });
}

#[test]
fn counters_of_others_are_no_help_without_a_quarantine() {
    let rules = Rules { quarantine: 0, judge: Judge::Order, ..RESYNC };
    breaks("resync without quarantine", "FENCE", rules);
}

#[test]
fn a_quarantine_as_long_as_both_bounds_of_a_proposal_is_too_short() {
    breaks("quarantine of delta + tau", "FENCE", Rules { quarantine: 2, ..WILD });
}

#[test]
fn a_quarantine_as_long_as_clocks_of_nodes_are_apart_is_too_short() {
    let rules = Rules { quarantine: 2, delta: 0, tau: 0, node_clock: [1, -1, 0], ..WILD };
    breaks("quarantine of twice the error of the nodes' clocks", "FENCE", rules);
}

#[test]
fn proposals_without_bounds_let_a_client_ahead_poison_a_counter() {
    let rules = Rules { counter: Counter::Unclamped, quarantine: 2, client_clock: [4, 0, 0], ..RESTART };
    breaks("unbounded proposals", "FENCE", rules);
}

#[test]
#[ignore = "large"]
fn extensions_that_nodes_accept_at_any_time_let_a_lock_be_attached_that_others_had_since() {
    let timely = Rules { acquire_within: Some(1), end: 4, ..RESTART };
    let rules = Rules { attempts: 3, attach: true, rounds: 2, extend_within: false, ..timely };
    breaks("late extension and attach", "CONTINUITY", rules);
}

const ATTACH: Rules = Rules { attempts: 3, attach: true, rounds: 1, end: 4, ..BASE };

#[test]
fn of_two_that_take_over_one_identity_both_have_the_lock() {
    breaks("one identity", "MUTEX", Rules { flaw: Flaw::OneIdentity, ..ATTACH });
}

#[test]
fn whoever_frees_what_it_moved_lets_others_in_while_the_lease_lasts() {
    breaks("frees what it moved", "MUTEX", Rules { flaw: Flaw::FreesWhatItMoved, ..ATTACH });
}

#[test]
fn a_moved_lock_that_counts_whatever_the_counter_was_somebody_elses_since() {
    breaks("any counter", "CONTINUITY", Rules { flaw: Flaw::AnyCounter, ..ATTACH });
}
