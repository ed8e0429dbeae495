//! The main job, with the options that people use: several `run`s of one name at once. Every one of them runs
//! its command, no two at a time, with growing tokens, whatever the ttl, the grace and the longest hold, on
//! every store.
#![allow(clippy::unwrap_used)]

mod common;

use std::process::Output;
use std::time::Duration;

use common::Store;
use fencepost_testkit::local::Local;

const TTLS: [&str; 5] = ["", "1s", "4s", "10s", "1m"];
const GRACES: [&str; 3] = ["", "500ms", "30s"];
const HOLDS: [&str; 2] = ["", "50s"];

/// Contenders of one name.
const AT_ONCE: usize = 4;

macro_rules! on {
    ($($store:ident $name:literal),+ $(,)?) => { $(
        #[test]
        fn $store() {
            every_combination($name);
        }
    )+ };
}

fencepost_testkit::for_each_store!(on);

fn every_combination(local: &str) {
    let local = Local::start(local.parse().unwrap(), Duration::from_secs(60));
    let store = Store::at(local.url().to_owned());
    store.succeed(&["init"]);
    for ttl in TTLS {
        for grace in GRACES {
            for hold in HOLDS {
                let flags = [("--ttl", ttl), ("--grace", grace), ("--max-hold", hold)];
                let given = flags.into_iter().filter(|(_, value)| !value.is_empty());
                let given: Vec<_> = given.flat_map(|(flag, value)| [flag, value]).collect();
                assert!(
                    (0..3).any(|turn| contend(&store, &given, turn)),
                    "{given:?}: each time some were lost"
                );
            }
        }
    }
}

/// Whether all of them ran. A lease of one second is lost by a machine that stands still for a part of it,
/// and that is told.
fn contend(store: &Store, options: &[&str], turn: u32) -> bool {
    let name = format!("with{}-{turn}", options.concat());
    let script = format!(
        "trap 'rmdir {name}; exit 1' TERM; \
         mkdir {name} || touch overlap; echo $FENCEPOST_TOKEN >> {name}.log; rmdir {name}"
    );
    let words = [&["run", &name][..], options, &["--", "sh", "-c", &script]].concat();
    let running: Vec<_> = (0..AT_ONCE).map(|_| store.start(&words)).collect();
    let ends: Vec<_> = running.into_iter().map(common::Running::end).collect();
    let lost = |output: &Output| options.contains(&"1s") && matches!(output.status.code(), Some(69 | 70));
    for output in &ends {
        assert!(output.status.success() || lost(output), "{options:?}: {output:?}");
    }
    assert!(!store.path("overlap").exists(), "{options:?}: two held the lock at once");
    let tokens = std::fs::read_to_string(store.path(&format!("{name}.log"))).unwrap();
    let tokens: Vec<u64> = tokens.lines().map(|line| line.parse().unwrap()).collect();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{options:?}: {tokens:?}");
    if ends.iter().any(lost) {
        return false;
    }
    assert_eq!(tokens.len(), AT_ONCE, "{options:?}");
    true
}
