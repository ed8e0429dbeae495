//! What was measured: a table on stdout as it comes, and for each part a file for programs (JSON) and a
//! picture (SVG).

mod picture;

use std::fs;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
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

/// What the part that runs has measured.
static ENTRIES: Mutex<Vec<Entry>> = Mutex::new(Vec::new());
/// Rows of a table that has more columns, as the part makes them.
static ROWS: Mutex<Vec<Value>> = Mutex::new(Vec::new());

fn all<T: Clone>(list: &Mutex<Vec<T>>) -> std::sync::MutexGuard<'_, Vec<T>> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints a line and keeps it.
pub(crate) fn add(entry: Entry) {
    let Entry { what, figure, range, detail, goal } = &entry;
    let range = range.map(|(low, high)| format!("   ({low:.2} to {high:.2})")).unwrap_or_default();
    let met = |goal: Goal| if goal.is_met(*figure) { "met" } else { "NOT MET" };
    let goal = goal.map(|goal| format!("   goal: {goal}: {}", met(goal))).unwrap_or_default();
    clear();
    println!("{what:<48} {figure:>5.2}{range}   {detail}{goal}");
    all(&ENTRIES).push(entry);
}

/// Keeps a row.
pub(crate) fn add_row(row: Value) {
    all(&ROWS).push(row);
}

/// Says what is being measured, to who sits and waits: over one line of a terminal, or a line each.
pub(crate) fn progress(what: &str) {
    clear();
    let mut err = std::io::stderr().lock();
    let _ =
        if err.is_terminal() { write!(err, "measuring: {what}") } else { writeln!(err, "measuring: {what}") };
    let _ = err.flush();
}

/// Takes the progress off the terminal before something else is written.
pub(crate) fn clear() {
    let mut err = std::io::stderr().lock();
    if err.is_terminal() {
        let _ = write!(err, "\r\x1b[K");
        let _ = err.flush();
    }
}

/// How busy the machine is, as the kernel tells it: of one minute.
pub(crate) fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(f64::NAN)
}

/// Writes what was measured since the last time as `PART.json` and, if there are goals, `PART.svg`.
pub(crate) fn write(folder: &Path, part: &str, rounds: usize, load_before: f64) -> std::io::Result<()> {
    clear();
    let entries = std::mem::take(&mut *all(&ENTRIES));
    let rows = std::mem::take(&mut *all(&ROWS));
    fs::create_dir_all(folder)?;
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let file = json!({
        "part": part,
        "ended": time.as_secs(),
        "rounds": rounds,
        "cores": cores,
        "load": [load_before, load()],
        "results": entries.iter().map(value).collect::<Vec<_>>(),
        "rows": rows,
    });
    fs::write(folder.join(format!("{part}.json")), format!("{file:#}\n"))?;
    if entries.iter().any(|entry| entry.goal.is_some()) {
        fs::write(folder.join(format!("{part}.svg")), picture::draw(&entries))?;
    }
    Ok(())
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
