//! Histories that must be caught, one for each rule, and such that must not.

mod excuses;
mod generated;
mod losses;

use super::*;

/// A moment, in milliseconds.
fn ms(at: u64) -> Moment {
    Moment(at * 1_000_000)
}

fn event(at: u64, client: u32, what: What) -> Event {
    Event { at: ms(at), client, what }
}

fn invoke(at: u64, client: u32) -> Event {
    event(at, client, What::Invoke { lock: "a".to_owned(), by: None })
}

fn acquired(at: u64, client: u32, token: u64, until: u64) -> Event {
    event(at, client, What::Acquired { token, until: Some(ms(until)) })
}

fn released(at: u64, client: u32, until: u64) -> Event {
    event(at, client, What::Released { until: Some(ms(until)) })
}

fn lost(at: u64, client: u32, until: u64) -> Event {
    event(at, client, What::Lost { why: "paused".to_owned(), until: ms(until) })
}

fn read(at: u64, client: u32, register: Register, value: u64) -> Event {
    event(at, client, What::Read { register, value: Some(value) })
}

fn write(at: u64, client: u32, register: Register, based_on: u64) -> Event {
    event(at, client, What::Write { register, based_on, accepted: true })
}

fn rules(events: &[Event]) -> Vec<Rule> {
    let (_, violations) = Checker::check(events, &[]);
    violations.iter().map(|violation| violation.rule).collect()
}

#[test]
fn two_valid_holds_at_once_are_caught_and_told() {
    let events = [
        invoke(0, 1),
        acquired(1, 1, 7, 100),
        invoke(2, 2),
        acquired(60, 2, 8, 160),
        released(70, 2, 160),
        released(90, 1, 100),
    ];
    let (_, violations) = Checker::check(&events, &[]);
    assert_eq!(violations.len(), 1);
    let told = violations[0].to_string();
    for part in [
        "exclusion on `a`",
        "token 7 at 0.0010 s",
        "token 8 at 0.0600 s",
        "for 0.0100 s, from 0.0600 s to 0.0700 s",
    ] {
        assert!(told.contains(part), "no `{part}` in: {told}");
    }
    let picture = violations[0].timeline(&[]).svg();
    assert!(picture.starts_with("<svg") && picture.contains("client 1") && picture.contains("client 2"));
}

#[test]
fn a_hold_without_an_end_is_valid_until_it_is_released() {
    let endless = |at, client, token| event(at, client, What::Acquired { token, until: None });
    let given_back = |at, client| event(at, client, What::Released { until: None });
    let events =
        [invoke(0, 1), endless(1, 1, 7), invoke(2, 2), endless(5, 2, 8), given_back(6, 2), given_back(9, 1)];
    assert_eq!(rules(&events), [Rule::Exclusion]);
}

#[test]
fn the_end_that_a_guard_told_ends_its_hold_however_late_it_noticed() {
    let events = [
        invoke(0, 1),
        acquired(1, 1, 7, 100),
        invoke(2, 2),
        acquired(100, 2, 8, 200),
        released(150, 2, 200),
        // Stood still, and learnt at its first check that the lease had ended.
        lost(400, 1, 100),
    ];
    assert_eq!(rules(&events), []);
}

#[test]
fn a_renewed_hold_is_valid_for_longer_than_it_first_said() {
    let renewed = event(90, 1, What::Held { until: Some(ms(180)) });
    let events = [
        invoke(0, 1),
        acquired(1, 1, 7, 100),
        renewed,
        invoke(2, 2),
        acquired(150, 2, 8, 250),
        lost(300, 1, 180),
        released(310, 2, 320),
    ];
    assert_eq!(rules(&events), [Rule::Exclusion]);
}

#[test]
fn a_killed_client_held_until_it_was_last_heard_of() {
    let heard = |at| event(at, 1, What::Held { until: Some(ms(100)) });
    let killed = event(30, 1, What::Died);
    let other = [invoke(2, 2), acquired(15, 2, 8, 100), released(40, 2, 100)];
    let history = |heard_at| {
        [&[invoke(0, 1), acquired(1, 1, 7, 100), heard(heard_at), killed.clone()][..], &other].concat()
    };
    assert_eq!(rules(&history(10)), []);
    assert_eq!(rules(&history(20)), [Rule::Exclusion]);
}

#[test]
fn three_at_once_are_three_pairs() {
    let mut events = Vec::new();
    for client in 1..=3 {
        events.extend([
            invoke(0, client),
            acquired(10, client, u64::from(client), 100),
            released(20, client, 100),
        ]);
    }
    assert_eq!(rules(&events), [Rule::Exclusion; 3]);
}

#[test]
fn a_token_handed_out_twice_is_caught() {
    let later = [
        invoke(0, 1),
        acquired(1, 1, 7, 100),
        released(2, 1, 100),
        invoke(3, 2),
        acquired(4, 2, 7, 100),
        released(5, 2, 100),
    ];
    assert_eq!(rules(&later), [Rule::UniqueTokens]);
    // Asked for at the same time, so that only the number itself tells.
    let at_once = [
        invoke(0, 1),
        invoke(0, 2),
        acquired(1, 1, 7, 100),
        released(2, 1, 100),
        acquired(3, 2, 7, 100),
        released(4, 2, 100),
    ];
    assert_eq!(rules(&at_once), [Rule::UniqueTokens]);
}

#[test]
fn a_smaller_token_is_caught_whether_it_was_asked_for_before_or_after_the_larger_was_granted() {
    let history = |asked| {
        [
            invoke(0, 1),
            acquired(10, 1, 8, 100),
            released(11, 1, 100),
            invoke(asked, 2),
            acquired(30, 2, 7, 100),
            released(31, 2, 100),
        ]
    };
    assert_eq!(rules(&history(5)), [Rule::TokensInTurn]);
    assert_eq!(rules(&history(20)), [Rule::OrderedTokens]);
}

#[test]
fn tokens_of_other_locks_do_not_matter() {
    let other = |at| event(at, 2, What::Invoke { lock: "b".to_owned(), by: None });
    let events = [
        invoke(0, 1),
        acquired(1, 1, 8, 100),
        other(2),
        acquired(3, 2, 8, 100),
        released(4, 1, 100),
        released(5, 2, 100),
    ];
    assert_eq!(rules(&events), []);
}

/// Two who read the same value, one after the other by their leases, and both write.
fn stale_writer(register: Register) -> Vec<Event> {
    vec![
        invoke(0, 1),
        acquired(1, 1, 7, 100),
        read(2, 1, register, 0),
        invoke(3, 2),
        acquired(110, 2, 8, 210),
        read(111, 2, register, 0),
        write(112, 2, register, 0),
        released(113, 2, 210),
        write(300, 1, register, 0),
        lost(301, 1, 100),
    ]
}

#[test]
fn an_update_lost_in_the_guarded_register_is_caught() {
    let (_, violations) = Checker::check(&stale_writer(Register::Guarded), &[]);
    assert_eq!(violations.iter().map(|violation| violation.rule).collect::<Vec<_>>(), [Rule::LostUpdate]);
    let told = violations[0].to_string();
    assert!(told.contains("client 2 wrote with token 8") && told.contains("token 7 was accepted"), "{told}");
}

#[test]
fn an_update_lost_in_the_unguarded_register_is_counted() {
    let (figures, violations) = Checker::check(&stale_writer(Register::Unguarded), &[]);
    assert!(violations.is_empty(), "{violations:?}");
    assert_eq!((figures.unguarded_writes, figures.unguarded_lost_updates), (2, 1));
}

#[test]
fn what_is_left_behind_is_caught() {
    let left = event(9, 0, What::Left { lock: "a".to_owned(), what: "a holder".to_owned() });
    assert_eq!(rules(&[left]), [Rule::LeftBehind]);
}

#[test]
fn a_history_that_makes_no_sense_is_caught() {
    let histories: [&[Event]; 6] = [
        &[released(0, 1, 5)],
        &[invoke(0, 1), released(1, 1, 5)],
        &[invoke(0, 1), invoke(1, 1)],
        &[event(0, 1, What::Gone { why: "taken".to_owned() })],
        &[invoke(0, 1), acquired(1, 1, 7, 9), acquired(2, 1, 8, 9), released(3, 1, 9)],
        &[invoke(0, 1), acquired(1, 1, 7, 9), read(2, 1, Register::Guarded, 5), released(3, 1, 9)],
    ];
    for history in histories {
        assert_eq!(rules(history), [Rule::Nonsense], "{history:?}");
    }
    let mut checker = Checker::new();
    [invoke(5, 1), invoke(4, 2)].into_iter().for_each(|event| checker.observe(event));
    assert_eq!(
        checker.violations().iter().map(|violation| violation.rule).collect::<Vec<_>>(),
        [Rule::Nonsense]
    );
}

#[test]
fn events_go_over_a_pipe_and_come_back() {
    for sent in stale_writer(Register::Guarded) {
        let line = serde_json::to_string(&sent).unwrap();
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), sent, "{line}");
    }
}
