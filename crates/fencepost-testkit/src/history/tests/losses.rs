//! Guards that say "held" for too long, locks that are gone too early, and answers that come too late.

use super::*;

fn lost_to(at: u64, client: u32, why: &str, until: u64) -> Event {
    event(at, client, What::Lost { why: why.to_owned(), until: ms(until) })
}

fn refused(at: u64, client: u32) -> Event {
    event(at, client, What::Read { register: Register::Guarded, value: None })
}

#[test]
fn a_guard_that_says_held_after_its_own_end_is_caught() {
    let asked_at = |asked| {
        [
            invoke(0, 1),
            acquired(1, 1, 7, 100),
            invoke(2, 2),
            acquired(110, 2, 8, 210),
            released(asked, 1, 100),
            released(160, 2, 210),
        ]
    };
    assert_eq!(rules(&asked_at(150)), [Rule::LateLoss]);
    assert_eq!(rules(&asked_at(100)), []);
    let held = event(150, 1, What::Held { until: Some(ms(100)) });
    assert_eq!(rules(&[invoke(0, 1), acquired(1, 1, 7, 100), held]), [Rule::LateLoss]);
}

#[test]
fn a_lock_that_was_taken_from_a_valid_guard_is_caught() {
    // The worker's last look was at 1.
    let noticed = |at| {
        [
            invoke(0, 1),
            acquired(1, 1, 7, 1000),
            invoke(2, 2),
            acquired(100, 2, 8, 1100),
            lost_to(at, 1, "taken", 1),
            released(1050, 2, 1100),
        ]
    };
    assert_eq!(rules(&noticed(300)), [Rule::EarlyLoss]);
    // Noticed when the lease had ended anyway, it may have been taken after that.
    let after_its_end = [
        invoke(0, 1),
        acquired(1, 1, 7, 1000),
        invoke(2, 2),
        acquired(1010, 2, 8, 2010),
        lost_to(1020, 1, "taken", 1000),
    ];
    assert_eq!(rules(&after_its_end), []);
}

#[test]
fn what_the_store_says_to_a_release_is_heard() {
    let gone = |at| event(at, 1, What::Gone { why: "taken".to_owned() });
    let history = |at| [invoke(0, 1), acquired(1, 1, 7, 100), released(20, 1, 100), gone(at)];
    let (figures, violations) = Checker::check(&history(30), &[]);
    assert_eq!(violations.iter().map(|violation| violation.rule).collect::<Vec<_>>(), [Rule::EarlyLoss]);
    assert_eq!(figures.gone["taken"], 1);
    assert_eq!(rules(&history(130)), [], "the answer came when the lease had ended");
}

#[test]
fn a_waiter_that_gets_a_smaller_token_after_the_larger_one_was_given_back_is_caught() {
    let events = [
        invoke(0, 1),
        invoke(5, 2),
        acquired(10, 1, 8, 100),
        read(10, 1, Register::Guarded, 0),
        write(10, 1, Register::Guarded, 0),
        released(11, 1, 100),
        acquired(30, 2, 7, 130),
        refused(31, 2),
        released(40, 2, 130),
    ];
    assert_eq!(rules(&events), [Rule::TokensInTurn, Rule::RefusedHolder]);
}

#[test]
fn an_answer_that_came_after_its_lease_had_ended_says_nothing_about_turns() {
    // The store granted token 7 first; its answer was under way for longer than the lease.
    let events = [
        invoke(0, 2),
        invoke(5, 1),
        acquired(110, 1, 8, 200),
        released(111, 1, 200),
        acquired(130, 2, 7, 100),
        refused(131, 2),
        lost(140, 2, 100),
    ];
    assert_eq!(rules(&events), []);
}

#[test]
fn a_stale_holder_may_be_refused_and_a_valid_one_may_not() {
    let history = |at| {
        [
            invoke(0, 1),
            acquired(1, 1, 7, 100),
            event(at, 1, What::Write { register: Register::Guarded, based_on: 0, accepted: false }),
            lost(150, 1, 100),
        ]
    };
    assert_eq!(rules(&history(101)), []);
    assert_eq!(rules(&history(99)), [Rule::RefusedHolder]);
}

#[test]
fn a_grant_in_the_middle_of_another_hold_is_caught_also_if_its_client_is_killed_at_once() {
    let granted = |at| {
        [
            invoke(0, 1),
            acquired(1, 1, 7, 100),
            invoke(2, 2),
            acquired(at, 2, 8, 150),
            event(120, 2, What::Died),
            released(90, 1, 100),
        ]
    };
    assert_eq!(rules(&granted(50)), [Rule::Exclusion]);
    assert_eq!(rules(&granted(90)), [], "it had been given back at that moment");
}

#[test]
fn a_killed_client_held_until_its_last_write() {
    let wrote = |at| {
        [
            invoke(0, 1),
            acquired(1, 1, 7, 100),
            invoke(2, 2),
            acquired(30, 2, 8, 130),
            read(20, 1, Register::Unguarded, 0),
            write(at, 1, Register::Unguarded, 0),
            released(55, 2, 130),
            event(200, 1, What::Died),
        ]
    };
    assert_eq!(rules(&wrote(50)), [Rule::Exclusion]);
    assert_eq!(rules(&wrote(25)), []);
    // Stopped before it wrote, and past its end: it was last heard of at 20.
    assert_eq!(rules(&wrote(150)), []);
}

#[test]
fn an_answer_that_comes_too_late_is_caught_unless_its_client_was_stopped() {
    let asks = event(0, 1, What::Invoke { lock: "a".to_owned(), by: Some(ms(1000)) });
    let gave_up = |at| event(at, 1, What::GaveUp { why: "timed out".to_owned(), error: None });
    assert_eq!(rules(&[asks.clone(), gave_up(2500)]), []);
    assert_eq!(rules(&[asks.clone(), gave_up(4000)]), [Rule::Deadline]);
    assert_eq!(rules(&[asks.clone(), acquired(4000, 1, 7, 9000)]), [Rule::Deadline]);
    assert_eq!(rules(&[asks.clone(), event(4000, 2, What::Tick)]), [Rule::Deadline], "it never came");
    let paused = |to| Fault {
        kind: "pause".to_owned(),
        target: Target::Client(1),
        from: ms(500),
        struck: Some(ms(500)),
        to: Some(ms(to)),
        excuse: None,
    };
    let excused = |to| {
        let (_, violations) = Checker::check(&[asks.clone(), gave_up(4000)], &[paused(to)]);
        violations[0].excused.is_some()
    };
    assert!(excused(1500) && !excused(1400));
}

#[test]
fn clients_that_do_not_end_and_locks_that_cannot_be_had_are_caught() {
    assert_eq!(rules(&[event(9, 1, What::Hung)]), [Rule::Deadline]);
    let stuck = What::Stuck { lock: "a".to_owned(), what: "held by somebody".to_owned() };
    assert_eq!(rules(&[event(9, 0, stuck)]), [Rule::Stuck]);
}

#[test]
fn a_client_that_cannot_connect_is_counted() {
    let failed = What::GaveUp { why: "no connection".to_owned(), error: Some("refused".to_owned()) };
    let (figures, violations) = Checker::check(&[event(1, 1, failed)], &[]);
    assert!(violations.is_empty(), "{violations:?}");
    assert_eq!((figures.gave_up["no connection"], figures.errors["no connection"].as_str()), (1, "refused"));
}
