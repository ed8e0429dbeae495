//! What a node that is bad for long does to a client under load: its memory, its threads, and the slowest of
//! its cycles.

use std::time::{Duration, Instant};

use fencepost::Locks;
use fencepost_measure::usage::{memory, threads};
use tokio::runtime::Runtime;

use crate::cycle::{TASKS, by_tasks, names};
use crate::results::{Goal, progress};
use crate::rounds::report_number;

/// How often a cycle took about so long. Its size does not depend on how many there were: the memory of this
/// very process is measured.
struct Counts(Vec<u64>);

impl Counts {
    /// So many steps for each doubling: within 3 %.
    const STEPS: f64 = 32.0;

    fn new() -> Self {
        Self(vec![0; 64 * 32])
    }

    fn add(&mut self, time: Duration) {
        let place = (time.as_nanos().max(1) as f64).log2() * Self::STEPS;
        if let Some(count) = self.0.get_mut(place as usize) {
            *count += 1;
        }
    }

    fn all(&self) -> u64 {
        self.0.iter().sum()
    }

    /// In microseconds, what so many percent are not above.
    fn percentile(&self, percent: u64) -> f64 {
        let (mut seen, wanted) = (0, self.all() * percent / 100);
        let place = self.0.iter().position(|count| {
            seen += count;
            seen > wanted
        });
        place.map_or(f64::NAN, |place| (place as f64 / Self::STEPS).exp2() / 1e3)
    }
}

/// Full load for so long.
fn load(runtime: &Runtime, locks: &Locks, span: Duration) -> Counts {
    let (started, mut counts) = (Instant::now(), Counts::new());
    while started.elapsed() < span {
        by_tasks(runtime, names(locks, TASKS)).times.into_iter().for_each(|time| counts.add(time));
    }
    counts
}

pub(super) fn report_load(
    what: &str,
    (runtime, locks): (&Runtime, &Locks),
    span: Duration,
    turn_bad: impl FnOnce(),
) {
    let mebibytes = || memory() / f64::from(1 << 20);
    progress(&format!("redlock, {what} under load"));
    load(runtime, locks, span.min(Duration::from_secs(2)));
    let healthy = load(runtime, locks, span / 4);
    turn_bad();
    // What it takes to get used to it is no growth.
    load(runtime, locks, span.min(Duration::from_secs(5)));
    let before = (mebibytes(), threads());
    let bad = load(runtime, locks, span);
    let after = (mebibytes(), threads());
    let detail = format!("{:.1} MiB before, {:.1} after {} cycles in {span:?}", before.0, after.0, bad.all());
    let flat = Some(Goal::AtMost(1.1));
    report_number(&format!("redlock, {what} under load: memory"), after.0 / before.0, &detail, flat);
    let detail = format!("{} beside {}", after.1, before.1);
    let flat = Some(Goal::AtMost(0.0));
    report_number(&format!("redlock, {what} under load: more threads"), after.1 - before.1, &detail, flat);
    let [slow, slow_healthy] = [&bad, &healthy].map(|counts| counts.percentile(99));
    let (ratio, twice) = (slow / slow_healthy, Some(Goal::AtMost(2.0)));
    let detail = format!("{slow:.0} us beside {slow_healthy:.0} us");
    report_number(&format!("redlock, {what} under load: p99 / healthy"), ratio, &detail, twice);
}
