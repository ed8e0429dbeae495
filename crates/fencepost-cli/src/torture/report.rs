//! The report: one page without anything from elsewhere, light and dark.

use std::fmt::Write as _;

use fencepost_testkit::history::{Fault, STYLE, Target, Violation, escape, ticks};

use super::{Collector, Summary, Verdict};

/// How many violations of each sort are drawn.
const DRAWN: usize = 10;
const WIDTH: f64 = 1000.0;
const LEFT: f64 = 110.0;
const CHART: f64 = 150.0;
const ROW: f64 = 20.0;

const PAGE: &str = "\
:root{color-scheme:light \
dark;--bg:#fff;--fg:#1c1f24;--soft:#667;--card:#f6f7f9;--line:#e3e5e9;--good:#1a7f37;--bad:#c62828;\
--doubt:#9a6700}\
@media(prefers-color-scheme:dark){:root{--bg:#16181c;--fg:#e4e6ea;--soft:#9aa3af;--card:#1f2329;\
--line:#333941;--good:#4cc46a;--bad:#ff6b60;--doubt:#e3b341}}\
body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;max-width:1040px;margin:2.5em \
auto;padding:0 1em}\
h1{font-size:1.5em;margin:0}h2{font-size:1.1em;margin:2.4em 0 .4em}p{max-width:75ch}.soft{color:var(--soft)}\
.verdict{font-size:1.25em;font-weight:600;margin:.3em 0 \
1em}.good{color:var(--good)}.bad{color:var(--bad)}.doubt{color:var(--doubt)}\
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px}\
.tile{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px}.tile \
b{display:block;font-size:1.35em}\
figure{margin:1em 0;border:1px solid \
var(--line);border-radius:8px;padding:10px;overflow-x:auto}figcaption{color:var(--soft);margin-bottom:6px}\
svg{max-width:100%;height:auto}table{border-collapse:collapse}td,th{text-align:left;vertical-align:top;\
padding:4px 18px 4px 0;border-bottom:1px solid var(--line)}\
th{font-weight:600;white-space:nowrap}pre{background:var(--card);padding:10px;border-radius:8px;\
white-space:pre-wrap}";

const CHART_STYLE: &str = "\
.ov text{font:12px system-ui,sans-serif;fill:#555}.ov .grid{stroke:#ddd}.ov .bar{fill:#2f7ed8}.ov \
.lost{fill:#f2a33a}\
.ov .client{fill:#f2a33a}.ov .server{fill:#9b59b6}.ov .bad{fill:#d62728}\
@media(prefers-color-scheme:dark){.ov text{fill:#aab}.ov .grid{stroke:#3a3f47}.ov .bar{fill:#4f9df0}}";

/// The page.
pub(crate) fn page(summary: &Summary, collector: &Collector, violations: &[Violation]) -> String {
    let class = match summary.outcome {
        Verdict::Clean => "good",
        Verdict::Violated => "bad",
        Verdict::Inconclusive => "doubt",
    };
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
        content=\"width=device-width\">\
         <title>fencepost torture: {store}</title><style>{PAGE}{STYLE}{CHART_STYLE}</style>\n<h1>fencepost \
         torture</h1>\
         <p class=\"soft\">{store}</p>\n<p class=\"verdict {class}\">{verdict}</p>\n",
        store = escape(&summary.store),
        verdict = escape(&summary.verdict())
    );
    tiles(&mut page, summary);
    for note in summary.notes.iter().chain([&summary.unguarded]) {
        let _ = writeln!(page, "<p>{}</p>", escape(note));
    }
    let mut guilty: Vec<_> = violations.iter().filter(|violation| violation.excused.is_none()).collect();
    guilty.sort_by_key(|violation| violation.rule);
    let excused: Vec<_> = violations.iter().filter(|violation| violation.excused.is_some()).collect();
    zooms(&mut page, "Violations", &guilty, collector);
    let _ = writeln!(
        page,
        "<h2>The run</h2><figure><figcaption>Locks granted and lost, a bar for each {:.1} s; below, the \
        faults as they were \
         dealt.</figcaption>{}</figure>",
        collector.window().as_secs_f64(),
        overview(collector, violations)
    );
    if !collector.exhibits.is_empty() {
        page.push_str(
            "<h2>A close look</h2><p class=\"soft\">One fault of each kind, on the lock that it hit. Thin \
            grey: waits for the lock. \
             Blue: holds it, with the end of its token; dashed: the client goes on although its guard has \
             ended. Shaded: the fault.</p>\n",
        );
        for exhibit in collector.exhibits.values() {
            let _ = writeln!(
                page,
                "<figure><figcaption>{}</figcaption>{}</figure>",
                escape(&exhibit.title),
                exhibit.picture
            );
        }
    }
    zooms(&mut page, "Legitimate: explained by the faults dealt", &excused, collector);
    page.push_str("<h2>Figures</h2><table>\n");
    for (name, value) in summary.rows() {
        let _ = writeln!(page, "<tr><th>{name}</th><td>{}</td></tr>", escape(&value));
    }
    page.push_str("</table>\n");
    page.push_str(WHAT);
    page
}

const WHAT: &str = "<h2>What was checked</h2><p>Each client is a process that takes locks, and for each says \
when it asked, when it \
was granted which token, and until when its guard said that it is valid, by a clock that all processes \
share. No two such times of one \
lock may overlap. No guard may say that it is held after its own end, and none may be lost before it unless \
something was broken. No token may \
come twice; each must be larger than all that were granted before it was asked for, and than those of \
whoever held the lock before. Beside each \
lock stand two registers that holders read and write without asking their guard: one that refuses a smaller \
token than it has \
seen, which must lose no update and refuse no valid holder, and one that trusts everybody, which loses some \
whenever a holder is paused past its \
lease. Answers must come in time, clients must end when told to, and at the end nothing of the run may be \
left in the store and every \
lock must be there to be had. A fault counts if it was seen to have an effect.</p></html>\n";

fn tiles(page: &mut String, summary: &Summary) {
    use super::summary::grouped;
    let figures = &summary.figures;
    let total = |count: u64| grouped(count);
    let faults = summary.faults.values().sum::<usize>() as u64;
    let tiles = [
        (total(figures.acquisitions), "locks granted"),
        (total(figures.handovers), "hand-overs"),
        (total(faults), "faults that bit"),
        (total(figures.losses.values().sum()), "locks lost by holders"),
        (total(figures.guarded_refusals), "stale requests refused"),
        (total(figures.unguarded_lost_updates), "updates lost unguarded"),
    ];
    page.push_str("<div class=\"tiles\">");
    for (number, what) in tiles {
        let _ = write!(page, "<div class=\"tile\"><b>{number}</b>{what}</div>");
    }
    page.push_str("</div>\n");
}

fn zooms(page: &mut String, title: &str, violations: &[&Violation], collector: &Collector) {
    if violations.is_empty() {
        return;
    }
    let _ = writeln!(page, "<h2>{title}</h2>");
    for violation in violations.iter().take(DRAWN) {
        let picture = if violation.holds.is_empty() {
            String::new()
        } else {
            violation.timeline(&collector.faults).inline()
        };
        let _ = writeln!(page, "<figure><pre>{}</pre>{picture}</figure>", escape(&violation.to_string()));
    }
    if violations.len() > DRAWN {
        let _ = writeln!(page, "<p class=\"soft\">And {} more.</p>", violations.len() - DRAWN);
    }
}

/// The whole run: bars of what was granted and lost, and a row of marks for each kind of fault.
fn overview(collector: &Collector, violations: &[Violation]) -> String {
    let mut kinds: Vec<&str> = collector.faults.iter().map(|fault| fault.kind.as_str()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let rows = f64::from(u32::try_from(kinds.len() + 1).unwrap_or(1));
    let height = CHART + rows * ROW + 50.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"ov\" viewBox=\"0 0 {WIDTH} {height}\" \
        width=\"{WIDTH}\" role=\"img\" \
         aria-label=\"the run\">\n"
    );
    let count = f64::from(u32::try_from(collector.windows.len().max(1)).unwrap_or(u32::MAX));
    let whole = collector.window().as_secs_f64() * count;
    let scale = (WIDTH - LEFT - 10.0) / whole;
    bars(&mut svg, collector, scale);
    let base = CHART + 30.0;
    for (row, kind) in kinds.iter().enumerate() {
        let y = base + f64::from(u32::try_from(row).unwrap_or(0)) * ROW;
        let _ = writeln!(svg, "<text x=\"4\" y=\"{:.1}\">{}</text>", y + 12.0, escape(kind));
        for fault in collector.faults.iter().filter(|fault| fault.kind == *kind) {
            mark(&mut svg, collector, fault, y, scale, whole);
        }
    }
    let y = base + (rows - 1.0) * ROW;
    let _ = writeln!(svg, "<text x=\"4\" y=\"{:.1}\">violations</text>", y + 12.0);
    for violation in violations.iter().filter(|violation| violation.excused.is_none()) {
        let x = LEFT + violation.from.since(collector.start).as_secs_f64() * scale;
        let _ = writeln!(svg, "<circle class=\"bad\" cx=\"{x:.1}\" cy=\"{:.1}\" r=\"4\"/>", y + 8.0);
    }
    for (seconds, label) in ticks(0.0, whole) {
        let (x, y) = (LEFT + seconds * scale, height - 6.0);
        let anchor = if x > WIDTH - 25.0 { "end" } else { "middle" };
        let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{label}</text>");
    }
    svg + "</svg>"
}

fn bars(svg: &mut String, collector: &Collector, scale: f64) {
    let number = |count: u64| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    let most = collector.windows.iter().map(|window| window.acquisitions).max().unwrap_or(0).max(1);
    let width = collector.window().as_secs_f64() * scale;
    for half in 0..=2u32 {
        let y = 10.0 + CHART * (1.0 - f64::from(half) / 2.0);
        let rate = number(most) * f64::from(half) / 2.0 / collector.window().as_secs_f64();
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.0}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text x=\"{:.0}\" \
            y=\"{:.1}\" \
             text-anchor=\"end\">{rate:.0}/s</text>",
            WIDTH - 10.0,
            LEFT - 6.0,
            y + 4.0
        );
    }
    for (index, window) in collector.windows.iter().enumerate() {
        let x = LEFT + f64::from(u32::try_from(index).unwrap_or(u32::MAX)) * width;
        let h = CHART * number(window.acquisitions) / number(most);
        let wait = window.longest_wait.as_secs_f64() * 1e3;
        let _ = writeln!(
            svg,
            "<rect class=\"bar\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{h:.1}\"><title>{} \
            granted, {} lost, longest wait \
             {wait:.0} ms</title></rect>",
            10.0 + CHART - h,
            (width - 1.0).max(0.5),
            window.acquisitions,
            window.losses
        );
        if window.losses > 0 {
            let r = 1.5 + number(window.losses).min(9.0).sqrt();
            let _ = writeln!(
                svg,
                "<circle class=\"lost\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"{r:.1}\"/>",
                x + width / 2.0,
                CHART + 18.0
            );
        }
    }
    let _ = writeln!(svg, "<text x=\"4\" y=\"{:.1}\">locks lost</text>", CHART + 22.0);
}

fn mark(svg: &mut String, collector: &Collector, fault: &Fault, y: f64, scale: f64, whole: f64) {
    let from = fault.from.since(collector.start).as_secs_f64();
    let to = fault.to.map_or(whole, |to| to.since(collector.start).as_secs_f64()).min(whole);
    let class = if matches!(fault.target, Target::Server(_)) { "server" } else { "client" };
    let _ = writeln!(
        svg,
        "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" \
        height=\"10\"><title>{}</title></rect>",
        LEFT + from * scale,
        y + 3.0,
        ((to - from) * scale).max(2.0),
        escape(&format!(
            "{} of {} at {from:.1} s, for {:.2} s",
            fault.kind,
            fault.target,
            (to - from).max(0.0)
        ))
    );
}
