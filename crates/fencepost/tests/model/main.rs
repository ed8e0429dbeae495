//! An explicit-state search of the protocol on one Redis server: `src/backends/redis/scripts/ops.lua`
//! together with the rules of its client.
//!
//! **Modelled.** One lock with its key, fence and queue; two or three owners, each alone in its process, with
//! a link for what it waits for and the keeper's link beside it, requests in order one way, replies and
//! pushes in order the other way, any of them delayed at will; links that end, with requests that the server
//! runs later or never, replies that are lost, pushes to a link that the server takes for a live one; pushes
//! that arrive once more at any time; waiters that give up; holders that renew, lose their lease, release, or
//! detach the lock, and who attaches it, twice; force-releases; keys that disappear before their time; a
//! replica that is promoted in sync, and back, while links to the old primary stay open, or promoted with
//! what it had some time ago, while the old one goes on; a server that forgets everything; clocks that differ
//! or go back; a server whose timers run up to a tick fast. Clients are freer than the real ones: where those
//! wait for a timer, these act at any moment or never.
//!
//! **Not modelled.** Foreign clients of the same key, errors in the middle of a script, expiry of the queue
//! (it only ever helps), several tasks in one process, fairness. `redis_script` tries the script itself, step
//! by step.
//!
//! Every rule that is switched off has to yield a counterexample, or the search would prove nothing. All
//! numbers are small on purpose: a search covers *every* order of events within its limits, which is where
//! such protocols break.

mod check;
mod client;
mod rules;
mod search;
mod server;
mod state;
mod step;

use rules::{Limits, Rules};
use search::{Promise, Sight, search};

const ALL: &[Promise] =
    &[Promise::Exclusion, Promise::Order, Promise::NoRevival, Promise::NothingLeft, Promise::NotStranded];

/// The first holds, the second waits.
const TWO: Limits = Limits { held: true, ..Limits::NONE };
const THREE: Limits = Limits { owners: 3, ..TWO };
const LINKS: Limits = Limits { breaks: 1, renewals: 1, looks: 0, ..TWO };
const STRAY: Limits = Limits { strays: 1, looks: 2, ..TWO };
const FORCED: Limits = Limits { revocations: 1, looks: 0, renewals: 1, ..TWO };
const FAILOVER: Limits = Limits { failovers: 1, looks: 0, ..TWO };
const ATTACH: Limits = Limits { detaches: 1, breaks: 1, looks: 0, ..TWO };
/// The clock of the old primary is ahead by less than a tick, and the new one has what was there some time
/// ago.
const LAG: Limits = Limits { held: false, failovers: 1, lag: true, ticks: 2, skew: [8, 0], looks: 0, ..TWO };
const LOSS: Limits = Limits { losses: 1, ticks: 4, ..TWO };

/// Searches everything, finds no broken promise, and comes across everything in `sights`.
#[track_caller]
fn holds(limits: Limits, sights: &[Sight]) {
    let outcome = search(&Rules::ALL, &limits, ALL);
    eprintln!("{} states: {limits:?}", outcome.states);
    if let Some((promise, way)) = outcome.broken {
        panic!("{promise:?} is broken: {way:?}");
    }
    for sight in sights {
        assert!(outcome.sights.has(*sight), "a search that never sees {sight:?} proves little");
    }
}

/// Finds the promise that breaks without some rule.
#[track_caller]
fn breaks(promise: Promise, limits: Limits, without: impl FnOnce(&mut Rules)) {
    let mut rules = Rules::ALL;
    without(&mut rules);
    let outcome = search(&rules, &limits, &[promise]);
    match outcome.broken {
        Some((_, way)) => eprintln!("{} states to {promise:?} broken by {way:?}", outcome.states),
        None => panic!("{promise:?} holds in {} states without the rule", outcome.states),
    }
}

// --- the protocol
// ----------------------------------------------------------------------------------------------

#[test]
fn a_lock_is_passed_by_push_or_found_by_a_look() {
    let sights =
        [Sight::PushBelieved, Sight::PushNotBelieved, Sight::GrantFound, Sight::Renewed, Sight::LostInTime];
    holds(Limits { renewals: 1, ..TWO }, &sights);
}

#[test]
fn a_waiter_gives_up() {
    holds(Limits { cancels: 1, ..TWO }, &[Sight::UnwantedFreed, Sight::PushLeftToItsAnswer]);
}

#[test]
fn more_than_one_request_is_under_way() {
    holds(Limits { requests: 2, cancels: 1, ..TWO }, &[Sight::UnwantedFreed]);
}

#[test]
fn two_wait() {
    holds(Limits { looks: 0, ..THREE }, &[Sight::PushBelieved]);
}

#[test]
fn a_link_ends() {
    holds(LINKS, &[Sight::LateServed, Sight::UnreachableSkipped, Sight::RenewalRefused]);
}

#[test]
fn a_link_ends_and_the_attempt_goes_on_under_a_new_identity() {
    holds(Limits { renames: true, renewals: 0, ..LINKS }, &[Sight::LateServed, Sight::UnreachableSkipped]);
}

#[test]
fn a_push_arrives_once_more() {
    holds(STRAY, &[Sight::UnwantedFreed, Sight::PushNotBelieved]);
}

#[test]
fn a_lock_is_released_by_force() {
    holds(FORCED, &[Sight::RevocationHeard, Sight::RenewalRefused]);
    holds(Limits { looks: 1, renewals: 0, ..FORCED }, &[Sight::AskedBeforeItKnew]);
}

#[test]
fn a_lock_disappears() {
    holds(Limits { vanishings: 1, renewals: 1, ..TWO }, &[Sight::RenewalRefused]);
}

#[test]
fn the_replica_is_promoted_in_sync() {
    holds(FAILOVER, &[Sight::ReadOnly, Sight::UnreachableSkipped]);
}

#[test]
fn a_detached_lock_is_attached() {
    holds(ATTACH, &[Sight::Attached, Sight::LateServed]);
    holds(
        Limits { copied: true, renewals: 1, breaks: 0, ..ATTACH },
        &[Sight::Attached, Sight::RenewalRefused],
    );
}

#[test]
fn tokens_grow_whatever_is_lost_while_the_clocks_are_right() {
    holds(LAG, &[Sight::ReadOnly]);
    holds(LOSS, &[Sight::PushBelieved]);
}

#[test]
fn tokens_grow_whatever_the_clocks_do_while_nothing_is_lost() {
    holds(Limits { steps_back: 1, ticks: 4, ..TWO }, &[Sight::PushBelieved]);
    holds(Limits { failovers: 1, skew: [30, 0], ticks: 3, looks: 0, ..TWO }, &[Sight::ReadOnly]);
}

// --- what is not promised
// --------------------------------------------------------------------------------------

#[test]
fn tokens_may_go_back_if_data_are_lost_and_the_clock_is_behind() {
    breaks(Promise::Order, Limits { skew: [40, 0], ..LAG }, |_| {});
    breaks(Promise::Order, Limits { losses: 1, steps_back: 1, ..LOSS }, |_| {});
}

// --- more of the same
// ------------------------------------------------------------------------------------------

#[test]
#[ignore = "millions of states: `make model`"]
fn two_wait_and_look_again() {
    holds(Limits { renewals: 1, ..THREE }, &[Sight::PushBelieved, Sight::GrantFound]);
    holds(Limits { last_tries: true, cancels: 1, ..THREE }, &[Sight::PushBelieved]);
}

#[test]
#[ignore = "millions of states: `make model`"]
fn links_end() {
    let sights = [Sight::LateServed, Sight::UnreachableSkipped, Sight::PushedToNobody];
    holds(Limits { ghosts: true, looks: 1, ..LINKS }, &sights);
    holds(Limits { ghosts: true, looks: 1, cancels: 1, renames: true, ..LINKS }, &sights);
    holds(Limits { breaks: 2, renewals: 0, ..LINKS }, &[Sight::LateServed]);
}

#[test]
#[ignore = "millions of states: `make model`"]
fn a_push_arrives_once_more_while_another_holds() {
    holds(Limits { strays: 1, ..THREE }, &[Sight::PushNotBelieved, Sight::UnwantedFreed]);
}

#[test]
#[ignore = "millions of states: `make model`"]
fn a_lock_is_released_by_force_while_links_end() {
    holds(Limits { breaks: 1, looks: 1, ..FORCED }, &[Sight::LateServed, Sight::RevocationHeard]);
    holds(Limits { revocations: 2, looks: 1, ..FORCED }, &[Sight::AskedBeforeItKnew]);
    holds(Limits { vanishings: 1, breaks: 1, looks: 1, renewals: 1, ..TWO }, &[Sight::LateServed]);
}

#[test]
#[ignore = "millions of states: `make model`"]
fn the_replica_is_promoted_and_back() {
    holds(Limits { failovers: 2, renewals: 1, ..FAILOVER }, &[Sight::ReadOnly]);
    holds(Limits { owners: 3, ..FAILOVER }, &[Sight::ReadOnly, Sight::UnreachableSkipped]);
    holds(Limits { failovers: 1, breaks: 1, looks: 1, ..TWO }, &[Sight::ReadOnly, Sight::LateServed]);
}

#[test]
#[ignore = "millions of states: `make model`"]
fn a_detached_lock_is_attached_twice() {
    holds(Limits { owners: 3, renewals: 1, ..ATTACH }, &[Sight::Attached, Sight::AttachRefused]);
    let late = Limits { held: false, vanishings: 1, ..ATTACH };
    holds(Limits { revocations: 1, ..late }, &[Sight::Attached, Sight::LateServed]);
}

#[test]
#[ignore = "millions of states: `make model`"]
fn tokens_grow_whatever_is_lost_with_three() {
    holds(Limits { ticks: 4, ..LAG }, &[Sight::ReadOnly]);
    holds(Limits { owners: 3, held: true, ..LAG }, &[Sight::ReadOnly]);
    holds(Limits { failovers: 2, ..LAG }, &[Sight::ReadOnly]);
    holds(Limits { owners: 3, losses: 2, ..LOSS }, &[Sight::PushBelieved]);
}

#[test]
#[ignore = "millions of states: `make model`"]
fn two_wait_while_a_link_ends() {
    holds(Limits { breaks: 1, looks: 0, ..THREE }, &[Sight::LateServed, Sight::UnreachableSkipped]);
}

#[test]
#[ignore = "millions of states: `make model`"]
fn two_wait_while_the_lock_is_released_by_force() {
    holds(Limits { revocations: 1, looks: 0, ..THREE }, &[Sight::RevocationHeard]);
}

#[test]
#[ignore = "millions of states: `make model`"]
fn two_wait_while_the_lock_disappears_and_a_push_comes_late() {
    holds(Limits { vanishings: 1, strays: 1, looks: 0, ..THREE }, &[Sight::UnwantedFreed]);
}

// --- without a rule of the script
// ------------------------------------------------------------------------------

#[test]
fn without_the_token_in_a_renewal() {
    breaks(Promise::NoRevival, LINKS, |rules| rules.renew_names_token = false);
}

#[test]
fn without_the_identity_in_a_renewal() {
    breaks(Promise::NoRevival, Limits { renewals: 1, ..ATTACH }, |rules| rules.renew_names_identity = false);
}

#[test]
fn without_the_token_in_a_release() {
    breaks(Promise::Exclusion, STRAY, |rules| rules.free_names_token = false);
}

#[test]
fn without_the_token_in_an_attachment() {
    let limits = Limits { held: false, vanishings: 1, ..ATTACH };
    breaks(Promise::NoRevival, limits, |rules| rules.attach_names_token = false);
}

#[test]
fn without_the_new_identity_of_an_attachment() {
    let limits = Limits { owners: 3, breaks: 0, ..ATTACH };
    breaks(Promise::Exclusion, limits, |rules| rules.attach_changes_identity = false);
}

#[test]
fn without_an_attachment_that_finds_itself() {
    breaks(Promise::NotStranded, ATTACH, |rules| rules.attach_can_be_repeated = false);
}

#[test]
fn without_refusing_to_renew_what_is_gone() {
    breaks(Promise::NoRevival, Limits { renewals: 1, ..TWO }, |rules| rules.renew_never_creates = false);
}

#[test]
fn without_refusing_to_renew_what_is_revoked() {
    breaks(Promise::NoRevival, FORCED, |rules| rules.asked_is_not_renewed = false);
}

#[test]
fn without_the_release_of_what_is_revoked() {
    breaks(Promise::NothingLeft, FORCED, |rules| rules.asked_is_freed = false);
}

#[test]
fn without_a_look_that_finds_its_grant() {
    breaks(Promise::NotStranded, TWO, |rules| rules.again_finds_its_grant = false);
}

#[test]
fn without_a_look_that_extends_its_grant() {
    breaks(Promise::Exclusion, TWO, |rules| rules.again_extends = false);
}

#[test]
fn without_a_token_of_its_own_for_a_push() {
    breaks(Promise::Order, TWO, |rules| rules.push_draws_token = false);
}

#[test]
fn without_counting_before_the_push() {
    breaks(Promise::Exclusion, FAILOVER, |rules| rules.counted_first = false);
}

#[test]
fn without_the_fence_in_a_token() {
    breaks(Promise::Order, Limits { steps_back: 1, ticks: 4, ..TWO }, |rules| {
        rules.token_above_fence = false
    });
}

#[test]
fn without_the_clock_in_a_token() {
    breaks(Promise::Order, LOSS, |rules| rules.token_from_clock = false);
    breaks(Promise::Order, LAG, |rules| rules.token_from_clock = false);
}

// --- without a rule of the client
// ------------------------------------------------------------------------------

#[test]
fn without_comparing_a_push_with_the_last_answer() {
    breaks(Promise::Exclusion, Limits { strays: 1, ..THREE }, |rules| rules.push_above_seen = false);
}

#[test]
fn without_the_time_of_the_last_answer() {
    breaks(Promise::Exclusion, TWO, |rules| rules.push_from_send = false);
}

#[test]
fn without_the_time_of_the_request() {
    breaks(Promise::Exclusion, TWO, |rules| rules.grant_from_send = false);
}

#[test]
fn without_a_margin_for_drift() {
    breaks(Promise::Exclusion, Limits { renewals: 1, ..TWO }, |rules| rules.drift = false);
}

#[test]
fn without_giving_back_what_nobody_has() {
    breaks(Promise::NothingLeft, TWO, |rules| rules.unwanted_is_freed = false);
}

#[test]
fn without_the_token_of_what_nobody_has() {
    breaks(Promise::Exclusion, STRAY, |rules| rules.unwanted_is_freed_by_token = false);
}

#[test]
fn without_leaving() {
    breaks(Promise::NothingLeft, Limits { cancels: 1, ..TWO }, |rules| rules.leaves = false);
}

#[test]
fn without_leaving_on_the_same_link() {
    breaks(Promise::NothingLeft, Limits { cancels: 1, ..TWO }, |rules| rules.leaves_on_the_same_link = false);
}

#[test]
fn without_ending_a_link_to_a_replica() {
    breaks(Promise::NotStranded, FAILOVER, |rules| rules.readonly_ends_the_link = false);
}

#[test]
fn without_looking_again() {
    breaks(Promise::NotStranded, TWO, |rules| rules.looks = false);
}
