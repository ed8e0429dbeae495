//! Two things measured in turns, and how they compare.

use std::time::{Duration, Instant};

use fencepost_measure::Times;

use crate::results::{self, Entry, Goal};

/// How long one side is measured at a time.
pub(crate) const SLICE: Duration = Duration::from_millis(250);

/// The times of the cycles of one slice.
#[derive(Default)]
pub(crate) struct Slice {
    pub(crate) times: Vec<Duration>,
    pub(crate) took: Duration,
}

impl Slice {
    pub(crate) fn add(&mut self, time: Duration) {
        self.times.push(time);
        self.took += time;
    }

    pub(crate) fn median(&self) -> Duration {
        Times::new(self.times.clone(), self.took).percentile(50).unwrap_or_default()
    }

    pub(crate) fn rate(&self) -> f64 {
        self.times.len() as f64 / self.took.as_secs_f64()
    }
}

/// Runs `cycle` again and again for one slice.
pub(crate) fn slice(mut cycle: impl FnMut()) -> Slice {
    let mut slice = Slice::default();
    let started = Instant::now();
    while started.elapsed() < SLICE {
        let before = Instant::now();
        cycle();
        slice.times.push(before.elapsed());
    }
    slice.took = started.elapsed();
    slice
}

pub(crate) fn middle(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Prints a comparison of median times: smaller is better, 1 is the raw limit.
pub(crate) fn report_times(what: &str, goal: Option<f64>, pairs: &[(Slice, Slice)]) {
    let microseconds = |slice: &Slice| slice.median().as_secs_f64() * 1e6;
    let pairs: Vec<_> = pairs.iter().map(|(ours, raw)| (microseconds(ours), microseconds(raw))).collect();
    report_microseconds(what, goal, &pairs);
}

/// The same of medians that were taken elsewhere.
pub(crate) fn report_microseconds(what: &str, goal: Option<f64>, pairs: &[(f64, f64)]) {
    compare(what, goal.map(Goal::AtMost), pairs, |time| format!("{time:.1} us"));
}

/// Prints a comparison of rates: larger is better, 1 is the raw limit.
pub(crate) fn report_rates(what: &str, goal: Option<f64>, pairs: &[(Slice, Slice)]) {
    let pairs: Vec<_> = pairs.iter().map(|(ours, raw)| (ours.rate(), raw.rate())).collect();
    report_per_second(what, goal, &pairs);
}

/// The same of rates that were taken elsewhere.
pub(crate) fn report_per_second(what: &str, goal: Option<f64>, pairs: &[(f64, f64)]) {
    compare(what, goal.map(Goal::AtLeast), pairs, |rate| format!("{rate:.0}/s"));
}

fn compare(what: &str, goal: Option<Goal>, pairs: &[(f64, f64)], shown: impl Fn(f64) -> String) {
    let [ours, raw] = [|pair: &(f64, f64)| pair.0, |pair: &(f64, f64)| pair.1]
        .map(|side| middle(pairs.iter().map(side).collect()));
    let ratios: Vec<f64> = pairs.iter().map(|(ours, raw)| ours / raw).collect();
    let range =
        ratios.iter().fold((f64::MAX, f64::MIN), |(low, high), ratio| (low.min(*ratio), high.max(*ratio)));
    results::add(Entry {
        what: what.to_owned(),
        figure: middle(ratios),
        range: Some(range),
        detail: format!("{} beside {}", shown(ours), shown(raw)),
        goal,
    });
}

/// Prints one figure that is no comparison of slices.
pub(crate) fn report_number(what: &str, figure: f64, detail: &str, goal: Option<Goal>) {
    results::add(Entry { what: what.to_owned(), figure, range: None, detail: detail.to_owned(), goal });
}
