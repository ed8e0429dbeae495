//! What was measured of each peer, as a table and as ratios to what is ours.

use std::time::Duration;

use fencepost_measure::Crowd;
use serde_json::{Value, json};

use super::team::{Asked, Raw, Team};
use super::{OURS, Peer};
use crate::contention::CONTENDERS;
use crate::cycle::runtime;
use crate::results::{add_row, clear, progress};
use crate::rounds::{Slice, middle, report_per_second};

/// How long cycles are measured at a time.
const CYCLES: Duration = Duration::from_millis(400);

/// How many tasks go through cycles.
const TASKS: [usize; 2] = [1, 64];

/// The figures of one peer, one of each round. Those of rounds stay side by side: a ratio is one of the same
/// round.
#[derive(Default)]
struct Figures {
    name: &'static str,
    p50: [Vec<f64>; 2],
    p99: [Vec<f64>; 2],
    rate: [Vec<f64>; 2],
    apart: Vec<Crowd>,
    together: Vec<Crowd>,
    wake: Vec<Crowd>,
    failure: Option<String>,
}

pub(super) struct Table {
    store: &'static str,
    raw_is: &'static str,
    raw: Figures,
    peers: Vec<Figures>,
}

impl Table {
    /// Starts all peers, and goes round them.
    pub(super) fn measure(store: &'static str, peers: Vec<Peer>, mut raw: Raw, rounds: usize) -> Self {
        let runtime = runtime();
        progress(&format!("{store}: starting {} peers", peers.len()));
        let raw_peer = raw.token.take().map(|start| Peer { name: "raw", start });
        let all = raw_peer.iter().chain(&peers);
        // One after the other: many interpreters at once would all be late.
        let mut teams = Vec::new();
        for peer in all {
            let mut team = Team::start(&runtime, peer, CONTENDERS);
            team.ready(&runtime);
            teams.push(team);
        }
        let mut figures: Vec<_> =
            teams.iter().map(|team| Figures { name: team.name, ..Figures::default() }).collect();
        let mut bare = Figures { name: "raw", ..Figures::default() };
        for round in 1..=rounds {
            progress(&format!("{store}: cycles, round {round} of {rounds}"));
            for (place, tasks) in TASKS.into_iter().enumerate() {
                bare.add_slice(place, (raw.cycles)(tasks));
                for (team, figures) in
                    teams.iter_mut().zip(&mut figures).filter(|(team, _)| team.name != "raw")
                {
                    figures.add_cycles(place, team.cycle(&runtime, tasks, CYCLES));
                }
            }
        }
        for round in 1..=rounds.div_ceil(2) {
            for (team, figures) in teams.iter_mut().zip(&mut figures) {
                progress(&format!("{store}: {}, eight contenders and two, round {round}", team.name));
                figures.apart.extend(team.apart(&runtime));
                if team.name != "raw" {
                    figures.together.extend(team.together(&runtime));
                }
                let turns = tempfile::NamedTempFile::new().expect("a temporary file");
                figures.wake.extend(team.wake(&runtime, turns.path()));
            }
        }
        for (team, figures) in teams.into_iter().zip(&mut figures) {
            figures.failure = team.failure;
        }
        if raw_peer.is_some() {
            let Figures { apart, wake, failure, .. } = figures.remove(0);
            bare = Figures { apart, wake, failure, ..bare };
        }
        Self { store, raw_is: raw.what, raw: bare, peers: figures }
    }

    fn find(&self, name: &str) -> Option<&Figures> {
        self.peers.iter().find(|figures| figures.name == name)
    }

    /// Our rate by a peer's, with so many tasks.
    pub(super) fn compare_rates(&self, what: &str, goal: Option<f64>, peer: &str, tasks: usize) {
        let place = TASKS.iter().position(|count| *count == tasks).unwrap_or(0);
        self.compare(what, goal, peer, |figures| figures.rate[place].clone());
    }

    /// Our hand-overs between eight processes by a peer's.
    pub(super) fn compare_handovers(&self, what: &str, goal: Option<f64>, peer: &str) {
        self.compare(what, goal, peer, |figures| figures.apart.iter().map(|crowd| crowd.handovers).collect());
    }

    fn compare(&self, what: &str, goal: Option<f64>, peer: &str, of: impl Fn(&Figures) -> Vec<f64>) {
        let [ours, theirs] = [OURS, peer].map(|name| self.find(name).map(&of).unwrap_or_default());
        let pairs: Vec<_> = ours.into_iter().zip(theirs).collect();
        if pairs.is_empty() {
            clear();
            return println!("{what}: not measured; {peer} did not answer");
        }
        report_per_second(what, goal, &pairs);
    }

    /// Prints and keeps a row for each.
    pub(super) fn report(&self) {
        clear();
        println!(
            "\n{:<20} {:>9} {:>9} {:>7} {:>9} {:>9} | {:>9} {:>9} {:>7} {:>7} | {:>9} {:>9}   {}",
            self.store,
            "p50 us",
            "p99 us",
            "of raw",
            "per s",
            "64 tasks",
            "8 procs/s",
            "1 proc/s",
            "back %",
            "unfair",
            "wake ms",
            "p99 ms",
            "raw limit: ".to_owned() + self.raw_is
        );
        for figures in std::iter::once(&self.raw).chain(&self.peers) {
            let row = figures.row(self.store, &self.raw);
            let cell = |field: &str| match row[field].as_f64() {
                Some(figure) if figure >= 100.0 => format!("{figure:.0}"),
                Some(figure) => format!("{figure:.2}"),
                None => "-".to_owned(),
            };
            println!(
                "{:<20} {:>9} {:>9} {:>7} {:>9} {:>9} | {:>9} {:>9} {:>7} {:>7} | {:>9} {:>9}   {}",
                figures.name,
                cell("p50_us"),
                cell("p99_us"),
                cell("of_raw"),
                cell("per_s"),
                cell("per_s_64"),
                cell("handovers_apart"),
                cell("handovers_together"),
                cell("taken_back_percent"),
                cell("unfairness"),
                cell("wake_p50_ms"),
                cell("wake_p99_ms"),
                row["note"].as_str().unwrap_or_default()
            );
            add_row(row);
        }
        println!();
    }
}

impl Figures {
    fn add_slice(&mut self, place: usize, slice: Option<Slice>) {
        let Some(slice) = slice else { return };
        let rate = slice.rate();
        let times = fencepost_measure::Times::new(slice.times, slice.took);
        self.p50[place].push(times.microseconds(50));
        self.p99[place].push(times.microseconds(99));
        self.rate[place].push(rate);
    }

    fn add_cycles(&mut self, place: usize, answer: Asked<Value>) {
        let Ok(answer) = answer else { return };
        let [p50, p99, rate] = ["p50_us", "p99_us", "per_s"].map(|field| answer[field].as_f64());
        self.p50[place].extend(p50);
        self.p99[place].extend(p99);
        self.rate[place].extend(rate);
    }

    fn row(&self, store: &str, raw: &Self) -> Value {
        let known = |numbers: Vec<f64>| Some(middle(numbers)).filter(|number| number.is_finite());
        let of = |crowds: &[Crowd], of: fn(&Crowd) -> f64| known(crowds.iter().map(of).collect());
        let of_raw = self.p50[0].iter().zip(&raw.p50[0]).map(|(ours, raw)| ours / raw).collect();
        let overlaps: usize =
            self.apart.iter().chain(&self.together).chain(&self.wake).map(|crowd| crowd.overlaps).sum();
        let mut notes: Vec<_> = self.failure.clone().into_iter().collect();
        if overlaps > 0 {
            notes.push(format!("two held it at once {overlaps} times"));
        }
        json!({
            "store": store,
            "peer": self.name,
            "p50_us": known(self.p50[0].clone()),
            "p99_us": known(self.p99[0].clone()),
            "of_raw": known(of_raw),
            "per_s": known(self.rate[0].clone()),
            "per_s_64": known(self.rate[1].clone()),
            "handovers_apart": of(&self.apart, |crowd| crowd.handovers),
            "unfairness": of(&self.apart, |crowd| crowd.unfairness),
            "taken_back_percent": of(&self.apart, |crowd| crowd.taken_back * 100.0),
            "handovers_together": of(&self.together, |crowd| crowd.handovers),
            "wake_p50_ms": of(&self.wake, |crowd| crowd.gaps.microseconds(50) / 1e3),
            "wake_p99_ms": of(&self.wake, |crowd| crowd.gaps.microseconds(99) / 1e3),
            "note": notes.join("; "),
        })
    }
}
