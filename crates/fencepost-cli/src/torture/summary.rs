//! What a run has shown, in numbers and sentences.

use std::collections::BTreeMap;
use std::time::Duration;

use fencepost::{Capabilities, format_duration};
use fencepost_testkit::history::{Figures, Rule, Violation};
use serde::Serialize;

use super::{Collector, Fault, Plan};

/// How many violations are told in full.
const TOLD: usize = 5;

/// The outcome of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    /// The store, without passwords.
    pub(crate) store: String,
    pub(crate) seconds: f64,
    pub(crate) clients: u32,
    pub(crate) locks: usize,
    pub(crate) ttl_ms: u128,
    /// Faults dealt, by kind.
    pub(crate) faults: BTreeMap<String, usize>,
    #[serde(flatten)]
    pub(crate) figures: Figures,
    /// Violations that nothing excuses, by rule.
    pub(crate) violations: BTreeMap<&'static str, usize>,
    /// Breaks of exclusion that the store's promises allow after a fault that was dealt.
    pub(crate) legitimate: usize,
    /// The first violations in words.
    pub(crate) stories: Vec<String>,
    /// Whether the faults were hard enough to prove something.
    pub(crate) unguarded: String,
    pub(crate) notes: Vec<String>,
}

impl Summary {
    pub(crate) fn new(
        plan: &Plan,
        store: &Capabilities,
        ran: Duration,
        collector: &Collector,
        (figures, found): (Figures, &[Violation]),
    ) -> Self {
        let mut faults = BTreeMap::new();
        for fault in &collector.faults {
            *faults.entry(fault.kind.clone()).or_default() += 1;
        }
        let mut violations: BTreeMap<_, _> = Rule::ALL.into_iter().map(|rule| (rule.name(), 0)).collect();
        let guilty: Vec<_> = found.iter().filter(|violation| violation.excused.is_none()).collect();
        for violation in &guilty {
            *violations.entry(violation.rule.name()).or_default() += 1;
        }
        Self {
            store: store.store.clone(),
            seconds: ran.as_secs_f64(),
            clients: plan.clients,
            locks: plan.locks,
            ttl_ms: plan.ttl.as_millis(),
            faults,
            unguarded: unguarded(&figures, plan.deals(Fault::Pause), store.leases),
            figures,
            violations,
            legitimate: found.len() - guilty.len(),
            stories: guilty.iter().take(TOLD).map(ToString::to_string).collect(),
            notes: plan.notes.clone(),
        }
    }

    /// Whether nothing was found.
    pub(crate) fn is_clean(&self) -> bool {
        self.violations.values().all(|count| *count == 0)
    }

    /// The outcome in a sentence.
    pub(crate) fn verdict(&self) -> String {
        let total: usize = self.violations.values().sum();
        match total {
            0 => format!("No violation in {} acquisitions.", grouped(self.figures.acquisitions)),
            1 => format!("1 violation in {} acquisitions.", grouped(self.figures.acquisitions)),
            _ => format!("{total} violations in {} acquisitions.", grouped(self.figures.acquisitions)),
        }
    }

    /// Each fact with its name.
    pub(crate) fn rows(&self) -> Vec<(&'static str, String)> {
        let figures = &self.figures;
        let waits = &figures.waits;
        let ms = |wait: Duration| format!("{:.1} ms", wait.as_secs_f64() * 1e3);
        let ttl = Duration::from_millis(u64::try_from(self.ttl_ms).unwrap_or(u64::MAX));
        #[allow(clippy::cast_precision_loss)]
        let rate = figures.acquisitions as f64 / self.seconds.max(1e-3);
        let mut rows = vec![
            ("store", self.store.clone()),
            (
                "run",
                format!(
                    "{:.0} s, {} clients, {} locks, ttl {}",
                    self.seconds,
                    self.clients,
                    self.locks,
                    format_duration(ttl)
                ),
            ),
            (
                "acquired",
                format!(
                    "{} ({rate:.0} a second), {} hand-overs",
                    grouped(figures.acquisitions),
                    grouped(figures.handovers)
                ),
            ),
            ("not granted", counts(&figures.gave_up)),
            ("faults", counts(&self.faults)),
            ("locks lost", counts(&figures.losses)),
            (
                "waited",
                format!(
                    "p50 {}, p90 {}, p99 {}, p99.9 {}, longest {}",
                    ms(waits.percentile(50.0)),
                    ms(waits.percentile(90.0)),
                    ms(waits.percentile(99.0)),
                    ms(waits.percentile(99.9)),
                    ms(waits.max())
                ),
            ),
            (
                "guarded",
                format!(
                    "{} writes, {} stale ones refused",
                    grouped(figures.guarded_writes),
                    grouped(figures.guarded_refusals)
                ),
            ),
            (
                "unguarded",
                format!(
                    "{} writes, {} updates lost",
                    grouped(figures.unguarded_writes),
                    grouped(figures.unguarded_lost_updates)
                ),
            ),
        ];
        for (why, error) in &figures.errors {
            rows.push(("error", format!("{why}, first: {error}")));
        }
        let guilty: BTreeMap<_, _> = self
            .violations
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(rule, count)| (*rule, *count))
            .collect();
        rows.push(("violations", counts(&guilty)));
        if self.legitimate > 0 {
            rows.push((
                "legitimate",
                format!("exclusion {}: allowed by SAFETY.md after the faults dealt", self.legitimate),
            ));
        }
        rows
    }

    /// The table for a terminal.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        for (name, value) in self.rows() {
            out.push_str(&format!("{name:12} {value}\n"));
        }
        out.push('\n');
        for line in self.notes.iter().chain([&self.unguarded]) {
            out.push_str(&format!("{line}\n"));
        }
        for story in &self.stories {
            out.push_str(&format!("\n{story}\n"));
        }
        out.push_str(&format!("\n{}\n", self.verdict()));
        out
    }
}

/// What the registers that nobody guards say about the faults.
fn unguarded(figures: &Figures, pauses: bool, leases: bool) -> String {
    let lost = figures.unguarded_lost_updates;
    if lost > 0 {
        return format!(
            "The unguarded registers lost {} update{}: the faults bite, and a lock alone protects no data. The guarded ones \
             refuse a smaller token than they have seen.",
            grouped(lost),
            if lost == 1 { "" } else { "s" }
        );
    }
    if !leases {
        return "The unguarded registers lost nothing: a stopped holder keeps its lock on this store."
            .to_owned();
    }
    if !pauses {
        return "The unguarded registers lost nothing: no holder was paused past the end of its lease."
            .to_owned();
    }
    "The unguarded registers lost nothing: the faults did not bite, and this run proves little. Let it run for longer.".to_owned()
}

fn counts<K: AsRef<str>, V: Copy + TryInto<u64>>(counts: &BTreeMap<K, V>) -> String {
    let parts: Vec<_> = counts
        .iter()
        .map(|(name, count)| {
            format!("{} {}", name.as_ref(), grouped((*count).try_into().unwrap_or(u64::MAX)))
        })
        .collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}

/// A number with a space between its thousands.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_told_apart() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1 000", "1 234 567"]);
    }

    #[test]
    fn a_run_whose_faults_did_not_bite_says_so() {
        let figures = |lost| Figures { unguarded_lost_updates: lost, ..Figures::default() };
        assert!(unguarded(&figures(3), true, true).contains("lost 3 updates"));
        assert!(unguarded(&figures(0), true, true).contains("proves little"));
        assert!(unguarded(&figures(0), false, true).contains("no holder was paused"));
        assert!(unguarded(&figures(0), true, false).contains("keeps its lock"));
    }
}
