//! Two things measured in turns, and how they compare.

use std::time::{Duration, Instant};

/// How long one side is measured at a time.
pub(crate) const SLICE: Duration = Duration::from_millis(250);

/// The times of the cycles of one slice.
#[derive(Default)]
pub(crate) struct Slice {
    pub(crate) times: Vec<Duration>,
    pub(crate) took: Duration,
}

impl Slice {
    pub(crate) fn median(&self) -> Duration {
        let mut times = self.times.clone();
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
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
    let ours = middle(pairs.iter().map(|(ours, _)| microseconds(ours)).collect());
    let raw = middle(pairs.iter().map(|(_, raw)| microseconds(raw)).collect());
    let ratios: Vec<f64> = pairs.iter().map(|(ours, raw)| microseconds(ours) / microseconds(raw)).collect();
    print(
        what,
        &format!("{ours:.1} us"),
        &format!("{raw:.1} us"),
        ratios,
        goal.map(|goal| format!("at most {goal}")),
    );
}

/// Prints a comparison of rates: larger is better, 1 is the raw limit.
pub(crate) fn report_rates(what: &str, goal: Option<f64>, pairs: &[(Slice, Slice)]) {
    let ours = middle(pairs.iter().map(|(ours, _)| ours.rate()).collect());
    let raw = middle(pairs.iter().map(|(_, raw)| raw.rate()).collect());
    let ratios: Vec<f64> = pairs.iter().map(|(ours, raw)| ours.rate() / raw.rate()).collect();
    print(
        what,
        &format!("{ours:.0}/s"),
        &format!("{raw:.0}/s"),
        ratios,
        goal.map(|goal| format!("at least {goal}")),
    );
}

fn print(what: &str, ours: &str, raw: &str, ratios: Vec<f64>, goal: Option<String>) {
    let (low, high) =
        ratios.iter().fold((f64::MAX, f64::MIN), |(low, high), ratio| (low.min(*ratio), high.max(*ratio)));
    let goal = goal.map(|goal| format!("   goal: {goal}")).unwrap_or_default();
    println!("{what:<46} {:>5.2}   ({low:.2} to {high:.2})   {ours} beside {raw}{goal}", middle(ratios));
}

/// Prints one figure that is no comparison of slices.
pub(crate) fn report_number(what: &str, number: f64, detail: &str, goal: Option<&str>) {
    let goal = goal.map(|goal| format!("   goal: {goal}")).unwrap_or_default();
    println!("{what:<46} {number:>5.2}   {detail}{goal}");
}
