//! Valid histories by the hundred, and what becomes of each when one thing in it is broken.

use proptest::prelude::*;

use super::*;

/// One turn of a valid history: who, on which lock, how long it takes, and how it ends.
#[derive(Clone, Debug)]
struct Turn {
    client: u32,
    lock: usize,
    takes: u64,
    how: u8,
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let turn = (0..5u32, 0..3usize, 2..40u64, 0..4u8);
    prop::collection::vec(
        turn.prop_map(|(client, lock, takes, how)| Turn { client, lock, takes, how }),
        4..40,
    )
}

/// A valid history: each lock has a line of turns, with the largest overlap of lines that the clients allow.
/// Returns the events, and the index of each grant among them.
fn valid(turns: &[Turn]) -> (Vec<Event>, Vec<usize>) {
    let mut events = Vec::new();
    let (mut lock_free, mut client_free) = ([10u64; 3], [0u64; 5]);
    let (mut token, mut value) = ([0u64; 3], [0u64; 3]);
    let mut grants = Vec::new();
    for Turn { client, lock, takes, how } in turns.iter().cloned() {
        let asked = client_free[client as usize] + 1;
        let from = lock_free[lock].max(asked) + 1;
        let until = from + takes;
        token[lock] += 1 + takes % 3;
        events.push(event(asked, client, What::Invoke { lock: format!("lock {lock}"), by: None }));
        grants.push(events.len());
        events.push(acquired(from, client, token[lock], until));
        events.push(read(from, client, Register::Guarded, value[lock]));
        let end = match how {
            0 => {
                // Paused past its end, refused by the register.
                let what =
                    What::Write { register: Register::Guarded, based_on: value[lock], accepted: false };
                events.push(event(until + 50, client, what));
                events.push(lost(until + 60, client, until));
                until + 60
            }
            1 => {
                events.push(event(from + takes / 2, client, What::Held { until: Some(ms(until)) }));
                events.push(event(until - 1, client, What::Died));
                until
            }
            _ => {
                events.push(write(from + takes / 2, client, Register::Guarded, value[lock]));
                value[lock] += 1;
                events.push(released(until - 1, client, until));
                until
            }
        };
        lock_free[lock] = until;
        client_free[client as usize] = end;
    }
    (events, grants)
}

fn token_of(event: &mut Event) -> &mut u64 {
    match &mut event.what {
        What::Acquired { token, .. } => token,
        other => panic!("no grant: {other:?}"),
    }
}

proptest! {
    #[test]
    fn valid_histories_are_accepted(turns in turns()) {
        let (events, _) = valid(&turns);
        let (figures, violations) = Checker::check(&events, &[]);
        prop_assert!(violations.is_empty(), "{violations:?}");
        prop_assert_eq!(figures.acquisitions, turns.len() as u64);
    }

    /// A second hold in the middle of one, by somebody else.
    #[test]
    fn one_hold_too_many_is_caught(turns in turns(), which in any::<prop::sample::Index>()) {
        let (mut events, grants) = valid(&turns);
        let at = grants[which.index(grants.len())];
        let What::Invoke { lock, .. } = events[at - 1].what.clone() else { panic!("asked first") };
        let from = events[at].at;
        let intruder = |after: u64, what| Event { at: Moment(from.0 + after), client: 99, what };
        events.extend([
            intruder(1, What::Invoke { lock, by: None }),
            intruder(2, What::Acquired { token: 1 << 40, until: None }),
            intruder(3, What::Released { until: None }),
        ]);
        let found = rules(&events);
        prop_assert!(found.contains(&Rule::Exclusion), "{found:?}");
    }

    #[test]
    fn one_repeated_token_is_caught(turns in turns(), which in any::<prop::sample::Index>()) {
        let (mut events, grants) = valid(&turns);
        let one = which.index(grants.len());
        let asked = |grant: usize| &events[grant - 1].what;
        let same_lock = |other: &&usize| asked(**other) == asked(grants[one]) && **other != grants[one];
        let Some(other) = grants.iter().find(same_lock).copied() else { return Ok(()) };
        let token = *token_of(&mut events[other]);
        *token_of(&mut events[grants[one]]) = token;
        prop_assert!(rules(&events).contains(&Rule::UniqueTokens));
    }

    #[test]
    fn one_token_out_of_order_is_caught(turns in turns(), which in any::<prop::sample::Index>()) {
        let (mut events, grants) = valid(&turns);
        let one = grants[which.index(grants.len())];
        // Asked for after this one was granted, on the same lock.
        let asked = |grant: usize| &events[grant - 1];
        let later =
            |other: &&usize| asked(**other).what == asked(one).what && asked(**other).at > events[one].at;
        let Some(_) = grants.iter().find(later) else { return Ok(()) };
        *token_of(&mut events[one]) = 1 << 40;
        prop_assert!(rules(&events).contains(&Rule::OrderedTokens));
    }

    #[test]
    fn one_stale_write_that_is_accepted_is_caught(turns in turns(), which in any::<prop::sample::Index>()) {
        let (mut events, _) = valid(&turns);
        let is_refused = |at: &usize| matches!(events[*at].what, What::Write { accepted: false, .. });
        let refused: Vec<_> = (0..events.len()).filter(is_refused).collect();
        prop_assume!(!refused.is_empty());
        let one = refused[which.index(refused.len())];
        // Only a write in between makes it a lost one.
        let What::Write { based_on: stale, .. } = events[one].what else { unreachable!("filtered") };
        if let What::Write { accepted, .. } = &mut events[one].what { *accepted = true; }
        let client = events[one].client;
        let asks = |event: &Event| event.client == client && matches!(event.what, What::Invoke { .. });
        let asked = events[..one].iter().rposition(asks);
        let lock = events[asked.unwrap()].what.clone();
        let mut of_lock = std::collections::HashMap::new();
        let mut between = false;
        for (at, event) in events.iter().enumerate() {
            if let What::Invoke { .. } = event.what { of_lock.insert(event.client, event.what.clone()); }
            between |= at != one && event.at < events[one].at && of_lock.get(&event.client) == Some(&lock)
                && matches!(event.what, What::Write { accepted: true, based_on, .. } if based_on == stale);
        }
        prop_assume!(between);
        prop_assert!(rules(&events).contains(&Rule::LostUpdate));
    }
}
