//! An explicit-state search of the protocol on one Redis server: the scripts in `src/backends/redis/*.lua` together with
//! the client's rules in `claim.rs`, `cohort.rs`, `hold.rs` and `lease.rs`.
//!
//! **Modelled.** One lock with its key, counter and queue; two to four owners in one to three processes, each with
//! requests in order one way and replies and pushes in order the other way, any of them delayed at will; connections
//! that end, with requests that the server runs later or never, replies that are lost, pushes that reach nobody, a dead
//! subscription, or the client long after newer answers; waiters that give up; holders that pause, renew, extend, lose
//! their lease, release, or drop the release; hand-overs inside a process, to one or to a row; revocations; a server whose
//! timers run up to a tick fast; and, where only tokens are at stake, keys that disappear before their time. Clients are freer
//! than the real ones: where those wait for a timer, these act at any moment or never.
//!
//! **Not modelled.** Loss of the counter and the clock that it restarts from, restarts of the server, `attach`, foreign
//! clients of the same key, errors in the middle of a script, expiry of the queue (it only ever helps), fairness, whether who
//! waits is served in the end, choosing some of those who wait in a process and not all, and, of rows, two at a time, what others
//! see of them (`pass`), and members that detach the lock. `redis_storm.rs` tries those on a real server.
//!
//! Every rule that is switched off has to yield a counterexample, or the search would prove nothing. All numbers are
//! small on purpose: a search covers *every* order of events within its limits, which is where such protocols break.

mod check;
mod client;
mod giving;
mod row;
mod rules;
mod search;
mod server;
mod state;
mod step;

use rules::{Limits, Rules};
use search::{Promise, Sight, search};

const ALL: &[Promise] = &[
    Promise::Exclusion,
    Promise::Order,
    Promise::Newest,
    Promise::NoStaleRenewal,
    Promise::NothingLeft,
    Promise::FreedInTime,
];
/// What has to hold even if the server forgets a lock before its time.
const FENCING: &[Promise] = &[Promise::Order, Promise::NoStaleRenewal];

const TWO: Limits = Limits { renewals: 1, ..Limits::NONE };
const THREE: Limits = Limits { processes: &[0, 1, 2], asks: 0, ..Limits::NONE };
/// Two owners of one process, and one of another.
const COHORT: Limits = Limits { processes: &[0, 0, 1], asks: 0, ..Limits::NONE };
/// All of one process.
const INSIDE: Limits = Limits { processes: &[0, 0], ..Limits::NONE };
/// All of one process: the first has the lock, and the others can be a row.
const ROW: Limits = Limits { processes: &[0, 0, 0], asks: 0, begun: true, ..Limits::NONE };
const ROW_OF_THREE: Limits = Limits { processes: &[0, 0, 0, 0], ..ROW };
/// The same as a row of two, and one of another process.
const ROW_AND_ANOTHER: Limits = Limits { processes: &[0, 0, 0, 1], ..ROW };

/// Searches everything, finds no broken promise, and comes across everything in `sights`.
#[track_caller]
fn holds(limits: Limits, promises: &[Promise], sights: &[Sight]) {
    let outcome = search(&Rules::ALL, &limits, promises);
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

// --- the protocol ----------------------------------------------------------------------------------------------

#[test]
fn two_processes_pass_the_lock_by_push() {
    let sights = [Sight::PushUsed, Sight::GrantedUnheard, Sight::Renewed, Sight::LostInTime];
    holds(Limits { cancels: 2, ..TWO }, ALL, &sights);
}

#[test]
fn three_processes_pass_the_lock_by_push() {
    holds(THREE, ALL, &[Sight::PushUsed, Sight::LostInTime]);
}

#[test]
fn one_that_tries_jumps_the_queue_and_breaks_nothing() {
    holds(Limits { last_tries: true, cancels: 1, ..THREE }, ALL, &[Sight::PushUsed]);
}

#[test]
fn a_connection_ends() {
    let sights = [
        Sight::OldPushRefused,
        Sight::UnreachableSkipped,
        Sight::LateRequestServed,
        Sight::StrayPushRead,
        Sight::LateRenewalRefused,
    ];
    holds(Limits { breaks: 1, ..TWO }, ALL, &sights);
    holds(Limits { breaks: 1, cancels: 1, renewals: 0, ..TWO }, ALL, &[Sight::LateRequestServed]);
}

#[test]
fn a_process_keeps_the_lock_and_lets_another_have_its_turn() {
    let sights = [
        Sight::PushUsed,
        Sight::HandOverUsed,
        Sight::AnotherProcessGotItsTurn,
        Sight::PassedOnForOneThatLeft,
    ];
    holds(Limits { cancels: 1, last_turns: true, ..COHORT }, ALL, &sights);
}

#[test]
fn a_hand_over_is_dropped_or_its_connection_ends() {
    let sights = [Sight::HandOverUsed, Sight::PassedOnForOneThatLeft, Sight::LateRequestServed];
    holds(Limits { aborts: 1, cancels: 2, ..INSIDE }, ALL, &sights);
    holds(Limits { breaks: 1, cancels: 1, ..INSIDE }, ALL, &sights);
}

#[test]
fn a_row_has_the_lock_until_another_process_gets_it() {
    let sights = [
        Sight::TurnTaken,
        Sight::TurnPassed,
        Sight::HasQuit,
        Sight::RowCutShort,
        Sight::AnotherProcessGotItsTurn,
        Sight::LostInTime,
    ];
    holds(Limits { last_turns: true, ..ROW_AND_ANOTHER }, ALL, &sights);
    holds(Limits { renewals: 1, ..ROW_AND_ANOTHER }, ALL, &[Sight::TurnPassed, Sight::Renewed]);
}

#[test]
fn members_of_a_row_give_up_or_are_served_by_the_server() {
    holds(Limits { cancels: 2, ..ROW_OF_THREE }, ALL, &[Sight::TurnPassed, Sight::TurnGivenUp]);
    holds(Limits { cancels: 1, ..ROW_AND_ANOTHER }, ALL, &[Sight::TurnGivenUp]);
    holds(Limits { asks: 1, ..ROW }, ALL, &[Sight::ServedMemberEndsRow]);
}

#[test]
fn a_hand_over_to_a_row_is_dropped_or_its_connection_ends() {
    let everybodys = Limits { breakers: &[0, 1, 2], ..ROW };
    let sights = [Sight::TurnPassed, Sight::LateRequestServed, Sight::RowGivenBackUnheard];
    holds(Limits { aborts: 1, cancels: 2, ..ROW }, ALL, &sights);
    holds(Limits { breaks: 1, cancels: 1, ..everybodys }, ALL, &sights);
    holds(Limits { breaks: 1, renewals: 2, ..everybodys }, ALL, &[Sight::Renewed, Sight::LateRenewalRefused]);
}

#[test]
fn a_row_is_asked_to_let_go() {
    holds(Limits { revocations: 1, ..ROW }, ALL, &[Sight::RowRevoked, Sight::TurnPassed]);
}

#[test]
fn a_holder_is_asked_to_let_go() {
    holds(Limits { revocations: 1, ..TWO }, ALL, &[Sight::RevocationHeard, Sight::PushUsed]);
}

#[test]
fn tokens_keep_their_order_when_locks_vanish_or_are_taken_away() {
    holds(Limits { vanishings: 2, ..TWO }, FENCING, &[Sight::PushUsed, Sight::Renewed]);
    holds(
        Limits { vanishings: 1, breaks: 1, asks: 0, ..TWO },
        &[Promise::Order],
        &[Sight::LateRequestServed],
    );
    holds(Limits { vanishings: 1, renewals: 1, ..INSIDE }, FENCING, &[Sight::HandOverUsed, Sight::Renewed]);
    holds(Limits { vanishings: 1, renewals: 1, ..ROW }, FENCING, &[Sight::TurnPassed, Sight::Renewed]);
    holds(Limits { revocations: 1, revoke_now: true, ..TWO }, FENCING, &[Sight::RevocationHeard]);
}

#[test]
fn a_repeated_question_can_bring_back_a_lock_that_vanished() {
    // Two faults at once: the server lost the lock, and then runs a request that its owner sent over a connection that
    // has ended since. The old token is refused where a newer one was seen, but the owner does not learn of it.
    // The store therefore ends an attempt with the connection that carried its question; all else is searched with the
    // freer client that repeats it.
    let limits = Limits { vanishings: 1, breaks: 1, asks: 0, ..TWO };
    breaks(Promise::NoStaleRenewal, limits, |_| {});
    holds(Limits { repeats: false, ..limits }, FENCING, &[Sight::LateRequestServed, Sight::Renewed]);
}

#[test]
#[ignore = "minutes without optimisation; run with --release"]
fn wider() {
    holds(Limits { aborts: 1, cancels: 1, last_turns: true, ..COHORT }, ALL, &[]);
    holds(Limits { breaks: 1, breakers: &[0, 2], last_turns: true, ..COHORT }, ALL, &[]);
    holds(Limits { asks: 1, ..THREE }, ALL, &[Sight::OldPushRefused]);
    holds(Limits { breaks: 2, breakers: &[0, 1], ..TWO }, ALL, &[]);
    holds(Limits { aborts: 1, cancels: 1, last_turns: true, ..ROW_AND_ANOTHER }, ALL, &[]);
    holds(Limits { breaks: 1, breakers: &[0, 1, 2, 3], cancels: 1, ..ROW_AND_ANOTHER }, ALL, &[]);
    holds(Limits { revocations: 1, renewals: 1, ..ROW_AND_ANOTHER }, ALL, &[]);
    holds(Limits { revocations: 1, revoke_now: true, renewals: 1, ..ROW_AND_ANOTHER }, FENCING, &[]);
    holds(Limits { asks: 1, cancels: 1, ..ROW }, ALL, &[]);
    holds(Limits { breaks: 1, breakers: &[0, 1, 2], cancels: 1, aborts: 1, ..ROW }, ALL, &[]);
    holds(Limits { aborts: 1, asks: 1, cancels: 2, ..ROW }, ALL, &[]);
    holds(Limits { vanishings: 1, renewals: 1, ..ROW_AND_ANOTHER }, FENCING, &[]);
    let vanishing = Limits { vanishings: 1, renewals: 1, ..COHORT };
    holds(vanishing, FENCING, &[Sight::HandOverUsed, Sight::Renewed]);
    breaks(Promise::NoStaleRenewal, vanishing, |rules| rules.lost_hand_over_is_declined = false);
    holds(Limits { last_turns: true, cancels: 1, aborts: 1, ..ROW_OF_THREE }, ALL, &[]);
    holds(Limits { breaks: 1, breakers: &[0, 1, 2, 3], ..ROW_OF_THREE }, ALL, &[]);
    holds(Limits { vanishings: 2, renewals: 1, asks: 1, ..ROW }, FENCING, &[]);
    holds(Limits { vanishings: 1, renewals: 1, begun: false, ..ROW }, FENCING, &[]);
}

// --- without a rule --------------------------------------------------------------------------------------------

#[test]
fn validity_counts_from_the_send_and_ends_early() {
    breaks(Promise::Exclusion, TWO, |rules| rules.grant_from_send = false);
    breaks(Promise::Exclusion, TWO, |rules| rules.drift = false);
}

#[test]
fn the_term_of_a_push_counts_from_the_last_answered_request() {
    breaks(Promise::Exclusion, THREE, |rules| rules.push_from_send = false);
}

#[test]
fn a_push_older_than_the_last_answer_is_refused() {
    breaks(Promise::Newest, Limits { breaks: 1, renewals: 0, ..TWO }, |rules| {
        rules.push_above_counter = false
    });
}

#[test]
fn lost_is_final() {
    // The renewal alone does no harm, but behind a late request for the lock it would bring an old token back.
    breaks(Promise::NoStaleRenewal, Limits { breaks: 1, ..TWO }, |rules| rules.lost_is_final = false);
}

#[test]
fn a_renewal_is_for_its_owner_and_creates_nothing() {
    // As long as the server keeps its data the guard's own clock is enough. These are for when it does not.
    let vanishing = Limits { vanishings: 1, ..TWO };
    breaks(Promise::NoStaleRenewal, vanishing, |rules| rules.renew_checks_owner = false);
    breaks(Promise::NoStaleRenewal, vanishing, |rules| rules.renew_never_creates = false);
}

#[test]
fn a_late_renewal_shortens_nothing() {
    let limits = Limits { breaks: 1, renewals: 2, asks: 0, ..TWO };
    breaks(Promise::Exclusion, limits, |rules| rules.renew_never_shortens = false);
}

#[test]
fn a_revoked_lock_is_not_renewed() {
    // Otherwise a holder whose push was lost would never learn.
    let limits = Limits { breaks: 1, revocations: 1, asks: 0, ..TWO };
    breaks(Promise::NoStaleRenewal, limits, |rules| rules.renew_sees_revocation = false);
}

#[test]
fn nobody_gives_back_the_lock_of_another() {
    breaks(Promise::Exclusion, THREE, |rules| rules.release_checks_owner = false);
    breaks(Promise::Exclusion, COHORT, |rules| rules.hand_over_checks_owner = false);
}

#[test]
fn a_lock_found_to_be_granted_already_gets_its_full_ttl() {
    let limits = Limits { asks: 1, last_tries: true, ..THREE };
    breaks(Promise::Exclusion, limits, |rules| rules.regrant_extends = false);
}

#[test]
fn every_grant_raises_the_counter() {
    breaks(Promise::Order, TWO, |rules| rules.push_raises_counter = false);
    breaks(Promise::Order, INSIDE, |rules| rules.hand_over_raises_counter = false);
}

#[test]
fn every_attempt_has_an_owner_of_its_own() {
    let limits = Limits { cancels: 1, breaks: 1, renewals: 0, ..TWO };
    breaks(Promise::Exclusion, limits, |rules| rules.owner_is_fresh = false);
}

#[test]
fn who_gives_up_says_so_behind_what_it_asked() {
    let limits = Limits { cancels: 1, ..TWO };
    breaks(Promise::NothingLeft, limits, |rules| rules.leave_is_sent = false);
    breaks(Promise::NothingLeft, limits, |rules| rules.leave_is_behind = false);
}

#[test]
fn who_gives_up_under_a_hand_over_undoes_it() {
    let dropped = Limits { aborts: 1, cancels: 1, ..INSIDE };
    breaks(Promise::NothingLeft, dropped, |rules| rules.unheard_is_undone = false);
    breaks(Promise::NothingLeft, dropped, |rules| rules.unheard_is_undone_for_good = false);
    // Passing on what came too late is quicker than that, but needed only without it.
    breaks(Promise::NothingLeft, Limits { cancels: 1, ..INSIDE }, |rules| {
        rules.unheard_is_undone_for_good = false;
        rules.left_is_passed_on = false;
    });
    // In the queue again by a hand-over at the last turn, with nobody to take it out.
    breaks(Promise::NothingLeft, Limits { cancels: 1, last_turns: true, ..COHORT }, |rules| {
        rules.unheard_is_undone_for_good = false;
    });
}

#[test]
fn a_row_has_an_identity_of_its_own() {
    // Otherwise its first would undo, with its own attempt, what others have.
    let limits = Limits { cancels: 1, ..ROW_AND_ANOTHER };
    breaks(Promise::Exclusion, limits, |rules| rules.row_has_an_identity = false);
}

#[test]
fn a_row_takes_a_token_for_each() {
    breaks(Promise::Order, ROW_AND_ANOTHER, |rules| rules.row_raises_counter_for_each = false);
}

#[test]
fn a_turn_is_valid_by_what_the_server_has_answered_to_the_row() {
    breaks(Promise::Exclusion, ROW_AND_ANOTHER, |rules| rules.row_from_send = false);
}

#[test]
fn who_passes_a_turn_on_gives_nothing_back() {
    breaks(Promise::Exclusion, ROW_AND_ANOTHER, |rules| rules.passed_is_not_given_back = false);
}

#[test]
fn what_a_row_may_have_got_unheard_is_given_back_behind_the_old_identity() {
    let dropped = Limits { aborts: 1, cancels: 2, ..ROW };
    breaks(Promise::NothingLeft, dropped, |rules| rules.unheard_row_is_given_back = false);
    breaks(Promise::NothingLeft, dropped, |rules| rules.old_identity_first = false);
}

#[test]
fn a_member_of_a_row_leaves_nothing_in_the_queue() {
    breaks(Promise::NothingLeft, ROW, |rules| rules.members_quit = false);
    breaks(Promise::NothingLeft, Limits { asks: 1, ..ROW }, |rules| rules.taken_out_by_counter = false);
}

#[test]
fn who_is_chosen_takes_no_older_grant() {
    let limits = Limits { vanishings: 1, renewals: 1, ..INSIDE };
    breaks(Promise::NoStaleRenewal, limits, |rules| rules.chosen_asks_again = false);
}
