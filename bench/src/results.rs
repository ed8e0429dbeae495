//! What was measured, for programs (JSON) and as a picture (SVG).

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

/// One line of the table.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) what: String,
    /// The figure, or the median of the ratios.
    pub(crate) figure: f64,
    /// The smallest and the largest ratio.
    pub(crate) range: Option<(f64, f64)>,
    pub(crate) detail: String,
    pub(crate) goal: Option<Goal>,
}

/// What the figure should be.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

impl Goal {
    fn is_met(self, figure: f64) -> bool {
        match self {
            Self::AtMost(goal) => figure <= goal,
            Self::AtLeast(goal) => figure >= goal,
        }
    }

    fn number(self) -> f64 {
        let (Self::AtMost(goal) | Self::AtLeast(goal)) = self;
        goal
    }
}

impl std::fmt::Display for Goal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtMost(goal) => write!(f, "at most {goal}"),
            Self::AtLeast(goal) => write!(f, "at least {goal}"),
        }
    }
}

static ENTRIES: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// Prints a line and keeps it.
pub(crate) fn add(entry: Entry) {
    let Entry { what, figure, range, detail, goal } = &entry;
    let range = range.map(|(low, high)| format!("   ({low:.2} to {high:.2})")).unwrap_or_default();
    let goal = goal
        .map(|goal| format!("   goal: {goal}{}", if goal.is_met(*figure) { "" } else { ": NOT MET" }))
        .unwrap_or_default();
    println!("{what:<48} {figure:>5.2}{range}   {detail}{goal}");
    ENTRIES.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
}

/// Writes `latest.json` and `latest.svg` into a folder.
pub(crate) fn write(folder: &Path, rounds: usize) -> std::io::Result<[PathBuf; 2]> {
    let entries = ENTRIES.lock().unwrap_or_else(PoisonError::into_inner).clone();
    fs::create_dir_all(folder)?;
    let files = ["latest.json", "latest.svg"].map(|name| folder.join(name));
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let all = json!({
        "rounds": rounds,
        "cores": cores,
        "results": entries.iter().map(value).collect::<Vec<_>>(),
    });
    fs::write(&files[0], format!("{all:#}\n"))?;
    fs::write(&files[1], picture(&entries))?;
    Ok(files)
}

fn value(entry: &Entry) -> Value {
    json!({
        "what": entry.what,
        "figure": entry.figure,
        "low": entry.range.map(|(low, _)| low),
        "high": entry.range.map(|(_, high)| high),
        "detail": entry.detail,
        "goal": entry.goal.map(|goal| goal.to_string()),
        "met": entry.goal.map(|goal| goal.is_met(entry.figure)),
    })
}

/// A bar for each figure that has a goal, as a share of the goal: left of the line is less than the goal, right of it more.
fn picture(entries: &[Entry]) -> String {
    const ROW: usize = 22;
    const LEFT: f64 = 400.0;
    const UNIT: f64 = 180.0;
    const WIDTH: f64 = 900.0;
    let rows: Vec<_> = entries.iter().filter_map(|entry| Some((entry, entry.goal?))).collect();
    let height = (rows.len() + 2) * ROW;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{}\" y=\"15\" text-anchor=\"middle\">goal</text>\n",
        LEFT + UNIT
    );
    for (index, (entry, goal)) in rows.iter().enumerate() {
        let y = (index + 1) * ROW;
        let share = if goal.number() == 0.0 { entry.figure + 1.0 } else { entry.figure / goal.number() };
        let length = (share * UNIT).clamp(0.0, WIDTH - LEFT - 120.0);
        let colour = if goal.is_met(entry.figure) { "#4a8f5c" } else { "#c0504d" };
        let _ = writeln!(
            out,
            "<text x=\"{:.0}\" y=\"{}\" text-anchor=\"end\">{}</text><rect x=\"{LEFT}\" y=\"{}\" width=\"{length:.1}\" height=\"14\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"{}\">{:.2} ({goal})</text>",
            LEFT - 8.0,
            y + 12,
            escaped(&entry.what),
            y + 1,
            (LEFT + length + 6.0).max(LEFT + UNIT + 6.0),
            y + 12,
            entry.figure,
        );
    }
    let _ = writeln!(
        out,
        "<line x1=\"{0}\" x2=\"{0}\" y1=\"20\" y2=\"{1}\" stroke=\"black\" stroke-dasharray=\"3 3\"/>\n</svg>",
        LEFT + UNIT,
        height - ROW
    );
    out
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
