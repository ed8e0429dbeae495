//! The script of the Redis store, on a real server, without its client.

#![allow(clippy::unwrap_used)]

mod directed;
mod link;
mod model;
mod mutants;
mod world;

use world::World;

const SCRIPT: &str = include_str!("../../src/backends/redis/scripts/ops.lua");

#[test]
fn every_reply_and_key_is_as_the_model_says() {
    let steps = World::new(SCRIPT, 1).run(1_500).unwrap();
    for verb in ["try", "wait", "again", "free", "leave", "renew", "attach", "ask", "seize"] {
        assert!(steps.get(verb).is_some_and(|count| *count > 50), "{verb}: {steps:?}");
    }
}

#[test]
#[ignore = "a minute: the same with more seeds"]
fn every_reply_and_key_is_as_the_model_says_for_long() {
    for seed in 1..=12 {
        let steps = World::new(SCRIPT, seed).run(8_000).unwrap();
        eprintln!("seed {seed}: {} steps, {steps:?}", steps.values().sum::<usize>());
    }
}

#[test]
fn a_replica_refuses_and_tells_nobody() {
    directed::replica(SCRIPT).unwrap();
}

#[test]
fn a_full_server_that_refuses_to_revoke_tells_nobody() {
    directed::full(SCRIPT).unwrap();
}

#[test]
fn tokens_grow_when_the_clock_goes_back_and_end_before_they_are_inexact() {
    directed::clock(SCRIPT).unwrap();
}

#[test]
fn a_stopped_process_costs_one_second_however_many_of_its_tasks_wait() {
    directed::stopped(SCRIPT).unwrap();
}
