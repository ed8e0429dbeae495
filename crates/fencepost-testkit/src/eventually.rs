//! Waiting for a condition. The limit is generous: it only turns a hang into a message.

use std::time::{Duration, Instant};

/// How long anything in a test may take before it counts as never happening.
pub const LIMIT: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(5);

/// Waits until `condition` holds. Blocks the thread.
///
/// # Panics
/// If it does not hold within [`LIMIT`]; `what` says what was waited for.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    assert!(within(LIMIT, &mut condition), "waited {LIMIT:?} in vain: {what}");
}

/// Waits until `condition` holds, at most for `limit`; says whether it does.
pub(crate) fn within(limit: Duration, condition: &mut dyn FnMut() -> bool) -> bool {
    let started = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if started.elapsed() > limit {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
}
