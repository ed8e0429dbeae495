//! Holds and faults as a picture: a lane a client, time to the right.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Fault, Hold, Moment, Target};

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 90.0;
const TOP: f64 = 26.0;
const LANE: f64 = 30.0;

/// The colours, for whatever shows the picture: light, and dark where that is wanted.
pub const STYLE: &str = "\
.tl text{font:12px system-ui,sans-serif;fill:#333}.tl .small{font-size:10px;fill:#777}\
.tl .grid{stroke:#ddd;stroke-width:1}.tl .lane{fill:#f6f7f9}.tl .asks{fill:#c9ced6}\
.tl .holds{fill:#2f7ed8}.tl .stale{fill:none;stroke:#2f7ed8;stroke-dasharray:3 2}\
.tl .fault{fill:#f2a33a;fill-opacity:.35}.tl .server{fill:#9b59b6;fill-opacity:.22}\
.tl .mark{fill:#d62728;fill-opacity:.25;stroke:#d62728}.tl .token{font-size:10px;fill:#fff}\
@media(prefers-color-scheme:dark){.tl text{fill:#ddd}.tl .small{fill:#9aa}.tl .grid{stroke:#3a3f47}\
.tl .lane{fill:#23272e}.tl .asks{fill:#4b525d}.tl .holds{fill:#4f9df0}.tl .stale{stroke:#4f9df0}.tl .token{fill:#111}}";

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
        let height = TOP + LANE * f64::from(u32::try_from(lanes.len()).unwrap_or(u32::MAX)) + 34.0;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"tl\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             role=\"img\" aria-label=\"timeline\">{style}\n"
        );
        self.axis(&mut svg, height);
        for (client, top) in &lanes {
            let (y, h) = (top + 2.0, LANE - 4.0);
            let _ = writeln!(
                svg,
                "<rect class=\"lane\" x=\"{LEFT}\" y=\"{y}\" width=\"{}\" height=\"{h}\"/><text x=\"8\" y=\"{}\">client \
                 {client}</text>",
                WIDTH - LEFT - 10.0,
                top + 19.0
            );
        }
        self.draw_faults(&mut svg, &lanes, height);
        for hold in &self.holds {
            if let Some(top) = lanes.get(&hold.grant.client) {
                self.draw_hold(&mut svg, hold, *top);
            }
        }
        if let Some((from, to)) = self.mark {
            let (x, w) = self.span(from, to);
            let _ = writeln!(
                svg,
                "<rect class=\"mark\" x=\"{x:.1}\" y=\"{TOP}\" width=\"{w:.1}\" height=\"{:.1}\"/>",
                height - TOP - 34.0
            );
        }
        svg + "</svg>\n"
    }

    /// Where each client's lane begins.
    fn lanes(&self) -> BTreeMap<u32, f64> {
        let of_faults = self.shown().filter_map(|fault| match fault.target {
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
        const TICKS: u32 = 8;
        for tick in 0..=TICKS {
            let part = f64::from(tick) / f64::from(TICKS);
            let x = LEFT + part * (WIDTH - LEFT - 10.0);
            let at = self.from.plus(self.to.since(self.from).mul_f64(part));
            let anchor = if tick == TICKS { "end" } else { "middle" };
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{:.1}\"/><text class=\"small\" x=\"{x:.1}\" \
                 y=\"{:.1}\" text-anchor=\"{anchor}\">{:.3} s</text>",
                height - 30.0,
                height - 16.0,
                at.since(self.start).as_secs_f64()
            );
        }
    }

    fn draw_faults(&self, svg: &mut String, lanes: &BTreeMap<u32, f64>, height: f64) {
        for fault in self.shown() {
            let (x, w) = self.span(fault.from, fault.to.unwrap_or(self.to));
            let (class, y, h) = match &fault.target {
                Target::Client(client) => ("fault", lanes.get(client).copied().unwrap_or(TOP), LANE),
                Target::Server(_) => ("server", TOP, height - TOP - 34.0),
            };
            let words = escape(&format!("{} {}", fault.kind, fault.target));
            let _ = writeln!(
                svg,
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\"><title>{words}</title></rect>"
            );
            let label = if class == "server" { TOP - 12.0 } else { y + 10.0 };
            let _ =
                writeln!(svg, "<text class=\"small\" x=\"{:.1}\" y=\"{label:.1}\">{words}</text>", x + 2.0);
        }
    }

    fn draw_hold(&self, svg: &mut String, hold: &Hold, top: f64) {
        let gone = hold.gone.unwrap_or(hold.seen).max(hold.grant.at);
        let (y, h) = (top + 8.0, LANE - 14.0);
        let mut bar = |class: &str, from: Moment, to: Moment, y: f64, h: f64| {
            if from <= self.to && to >= self.from {
                let (x, w) = self.span(from, to);
                let _ = write!(
                    svg,
                    "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\"/>"
                );
            }
        };
        bar("asks", hold.grant.invoked, hold.grant.at, top + LANE / 2.0 - 2.0, 4.0);
        if hold.end() < gone {
            bar("stale", hold.end(), gone, y, h);
        }
        bar("holds", hold.grant.at, hold.end(), y, h);
        let (x, w) = self.span(hold.grant.at, hold.end());
        if w > 40.0 {
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

/// Text for a page or picture.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
