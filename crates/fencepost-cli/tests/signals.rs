//! A signal at any moment between start and command: whatever the store has granted by then is given back
//! before the process ends. The leases are long here, so what is free was given back.
#![allow(clippy::unwrap_used)]

mod common;

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use common::Store;
use fencepost_testkit::local::Local;
use rustix::process::Signal;

/// How long after the start the signals come, in steps of this: from before the store was asked until after
/// the command runs.
const STEP: Duration = Duration::from_millis(3);
const STEPS: u32 = 20;

const TTL: Duration = Duration::from_secs(60);

fn a_signal_at_any_moment_leaves_nothing_behind(local: &str) {
    let local = Local::start(local.parse().unwrap(), TTL);
    let store = Store::at(local.url().to_owned());
    store.succeed(&["init"]);
    for step in 0..STEPS {
        let running = store.start(&["run", "--ttl", "60s", "job", "--", "sleep", "60"]);
        std::thread::sleep(STEP * step);
        running.signal(Signal::TERM);
        // Before anything else, it is killed as any process is.
        let ended = running.end();
        assert!(
            ended.status.signal() == Some(15) || ended.status.code() == Some(143),
            "signal {step}: {ended:?}"
        );
        let next = store.output(&["run", "--try", "job", "--", "true"]);
        assert!(next.status.success(), "signal {step}: {next:?}");
    }
}

macro_rules! on {
    ($($store:ident $name:literal),+ $(,)?) => { $(
        #[test]
        fn $store() {
            a_signal_at_any_moment_leaves_nothing_behind($name);
        }
    )+ };
}

fencepost_testkit::for_each_store!(on);
