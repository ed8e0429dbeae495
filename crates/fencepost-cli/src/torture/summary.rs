//! What a run has shown, in numbers and sentences.

use std::collections::BTreeMap;
use std::time::Duration;

use fencepost::{Capabilities, format_duration};
use fencepost_testkit::history::{Figures, Rule, Violation};
use fencepost_testkit::local::Blow;
use serde::Serialize;

use super::waits::longest_outage;
use super::{Collector, Fault, Plan};

/// From how many leases on a run is long enough for every fault to have shown its effect.
const LONG: u32 = 20;

/// What follows from a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// All was as promised.
    Clean,
    /// Something must not have been.
    Violated,
    /// Too little happened, or is known, to say anything.
    Inconclusive,
}

/// The outcome of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    /// The store, without passwords.
    pub(crate) store: String,
    pub(crate) seconds: f64,
    pub(crate) clients: u32,
    pub(crate) locks: usize,
    pub(crate) ttl_ms: u128,
    /// Faults that were seen to have an effect, by kind.
    pub(crate) faults: BTreeMap<String, usize>,
    /// Those that were not.
    pub(crate) faults_without_effect: BTreeMap<String, usize>,
    /// Locks lost, by the kind of fault that was at work.
    pub(crate) losses_by_fault: BTreeMap<String, u64>,
    #[serde(flatten)]
    pub(crate) figures: Figures,
    /// Violations that nothing excuses, by rule.
    pub(crate) violations: BTreeMap<&'static str, usize>,
    /// What the store's promises allow after the faults that were dealt.
    pub(crate) legitimate: usize,
    /// The same by rule.
    pub(crate) legitimate_by_rule: BTreeMap<&'static str, usize>,
    /// How long the longest fault of a server lasted, until all were well again.
    pub(crate) longest_outage_ms: u64,
    /// The longest part of a wait in which nothing was broken that explains it.
    pub(crate) longest_unexplained_wait_ms: u64,
    /// In which part of the run such a break can have been legitimate.
    pub(crate) excused_share: f64,
    pub(crate) outcome: Verdict,
    /// Why nothing follows from it that no violation was found.
    pub(crate) doubts: Vec<String>,
    /// The first violation of each rule in words.
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
        unknown: Option<String>,
    ) -> Self {
        let (mut faults, mut without_effect) = (BTreeMap::new(), BTreeMap::new());
        for fault in &collector.faults {
            let counts = if fault.struck.is_some() { &mut faults } else { &mut without_effect };
            *counts.entry(fault.kind.clone()).or_default() += 1;
        }
        let mut violations: BTreeMap<_, _> = Rule::ALL.into_iter().map(|rule| (rule.name(), 0)).collect();
        let guilty: Vec<_> = found.iter().filter(|violation| violation.excused.is_none()).collect();
        for violation in &guilty {
            *violations.entry(violation.rule.name()).or_default() += 1;
        }
        // Only where another server takes over, waits are promised to end soon after.
        let judged = plan.deals(Fault::Server(Blow::Failover)) && collector.waits.too_long > 0;
        if judged {
            violations.insert("long waits", collector.waits.too_long);
        }
        let mut legitimate_by_rule = BTreeMap::new();
        for violation in found.iter().filter(|violation| violation.excused.is_some()) {
            *legitimate_by_rule.entry(violation.rule.name()).or_default() += 1;
        }
        let mut summary = Self {
            store: store.store.clone(),
            seconds: ran.as_secs_f64(),
            clients: plan.clients,
            locks: plan.locks,
            ttl_ms: plan.ttl.as_millis(),
            faults,
            faults_without_effect: without_effect,
            losses_by_fault: collector.losses.clone(),
            longest_outage_ms: milliseconds(longest_outage(&collector.faults)),
            longest_unexplained_wait_ms: milliseconds(collector.waits.unexplained),
            excused_share: collector.excused_share(ran),
            outcome: Verdict::Clean,
            doubts: Vec::new(),
            unguarded: unguarded(&figures, plan.deals(Fault::Pause), store.leases),
            figures,
            violations,
            legitimate: found.len() - guilty.len(),
            legitimate_by_rule,
            stories: first_of_each_rule(&guilty)
                .chain(judged.then(|| format!("long wait: {}", collector.waits.story)))
                .collect(),
            notes: plan.notes.clone(),
        };
        summary.doubts = doubts(plan, store, ran, &summary).chain(unknown).collect();
        summary.outcome = match (guilty.is_empty() && !judged, summary.doubts.is_empty()) {
            (false, _) => Verdict::Violated,
            (true, false) => Verdict::Inconclusive,
            (true, true) => Verdict::Clean,
        };
        summary
    }

    /// The outcome in a sentence.
    pub(crate) fn verdict(&self) -> String {
        let total: usize = self.violations.values().sum();
        let acquisitions = grouped(self.figures.acquisitions);
        match (self.outcome, total) {
            (Verdict::Inconclusive, _) => {
                format!(
                    "Inconclusive: {}. ({acquisitions} acquisitions without a violation.)",
                    self.doubts.join("; ")
                )
            }
            (_, 0) => format!("No violation in {acquisitions} acquisitions."),
            (_, 1) => format!("1 violation in {acquisitions} acquisitions."),
            _ => format!("{total} violations in {acquisitions} acquisitions."),
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
            ("no effect", counts(&self.faults_without_effect)),
            ("locks lost", counts(&figures.losses)),
            ("lost under", counts(&self.losses_by_fault)),
            ("gone", counts(&figures.gone)),
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
                "outages",
                format!(
                    "of servers: longest {}; of a wait, {} at most are without any",
                    ms(Duration::from_millis(self.longest_outage_ms)),
                    ms(Duration::from_millis(self.longest_unexplained_wait_ms))
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
                format!("{}: explained by the faults dealt", counts(&self.legitimate_by_rule)),
            ));
        }
        if self.excused_share > 0.0 {
            let share = self.excused_share * 100.0;
            rows.push((
                "excusable",
                format!("{share:.0} % of the run: there, an overlap can have had an excuse"),
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

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn first_of_each_rule(guilty: &[&Violation]) -> impl Iterator<Item = String> {
    let first = |rule: Rule| guilty.iter().find(move |violation| violation.rule == rule);
    Rule::ALL.into_iter().filter_map(first).map(ToString::to_string)
}

/// Why nothing may follow from a run.
fn doubts<'a>(
    plan: &'a Plan,
    store: &Capabilities,
    ran: Duration,
    summary: &'a Summary,
) -> impl Iterator<Item = String> + use<'a> {
    let figures = &summary.figures;
    let silent = (0..plan.clients).filter(|client| !figures.clients.contains_key(client)).count();
    let several = plan.clients > 1;
    let long = ran > plan.ttl * LONG;
    let pauses = long && several && plan.deals(Fault::Pause) && store.leases;
    let pauses = pauses && figures.unguarded_lost_updates == 0;
    let of = |counts: &BTreeMap<String, usize>, fault: Fault| {
        counts.keys().any(|kind| Fault::named(kind) == fault)
    };
    let harmless = plan.faults.iter().copied().filter(move |fault| {
        !of(&summary.faults, *fault) && (long || of(&summary.faults_without_effect, *fault))
    });
    [
        (figures.acquisitions == 0).then(|| "no lock was ever granted".to_owned()),
        (several && figures.handovers == 0).then(|| "no lock went from one client to another".to_owned()),
        (silent > 0).then(|| format!("{silent} of {} clients were never granted a lock", plan.clients)),
        pauses.then(|| "no holder was paused past its lease, or nobody noticed".to_owned()),
    ]
    .into_iter()
    .flatten()
    .chain(harmless.map(|fault| format!("no `{fault}` was seen to have an effect")))
}

/// What the registers that nobody guards say about the faults.
fn unguarded(figures: &Figures, pauses: bool, leases: bool) -> String {
    let lost = figures.unguarded_lost_updates;
    if lost > 0 {
        return format!(
            "The unguarded registers lost {} update{}: the faults bite, and a lock alone protects no data. \
            The guarded ones \
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
    "The unguarded registers lost nothing: the faults did not bite, and this run proves little. Let it run \
    for longer."
        .to_owned()
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
