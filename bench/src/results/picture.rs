//! A bar for each figure that has a goal, as a share of the goal: left of the line is less than the goal,
//! right of it more.

use std::fmt::Write as _;

use super::Entry;

const ROW: usize = 22;
const LEFT: f64 = 400.0;
const UNIT: f64 = 180.0;
const WIDTH: f64 = 900.0;

pub(super) fn draw(entries: &[Entry]) -> String {
    let rows: Vec<_> = entries.iter().filter_map(|entry| Some((entry, entry.goal?))).collect();
    let height = (rows.len() + 2) * ROW;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
        font-family=\"sans-serif\" font-size=\"12\">\n\
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
            "<text x=\"{:.0}\" y=\"{}\" text-anchor=\"end\">{}</text><rect x=\"{LEFT}\" y=\"{}\" \
            width=\"{length:.1}\" height=\"14\" fill=\"{colour}\"/>\
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
        "<line x1=\"{0}\" x2=\"{0}\" y1=\"20\" y2=\"{1}\" stroke=\"black\" stroke-dasharray=\"3 \
        3\"/>\n</svg>",
        LEFT + UNIT,
        height - ROW
    );
    out
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
