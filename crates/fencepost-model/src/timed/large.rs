//! Large configurations in which nothing may go wrong: seconds to minutes each.

use super::rules::{BASE, Keep, Rules};
use super::tests::{WILD, holds};

/// Nodes refuse what arrives later than any attempt lasts, as they do in production.
const TIMELY: Rules = Rules { acquire_within: Some(2), ..WILD };

#[test]
#[ignore = "large"]
fn two_attempts_and_a_restart_with_everything_kept() {
    holds("a restart, everything kept", Rules { restarts: 1, keep: Keep::Everything, ..WILD });
}

#[test]
#[ignore = "large"]
fn two_attempts_and_an_extension_with_everything_kept() {
    holds("a round, everything kept", Rules { rounds: 1, end: 4, keep: Keep::Everything, ..BASE });
}

#[test]
#[ignore = "large"]
fn two_attempts_an_extension_and_a_restart_with_everything_kept() {
    let rules = Rules { rounds: 1, restarts: 1, end: 4, acquire_within: Some(1), ..BASE };
    holds("a round, a restart, everything kept", Rules { keep: Keep::Everything, ..rules });
}

#[test]
#[ignore = "large"]
fn two_attempts_three_extensions_and_three_restarts() {
    holds("three rounds, three restarts", Rules { rounds: 3, restarts: 3, end: 9, ..WILD });
}

#[test]
#[ignore = "large"]
fn two_attempts_with_a_lease_of_three_ticks() {
    let rules = Rules { ttl: 3, quarantine: 4, rounds: 2, restarts: 2, end: 8, ..WILD };
    holds("three ticks a lease, two rounds, two restarts", rules);
}

#[test]
#[ignore = "large"]
fn two_attempts_an_extension_and_a_restart_with_requests_delivered_twice() {
    holds("delivered twice, a round, a restart", Rules { copies: 2, rounds: 1, restarts: 1, ..TIMELY });
}

#[test]
#[ignore = "large"]
fn three_attempts_and_a_restart_with_wild_clocks() {
    holds("three attempts, a restart, wild clocks", Rules { attempts: 3, restarts: 1, ..WILD });
}

#[test]
#[ignore = "large"]
fn three_attempts_and_three_restarts() {
    holds("three attempts, three restarts", Rules { attempts: 3, restarts: 3, ..TIMELY });
}

#[test]
#[ignore = "large"]
fn three_attempts_an_extension_and_a_restart() {
    holds("three attempts, a round, a restart", Rules { attempts: 3, rounds: 1, restarts: 1, ..WILD });
}

#[test]
#[ignore = "large"]
fn three_attempts_two_extensions_and_two_restarts() {
    holds(
        "three attempts, two rounds, two restarts",
        Rules { attempts: 3, rounds: 2, restarts: 2, ..TIMELY },
    );
}

#[test]
#[ignore = "large"]
fn three_attempts_an_extension_and_an_old_snapshot() {
    let rules = Rules { attempts: 3, rounds: 1, restarts: 1, snapshots: 1, ..TIMELY };
    holds("three attempts, a round, an old snapshot", rules);
}

const RETRIES: Rules = Rules { attempts: 3, client: [0, 0, 1], ..BASE };

#[test]
#[ignore = "large"]
fn retries_of_one_client_and_late_releases() {
    holds("retries, late releases", Rules { keep: Keep::Releases, ..RETRIES });
}

#[test]
#[ignore = "large"]
fn retries_of_one_client_late_releases_and_a_restart() {
    holds(
        "retries, late releases, a restart",
        Rules { restarts: 1, end: 5, keep: Keep::Releases, ..RETRIES },
    );
}

#[test]
#[ignore = "large"]
fn retries_of_one_client_extensions_and_a_restart() {
    holds("retries, two rounds, a restart", Rules { rounds: 2, restarts: 1, ..RETRIES });
}

const ATTACH: Rules = Rules { attempts: 3, attach: true, rounds: 1, acquire_within: Some(2), ..BASE };

#[test]
#[ignore = "large"]
fn a_lock_that_is_detached_twice_extended_and_taken_over() {
    holds("attach, two rounds", Rules { rounds: 2, end: 4, acquire_within: Some(1), ..ATTACH });
}

#[test]
#[ignore = "large"]
fn a_lock_that_is_detached_and_taken_over_with_everything_kept() {
    let rules = Rules { attempts: 2, end: 3, keep: Keep::Everything, ..ATTACH };
    holds("attach, everything kept", rules);
}

#[test]
#[ignore = "large"]
fn a_lock_that_is_detached_extended_and_taken_over_and_two_restarts() {
    holds("attach, a round, two restarts", Rules { restarts: 2, end: 5, ..ATTACH });
}
