//! Runs of many seeds. `make sim` runs more of them, `make sim SEED=n` shows one.

use super::plan::Plan;
use super::rules::Rules;
use super::sights::{Sight, Sights};
use super::world::World;

/// Runs a seed with some rules, and says what was broken.
fn run(seed: u64, rules: Rules, change: fn(&mut Plan)) -> (Option<String>, Sights) {
    let mut world = World::new(seed, rules, false, change);
    world.run();
    (world.broken, world.sights)
}

#[test]
fn first() {
    let mut sights = Sights::default();
    let started = std::time::Instant::now();
    for seed in 0..300 {
        let (broken, seen) = run(seed, Rules::ALL, |_| {});
        sights.add(&seen);
        if let Some(broken) = broken {
            eprintln!("SEED={seed} {broken}");
        }
    }
    eprintln!("{:?}", started.elapsed());
    for sight in Sight::ALL {
        eprintln!("{sight:?} {}", sights.count(sight));
    }
}
