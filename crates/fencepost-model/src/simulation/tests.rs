//! Runs of many seeds. `make sim` runs more of them, `make sim SEED=n` shows one.

use std::env;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use super::plan::{Clocks, Fault, Plan};
use super::rules::Rules;
use super::sights::{Sight, Sights};
use super::world::World;

/// Runs a seed with some rules, and says what was broken.
fn run(seed: u64, rules: Rules, change: fn(&mut Plan)) -> (Option<String>, Sights) {
    let mut world = World::new(seed, rules, false, change);
    world.run();
    (world.broken, world.sights)
}

fn as_drawn(_: &mut Plan) {}

/// What happens in a seed, line by line.
fn log(seed: u64) -> (Option<String>, Vec<String>) {
    let mut world = World::new(seed, Rules::ALL, true, as_drawn);
    world.run();
    (world.broken, world.log.unwrap_or_default())
}

/// Runs many seeds on all cores, finds no broken promise, and says what was seen.
fn hold(seeds: Range<u64>, change: fn(&mut Plan)) -> Sights {
    let (next, started) = (AtomicU64::new(seeds.start), Instant::now());
    let all = Mutex::new((Sights::default(), Vec::new()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end || !all.lock().unwrap().1.is_empty() {
                return;
            }
            let (broken, seen) = run(seed, Rules::ALL, change);
            let mut all = all.lock().unwrap();
            all.0.add(&seen);
            all.1.extend(broken.map(|broken| format!("SEED={seed} {broken}")));
            let done = seed + 1 - seeds.start;
            if done.is_multiple_of(1000) {
                eprintln!("{done} seeds, {:.0} a second", done as f64 / started.elapsed().as_secs_f64());
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let (sights, broken) = all.into_inner().unwrap();
    assert!(broken.is_empty(), "{broken:#?}; `make sim SEED=n` shows how");
    sights
}

#[test]
fn every_promise_is_kept_and_everything_is_seen() {
    let sights = hold(0..2000, as_drawn);
    for sight in Sight::ALL {
        eprintln!("{sight:?}: {}", sights.count(sight));
        assert!(sights.count(sight) > 0, "a simulation that never sees {sight:?} proves little");
    }
}

#[test]
fn tokens_are_unique_and_in_order_where_keys_vanish_all_the_time() {
    let sights = hold(0..100, vanishing_keys);
    assert!(sights.count(Sight::PassedRefused) > 0);
}

#[test]
fn a_seed_repeats_exactly() {
    for seed in 0..10 {
        let (once, again) = (log(seed), log(seed));
        assert!(once.1.len() > 1000, "seed {seed} does hardly anything");
        assert!(once == again, "seed {seed} differs from itself");
    }
}

/// `make sim`: the seeds from FROM, as many as SEEDS says; or one SEED with all that happens in it.
#[test]
#[ignore = "runs for as long as it is told to"]
fn as_many_seeds_as_told() {
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("SEED") {
        let (broken, log) = log(seed);
        log.iter().for_each(|line| eprintln!("{line}"));
        return assert_eq!(broken, None, "SEED={seed}");
    }
    let (from, count) = (number("FROM").unwrap_or(0), number("SEEDS").unwrap_or(10_000));
    let sights = hold(from..from + count, as_drawn);
    Sight::ALL.iter().for_each(|sight| eprintln!("{sight:?}: {}", sights.count(*sight)));
}

// --- rules switched off
// ----------------------------------------------------------------------------------------

/// Finds a seed that breaks a promise without some rule, or with a plan that the promise does not cover.
#[track_caller]
fn breaks(promises: &[&str], seeds: u64, change: fn(&mut Plan), without: impl FnOnce(&mut Rules)) {
    let mut rules = Rules::ALL;
    without(&mut rules);
    let broken = (0..seeds).find_map(|seed| Some((seed, run(seed, rules, change).0?)));
    let (seed, broken) = broken.unwrap_or_else(|| panic!("{promises:?} hold in {seeds} seeds"));
    eprintln!("seed {seed}: {broken}");
    assert!(promises.iter().any(|promise| broken.starts_with(promise)), "seed {seed}: {broken}");
}

#[test]
fn without_quarantine_two_have_the_lock() {
    breaks(&["MUTEX"], 1000, as_drawn, |rules| rules.quarantine = false);
}

/// Nodes are lost, and empty servers that have been up for long take their places.
fn replaced(plan: &mut Plan) {
    plan.nodes = 3;
    plan.clocks = Clocks::Good;
    plan.faults = vec![Fault::Replace];
    plan.calm = plan.quarantine / 2;
    plan.duration = 10_000_000;
}

#[test]
fn with_spares_that_vote_at_once_two_have_the_lock() {
    breaks(&["MUTEX"], 1000, replaced, |rules| rules.spares_wait = false);
}

/// As above, and clocks are as wrong as the quarantine covers.
fn replaced_with_wrong_clocks(plan: &mut Plan) {
    replaced(plan);
    plan.clocks = Clocks::Stepping;
    (plan.error, plan.bound, plan.lazy) = (1_000_000, 100_000, 1.0);
    plan.quarantine = 3 * plan.ttl + 2_500_000;
    plan.calm = plan.ttl;
    plan.faults.push(Fault::StepClock);
}

#[test]
fn with_spares_that_vote_at_once_tokens_are_out_of_order() {
    breaks(&["ORDER", "UNIQUE"], 1000, replaced_with_wrong_clocks, |rules| rules.spares_wait = false);
}

#[test]
fn spares_that_wait_break_nothing() {
    hold(0..200, replaced);
    hold(0..200, replaced_with_wrong_clocks);
}

/// Nodes come back with what they held some time ago.
fn old_data(plan: &mut Plan) {
    plan.nodes = 3;
    plan.clocks = Clocks::Good;
    plan.faults = vec![Fault::Snapshot, Fault::RestartOld];
    plan.calm = plan.ttl / 10;
    plan.duration = 5_000_000;
}

#[test]
fn without_a_greeting_over_new_connections_two_have_the_lock() {
    breaks(&["MUTEX"], 1000, old_data, |rules| rules.greeting = false);
}

/// Answers take so long that it matters when they count from.
fn slow_answers(plan: &mut Plan) {
    plan.slow = 0.3;
    plan.delay.1 = plan.ttl / 2;
    plan.patience = plan.ttl;
    plan.lazy = 1.0;
}

#[test]
fn with_validity_from_the_answer_two_have_the_lock() {
    breaks(&["MUTEX"], 1000, slow_answers, |rules| rules.validity_from_send = false);
}

fn no_extensions(plan: &mut Plan) {
    plan.lazy = 1.0;
}

#[test]
fn without_a_margin_for_clocks_that_differ_two_have_the_lock() {
    breaks(&["MUTEX"], 1000, no_extensions, |rules| rules.margin = false);
}

#[test]
fn with_one_owner_for_many_attempts_two_have_the_lock_or_one_token() {
    breaks(&["MUTEX", "UNIQUE"], 1000, as_drawn, |rules| rules.fresh_owner = false);
}

/// Answers to extensions come when the term is over.
fn late_extensions(plan: &mut Plan) {
    plan.nodes = 3;
    plan.slow = 0.4;
    plan.delay.1 = plan.ttl;
    plan.patience = plan.ttl;
    plan.lazy = 0.0;
}

#[test]
fn with_extensions_that_come_late_others_had_the_lock_in_between() {
    breaks(&["CONTINUITY"], 1000, late_extensions, |rules| rules.timely_extension = false);
}

#[test]
fn without_giving_back_something_is_left() {
    breaks(&["LEFT"], 1000, as_drawn, |rules| rules.giving_back = false);
}

/// Keys vanish, requests come twice, and proposals are so far ahead that counters go up by ones.
fn vanishing_keys(plan: &mut Plan) {
    plan.nodes = 3;
    plan.clocks = Clocks::Good;
    plan.faults = vec![Fault::Delete];
    plan.calm = 1_000;
    plan.duration = 5_000_000;
    plan.bound = 5_000_000;
    (plan.ttl, plan.patience) = (100_000, 100_000);
    plan.delay = (1_000, 40_000);
    plan.slow = 0.2;
    plan.duplicates = 0.5;
    plan.wild_proposals = true;
}

#[test]
fn without_the_test_of_the_counter_a_token_is_given_twice() {
    breaks(&["UNIQUE"], 1000, vanishing_keys, |rules| rules.counter_test = false);
}

/// Counters are lost, and clocks are wrong by more than the quarantine covers.
fn short_quarantine(plan: &mut Plan) {
    plan.nodes = 3;
    plan.clocks = Clocks::Stepping;
    plan.error = 3_000_000;
    plan.faults = vec![Fault::RestartEmpty, Fault::Flush];
    plan.calm = plan.quarantine;
    plan.duration = 10_000_000;
}

#[test]
fn with_clocks_more_wrong_than_the_quarantine_covers_tokens_are_out_of_order() {
    breaks(&["ORDER", "UNIQUE"], 1000, short_quarantine, |_| {});
}
