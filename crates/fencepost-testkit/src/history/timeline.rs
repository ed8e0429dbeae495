//! Holds and faults as a picture: a lane a client, time to the right.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

use super::{Fault, Hold, Moment, Target};

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 90.0;
const TOP: f64 = 26.0;
const LANE: f64 = 36.0;
/// Below the lanes: the axis and its labels.
const FOOT: f64 = 34.0;
/// How near to each other short holds are told apart.
const CROWD: f64 = 2.5;

/// The colours, for whatever shows the picture: light, and dark where that is wanted.
pub const STYLE: &str = "\
.tl text{font:12px system-ui,sans-serif;fill:#333}.tl .small{font-size:10px;fill:#777}\
.tl .grid{stroke:#ddd;stroke-width:1}.tl .lane{fill:#f6f7f9}.tl .asks{fill:#c9ced6}\
.tl .holds{fill:#2f7ed8}.tl .stale{fill:none;stroke:#2f7ed8;stroke-dasharray:3 2}\
.tl .fault{fill:#f2a33a;fill-opacity:.35}.tl .server{fill:#9b59b6;fill-opacity:.22}\
.tl .mark{fill:#d62728;fill-opacity:.25;stroke:#d62728}.tl .token{font-size:10px;fill:#fff}\
@media(prefers-color-scheme:dark){.tl text{fill:#ddd}.tl .small{fill:#9aa}.tl .grid{stroke:#3a3f47}\
.tl .lane{fill:#23272e}.tl .asks{fill:#4b525d}.tl .holds{fill:#4f9df0}.tl .stale{stroke:#4f9df0}.tl \
.token{fill:#111}}";

/// A stretch of a history.
#[derive(Clone, Debug)]
pub struct Timeline<'a> {
    /// The holds to show.
    pub holds: Vec<Hold>,
    /// The faults to show, where they touch the stretch.
    pub faults: &'a [Fault],
    /// Where the stretch begins.
    pub from: Moment,
    /// Where it ends.
    pub to: Moment,
    /// A time to mark: in which something was wrong.
    pub mark: Option<(Moment, Moment)>,
    /// When the history began, from which the axis counts.
    pub start: Moment,
}

impl Timeline<'_> {
    /// The picture as a document of its own.
    pub fn svg(&self) -> String {
        self.draw(&format!("<style>{STYLE}svg{{background:#fff}}</style>"))
    }

    /// The picture for a page that has the [`STYLE`] already.
    pub fn inline(&self) -> String {
        self.draw("")
    }

    fn draw(&self, style: &str) -> String {
        let lanes = self.lanes();
        let height = TOP + LANE * f64::from(u32::try_from(lanes.len()).unwrap_or(u32::MAX)) + FOOT;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"tl\" viewBox=\"0 0 {WIDTH} {height}\" \
            width=\"{WIDTH}\" \
             role=\"img\" aria-label=\"timeline\">{style}\n"
        );
        self.axis(&mut svg, height);
        for (client, top) in &lanes {
            let (y, h) = (top + 2.0, LANE - 4.0);
            let _ = writeln!(
                svg,
                "<rect class=\"lane\" x=\"{LEFT}\" y=\"{y}\" width=\"{}\" height=\"{h}\"/><text x=\"8\" \
                y=\"{}\">client \
                 {client}</text>",
                WIDTH - LEFT - 10.0,
                top + 22.0
            );
        }
        self.draw_faults(&mut svg, &lanes, height);
        let mut crowded = HashSet::new();
        for hold in &self.holds {
            let (x, w) = self.span(hold.grant.at, hold.gone.unwrap_or(hold.seen));
            // Of many short ones side by side, a few are enough to see that there are many.
            #[allow(clippy::cast_possible_truncation)]
            let drawn = w <= CROWD && !crowded.insert((hold.grant.client, (x / CROWD) as i64));
            if let Some(top) = lanes.get(&hold.grant.client).filter(|_| !drawn) {
                self.draw_hold(&mut svg, hold, *top);
            }
        }
        if let Some((from, to)) = self.mark {
            let (x, w) = self.span(from, to);
            let _ = writeln!(
                svg,
                "<rect class=\"mark\" x=\"{x:.1}\" y=\"{TOP}\" width=\"{w:.1}\" height=\"{:.1}\"/>",
                height - TOP - FOOT
            );
        }
        svg + "</svg>\n"
    }

    /// Where each client's lane begins.
    fn lanes(&self) -> BTreeMap<u32, f64> {
        // A piece that shows what is wrong shows nobody else.
        let of_faults = self.shown().filter(|_| self.mark.is_none()).filter_map(|fault| match fault.target {
            Target::Client(client) => Some(client),
            Target::Server(_) => None,
        });
        let mut lanes: BTreeMap<u32, f64> = self
            .holds
            .iter()
            .map(|hold| hold.grant.client)
            .chain(of_faults)
            .map(|client| (client, 0.0))
            .collect();
        for (number, top) in lanes.values_mut().enumerate() {
            *top = TOP + LANE * f64::from(u32::try_from(number).unwrap_or(u32::MAX));
        }
        lanes
    }

    fn shown(&self) -> impl Iterator<Item = &Fault> {
        self.faults.iter().filter(|fault| fault.touches(self.from, self.to))
    }

    fn axis(&self, svg: &mut String, height: f64) {
        let (from, to) = (self.from.since(self.start).as_secs_f64(), self.to.since(self.start).as_secs_f64());
        for (seconds, label) in ticks(from, to) {
            let x = LEFT + (seconds - from) / (to - from).max(1e-9) * (WIDTH - LEFT - 10.0);
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{:.1}\"/><text \
                class=\"small\" x=\"{x:.1}\" \
                 y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
                height - 30.0,
                height - 16.0
            );
        }
    }

    fn draw_faults(&self, svg: &mut String, lanes: &BTreeMap<u32, f64>, height: f64) {
        for fault in self.shown() {
            let (x, w) = self.span(fault.from, fault.to.unwrap_or(self.to));
            let (class, y, h) = match &fault.target {
                Target::Server(_) => ("server", TOP, height - TOP - FOOT),
                Target::Client(client) => match lanes.get(client) {
                    Some(top) => ("fault", *top, LANE),
                    None => continue,
                },
            };
            let words = escape(&format!("{}: {}", fault.kind, fault.target));
            let _ = writeln!(
                svg,
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" \
                height=\"{h:.1}\"><title>{words}</title></rect>"
            );
            // In a lane of its own, the target needs no name.
            let (label, y) =
                if class == "server" { (words, TOP - 12.0) } else { (escape(&fault.kind), y + 11.0) };
            let (x, anchor) = if x > WIDTH * 0.85 { (x + w, "end") } else { (x + 2.0, "start") };
            let _ = writeln!(
                svg,
                "<text class=\"small\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{label}</text>"
            );
        }
    }

    fn draw_hold(&self, svg: &mut String, hold: &Hold, top: f64) {
        let gone = hold.gone.unwrap_or(hold.seen).max(hold.grant.at);
        let (y, h) = (top + 14.0, LANE - 20.0);
        let mut bar = |class: &str, from: Moment, to: Moment, y: f64, h: f64| {
            if from <= self.to && to >= self.from {
                let (x, w) = self.span(from, to);
                let _ = write!(
                    svg,
                    "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\"/>"
                );
            }
        };
        bar("asks", hold.grant.invoked, hold.grant.at, y + h / 2.0 - 2.0, 4.0);
        if hold.end() < gone {
            bar("stale", hold.end(), gone, y, h);
        }
        bar("holds", hold.grant.at, hold.end(), y, h);
        let (x, w) = self.span(hold.grant.at, hold.end());
        if w > 46.0 {
            // The last digits tell tokens apart.
            let token = hold.grant.token.to_string();
            let token = &token[token.len().saturating_sub(6)..];
            let _ = write!(
                svg,
                "<text class=\"token\" x=\"{:.1}\" y=\"{:.1}\">{token}</text>",
                x + 3.0,
                y + h - 4.0
            );
        }
        svg.push('\n');
    }

    /// Left edge and width of a time, cut to the stretch; never thinner than a line.
    fn span(&self, from: Moment, to: Moment) -> (f64, f64) {
        let whole = self.to.since(self.from).as_secs_f64().max(1e-9);
        let scale = (WIDTH - LEFT - 10.0) / whole;
        let place =
            |moment: Moment| LEFT + moment.clamp(self.from, self.to).since(self.from).as_secs_f64() * scale;
        (place(from), (place(to) - place(from)).max(1.0))
    }
}

/// Round numbers of seconds between two, ten or so, with what to write beside them.
pub fn ticks(from: f64, to: f64) -> Vec<(f64, String)> {
    let rough = ((to - from) / 10.0).max(1e-9);
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .map(|part| part * power)
        .into_iter()
        .find(|step| *step >= rough)
        .unwrap_or(rough);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let decimals = (-step.log10().floor()).max(0.0) as usize;
    let first = (from / step).ceil();
    let places = (0..20).map(|number| (first + f64::from(number)) * step).take_while(|place| *place <= to);
    places.map(|place| (place, format!("{place:.decimals$} s"))).collect()
}

/// Text for a page or picture.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_round_numbers() {
        let labels = |from, to| ticks(from, to).into_iter().map(|(_, label)| label).collect::<Vec<_>>();
        assert_eq!(labels(0.0, 15.0), ["0 s", "2 s", "4 s", "6 s", "8 s", "10 s", "12 s", "14 s"]);
        assert_eq!(
            labels(3.08, 3.52),
            ["3.10 s", "3.15 s", "3.20 s", "3.25 s", "3.30 s", "3.35 s", "3.40 s", "3.45 s", "3.50 s"]
        );
    }
}
