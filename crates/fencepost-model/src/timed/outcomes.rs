//! Does forgetting hide anything? What a search that keeps everything sees of the locks that are returned,
//! one that forgets must see as well: also where rules are left out and much goes wrong.

use std::collections::BTreeSet;
use std::sync::Mutex;

use super::rules::{BASE, Counter, Keep, Rules};
use super::state::{Phase, State};
use crate::search::{End, Model, Steps, search};

/// What can be seen of a lock that was returned after another: when, its token, the largest before, the end
/// of its validity, how many nodes had restarted, and what is wrong with it.
type Outcome = (u8, u8, u8, u8, u8, Option<&'static str>);

/// Goes on where something is wrong, and remembers all outcomes.
struct Watched {
    rules: Rules,
    outcomes: Mutex<BTreeSet<Outcome>>,
}

impl Model for Watched {
    type State = State;

    fn initial(&self) -> Vec<State> {
        self.rules.initial()
    }

    fn steps(&self, state: &State, steps: &mut Steps<State>) {
        self.rules.steps(state, steps);
    }

    fn canonical(&self, state: State) -> State {
        state.canonical(&self.rules)
    }

    fn violation(&self, before: &State, after: &State) -> Option<String> {
        let held = |state: &State, who: usize| state.actors[who].phase == Phase::Held;
        let returned = (0..self.rules.attempts).find(|&who| held(after, who) && !held(before, who));
        if let Some(who) = returned.filter(|_| before.highest > 0) {
            let lock = &after.actors[who];
            let wrong = after.event.broken.map(|broken| broken.rule);
            let outcome = (after.now, lock.token, before.highest, lock.until, after.restarts, wrong);
            self.outcomes.lock().unwrap().insert(outcome);
        }
        None
    }
}

fn outcomes(rules: &Rules, keep: Keep) -> (usize, BTreeSet<Outcome>) {
    let watched = Watched { rules: Rules { keep, ..rules.clone() }, outcomes: Mutex::default() };
    let found = search(&watched, 60_000_000);
    assert_eq!(found.end, End::Exhausted);
    (found.states, watched.outcomes.into_inner().unwrap())
}

/// Compares, and says whether anything that is wrong was among it.
fn compare(name: &str, rules: Rules) -> bool {
    let (states, all) = outcomes(&rules, Keep::Everything);
    for keep in [Keep::Releases, Keep::Least] {
        let (fewer, seen) = outcomes(&rules, keep);
        eprintln!("{name}: {} outcomes of {states} states, {} of {fewer} ({keep:?})", all.len(), seen.len());
        assert_eq!(all.difference(&seen).next(), None, "{name}: hidden by forgetting");
    }
    assert!(!all.is_empty(), "{name}: shows nothing");
    all.iter().any(|outcome| outcome.5.is_some())
}

#[test]
fn forgetting_hides_no_outcome_without_faults() {
    assert!(!compare("no faults", Rules { end: 3, ..BASE }));
}

const RESTART: Rules = Rules { restarts: 1, quarantine: 0, end: 2, ..BASE };

#[test]
fn forgetting_hides_no_outcome_of_a_restart_without_quarantine() {
    assert!(compare("no quarantine", RESTART));
    assert!(compare("no quarantine, pure counters", Rules { counter: Counter::Pure, ..RESTART }));
}

#[test]
fn forgetting_hides_no_outcome_of_an_old_snapshot_without_quarantine() {
    let rules = Rules { counter: Counter::Pure, snapshots: 1, ..RESTART };
    assert!(compare("old snapshot, no quarantine, pure counters", rules));
}

#[test]
fn forgetting_hides_no_outcome_of_a_client_far_ahead() {
    let rules =
        Rules { counter: Counter::Unclamped, client_clock: [4, 0, 0], quarantine: 1, end: 3, ..RESTART };
    assert!(compare("unbounded proposals", rules));
}

#[test]
fn forgetting_hides_no_outcome_of_an_extension() {
    assert!(!compare("extension", Rules { rounds: 1, end: 2, ..BASE }));
}

#[test]
fn forgetting_hides_no_outcome_of_a_lock_that_is_taken_over() {
    assert!(!compare("taken over", Rules { attach: true, rounds: 1, end: 2, ..BASE }));
}

#[test]
#[ignore = "minutes"]
fn forgetting_hides_no_outcome_of_an_extension_and_a_restart() {
    assert!(compare("extension and restart", Rules { rounds: 1, quarantine: 1, end: 3, ..RESTART }));
}

#[test]
#[ignore = "minutes"]
fn forgetting_hides_no_outcome_of_requests_delivered_twice() {
    assert!(!compare("delivered twice", Rules { copies: 2, end: 2, ..BASE }));
}
