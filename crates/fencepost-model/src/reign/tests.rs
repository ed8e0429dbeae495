//! In small worlds all is visited, and nothing may go wrong; with any part of the protocol left out, it does.

use super::{BASE, Rules};
use crate::search::search;

fn holds(name: &str, rules: Rules) {
    search(&rules, 100_000_000).must_hold(name);
}

fn breaks(name: &str, rules: Rules) {
    search(&rules, 100_000_000).must_break(name, "EXCLUSION");
}

/// The same, where some sights are not to be had.
fn holds_without_sights(name: &str, rules: Rules) {
    assert_eq!(search(&rules, 100_000_000).end, crate::search::End::Exhausted, "{name}");
}

#[test]
fn a_failover_and_a_failback_and_a_restart() {
    holds("two clients, there and back, a restart", BASE);
}

#[test]
fn three_clients() {
    holds("three clients, there and back", Rules { clients: 3, restarts: 0, ..BASE });
}

#[test]
#[ignore = "takes minutes"]
fn three_failovers_and_two_restarts() {
    holds("two clients, three failovers, two restarts", Rules { promotions: 3, restarts: 2, ..BASE });
    holds("three clients, there and back, a restart", Rules { clients: 3, ..BASE });
}

#[test]
fn restarts_in_place() {
    let rules = Rules { promotions: 0, restarts: 3, ..BASE };
    holds_without_sights("three restarts, with the data and without", rules);
}

#[test]
fn a_handle_that_two_attach() {
    holds("a handle, there and back, a restart", Rules { detached: true, ..BASE });
}

#[test]
fn without_a_key_that_says_who_reigns() {
    breaks("no key", Rules { key: false, ..BASE });
}

#[test]
fn with_a_pause_that_forgets_the_leases() {
    breaks("no leases", Rules { waits_for_leases: false, ..BASE });
}

#[test]
fn with_a_pause_that_forgets_how_long_the_old_master_goes_on() {
    breaks("no max-lag", Rules { waits_for_lag: false, ..BASE });
}

/// The key alone does not tell: nobody may have greeted the new master before the old one came back.
#[test]
fn with_one_link_that_is_open_through_a_failback() {
    breaks("one link through failback", Rules { asks_the_server: false, ..BASE });
}

#[test]
fn with_masters_by_their_own_word() {
    let rules = Rules { majority: false, ..BASE };
    holds_without_sights("any master, none without replicas", rules);
    breaks("any master", Rules { alone_grants_not: false, alone_renews_not: false, ..rules });
}

#[test]
fn with_masters_that_go_on_without_replicas() {
    breaks("grants without replicas", Rules { alone_grants_not: false, ..BASE });
    breaks("renewals without replicas", Rules { alone_renews_not: false, ..BASE });
}

/// The holder has moved to the new master; at the old one, where its lock ends, somebody else has stayed.
#[test]
fn with_renewals_while_the_old_master_still_grants() {
    breaks("renewals at once", Rules { renewals_wait: false, ..BASE });
    let rules = Rules { renewals_ask: false, promotions: 3, restarts: 0, ..BASE };
    breaks("renewals over any link", rules);
}

#[test]
fn with_handles_that_are_attached_in_a_quarantine() {
    breaks("attach at once", Rules { detached: true, attach_waits: false, ..BASE });
}
