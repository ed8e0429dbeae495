//! Clusters of more masters: what a cycle and a hand-over cost, whichever master they are on.

use fencepost::{Lock, Locks};
use fencepost_measure::usage::processor_time;

use super::target::Target;
use super::{Cost, report};
use crate::cycle::{TASKS, by_tasks, names, runtime};
use crate::results::progress;

const SIZES: [usize; 2] = [3, 6];

/// Tasks that contend for one name.
const CONTENDERS: usize = 8;

pub(super) fn run(rounds: usize) {
    let runtime = runtime();
    let targets = SIZES.map(Target::cluster);
    let locks =
        targets.each_ref().map(|target| runtime.block_on(Locks::connect(&target.url)).expect("a store"));
    let (mut cycles, mut turns) = (SIZES.map(|_| Vec::new()), SIZES.map(|_| Vec::new()));
    for round in 0..rounds {
        progress(&format!("masters, round {round}"));
        for (index, (target, locks)) in targets.iter().zip(&locks).enumerate() {
            let cost = |locks: Vec<Lock>| {
                let spent = || (processor_time(std::process::id()) / 1e3, target.spent());
                let before = spent();
                let count = by_tasks(&runtime, locks).times.len() as f64;
                let after = spent();
                Cost { client: (after.0 - before.0) / count, server: (after.1 - before.1) / count }
            };
            cycles[index].push(cost(names(locks, TASKS)));
            turns[index].push(cost((0..CONTENDERS).map(|_| locks.lock("bench:turns")).collect()));
        }
    }
    report("cluster", "a cycle", "masters", &SIZES, &cycles, true);
    report("cluster", "a hand-over", "masters", &SIZES, &turns, true);
}
