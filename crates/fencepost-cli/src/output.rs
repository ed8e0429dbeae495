//! What people and programs read: results on stdout, everything else on stderr, JSON where asked for.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use fencepost::{Holder, Name, NodeView, format_duration, is_unfit};
use serde::Serialize;
use serde_json::json;

use crate::args::Global;
use crate::exit::{Failure, system};

/// How to talk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Console {
    pub(crate) json: bool,
    quiet: bool,
}

impl Console {
    pub(crate) fn new(global: &Global) -> Self {
        Self { json: global.json, quiet: global.quiet }
    }

    /// For errors that come before the arguments are known.
    pub(crate) fn plain_json() -> Self {
        Self { json: true, quiet: true }
    }

    /// Prints a result: JSON if asked for, else text.
    pub(crate) fn result(&self, json: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Failure> {
        let mut out = if self.json { to_json(json).map_err(system("writing JSON"))? } else { text() };
        if out.is_empty() {
            return Ok(());
        }
        if !out.ends_with('\n') {
            out.push('\n');
        }
        let mut stdout = io::stdout().lock();
        stdout.write_all(out.as_bytes()).and_then(|()| stdout.flush()).map_err(system("writing to stdout"))
    }

    /// Says something that nobody has to read.
    pub(crate) fn note(&self, text: &str) {
        if self.is_chatty() {
            tell(&format!("fencepost: {}", one_line(text)));
        }
    }

    /// Says for how long a lock has been waited for.
    pub(crate) fn waiting(&self, name: &Name, waited: Duration, holder: Option<&Holder>, text: &str) {
        if !self.json || self.quiet {
            return self.note(text);
        }
        let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        let json =
            json!({ "waiting": name.as_str(), "waited_ms": waited_ms, "holder": holder, "message": text });
        let _ = to_json(&json).map(|json| tell(&json));
    }

    /// Clears the terminal for a list that is printed anew.
    pub(crate) fn clear(&self) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(b"\x1b[H\x1b[2J").map_err(system("writing to stdout"))
    }

    /// Whether people may read along.
    pub(crate) fn is_chatty(&self) -> bool {
        !self.quiet && !self.json
    }

    /// Whether a line on stderr can be written over.
    pub(crate) fn has_live_line(&self) -> bool {
        self.is_chatty() && io::stderr().is_terminal()
    }

    /// Says what went wrong and what to do next.
    pub(crate) fn fail(&self, failure: &Failure) {
        let Some(report) = failure.report() else { return };
        if self.json {
            return tell(&to_json(&report).unwrap_or_else(|_| r#"{"error":"system"}"#.to_owned()));
        }
        let next = failure.next_step().map(|next| format!("\n  next: {}", one_line(&next)));
        tell(&format!("fencepost: {}{}", one_line(&report.message), next.unwrap_or_default()));
    }
}

/// Writes lines to stderr in one call: several processes may share it.
fn tell(lines: &str) {
    let _ = io::stderr().write_all(format!("{lines}\n").as_bytes());
}

/// A text that others may have had a hand in, as one line that no terminal takes for commands: neither
/// control characters, nor those that change the direction of what follows or cannot be seen.
pub(crate) fn one_line(text: &str) -> Cow<'_, str> {
    fencepost::printable(text)
}

/// Text from others, fit for a terminal.
pub(crate) fn shown(text: &str) -> String {
    one_line(&text.escape_debug().to_string()).into_owned()
}

/// A value as JSON that can be shown as well: the same characters are escaped, as JSON does it, and the value
/// stays the same.
pub(crate) fn to_json(value: &impl Serialize) -> serde_json::Result<String> {
    let json = serde_json::to_string(value)?;
    if !json.contains(is_unfit) {
        return Ok(json);
    }
    let mut out = String::with_capacity(json.len() + 16);
    for character in json.chars() {
        if is_unfit(character) {
            // Only strings have such characters: all else of JSON is plain.
            for unit in character.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            out.push(character);
        }
    }
    Ok(out)
}

/// A longer cell moves the rest of its row, and no other row.
const WIDEST_CELL: usize = 40;

/// Holders as a table.
pub(crate) fn table(holders: &[Holder]) -> String {
    if holders.is_empty() {
        return String::new();
    }
    let head = ["NAME", "TOKEN", "HOST", "PID", "AGE", "LEFT", "NOTE"].map(str::to_owned);
    let rows: Vec<[String; 7]> = std::iter::once(head).chain(holders.iter().map(row)).collect();
    let mut widths = [0; 7];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            let count = cell.chars().count();
            *width = if count <= WIDEST_CELL { count.max(*width) } else { *width };
        }
    }
    let mut out = String::new();
    for row in &rows {
        let cells: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out
}

fn row(holder: &Holder) -> [String; 7] {
    let unknown = || "-".to_owned();
    let duration = |duration: Option<Duration>| duration.map_or_else(unknown, format_duration);
    let mut note = holder.note.as_deref().map(shown).unwrap_or_default();
    if let Some(reason) = &holder.revoked {
        note = format!("{note} (force-release asked for: {})", shown(reason)).trim_start().to_owned();
    }
    [
        shown(holder.name.as_str()),
        holder.token.map_or_else(unknown, |token| token.to_string()),
        holder.host.as_deref().map_or_else(unknown, shown),
        holder.pid.map_or_else(unknown, |pid| pid.to_string()),
        duration(holder.age()),
        duration(holder.expires_in),
        note,
    ]
}

/// One holder, a line a fact.
pub(crate) fn details(holder: &Holder) -> String {
    let left = holder.expires_in.map_or_else(|| "until released".to_owned(), format_duration);
    let facts = [
        ("name", Some(shown(holder.name.as_str()))),
        (
            "owner",
            Some(holder.owner.map_or_else(|| "a foreign client".to_owned(), |owner| owner.to_string())),
        ),
        ("token", holder.token.map(|token| token.to_string())),
        ("host", holder.host.as_deref().map(shown)),
        ("pid", holder.pid.map(|pid| pid.to_string())),
        ("age", holder.age().map(format_duration)),
        ("left", Some(left)),
        ("note", holder.note.as_deref().filter(|note| !note.is_empty()).map(shown)),
        ("revoked", holder.revoked.as_deref().map(shown)),
    ];
    let mut out: String =
        facts.iter().filter_map(|(key, value)| Some(format!("{key:8} {}\n", value.as_ref()?))).collect();
    for node in &holder.nodes {
        out.push_str(&format!("{:8} {}\n", "node", node_line(node)));
    }
    for (place, waiting) in (1..=WAITERS_SHOWN).zip(&holder.queue) {
        out.push_str(&format!("{:8} {place}. {}\n", "waits", waiting_line(waiting)));
    }
    let more = holder.queue.len().saturating_sub(WAITERS_SHOWN);
    if more > 0 {
        out.push_str(&format!("{:8} and {more} more\n", "waits"));
    }
    out
}

/// More waiters are only counted.
const WAITERS_SHOWN: usize = 20;

fn waiting_line(waiting: &Holder) -> String {
    let mut parts = vec![match (&waiting.host, waiting.owner) {
        (Some(host), _) => shown(host),
        (None, Some(owner)) => format!("owner {owner}"),
        (None, None) => "a foreign client".to_owned(),
    }];
    parts.extend(waiting.pid.map(|pid| format!("pid {pid}")));
    parts.extend(waiting.age().map(|age| format!("for {}", format_duration(age))));
    let note = waiting.note.as_deref().filter(|note| !note.is_empty());
    parts.extend(note.map(|note| format!("note `{}`", shown(note))));
    parts.join(", ")
}

fn node_line(node: &NodeView) -> String {
    let mut parts =
        vec![format!("{} {}", node.node, if node.holds { "holds it" } else { "does not hold it" })];
    parts.extend(node.counter.map(|counter| format!("counter {counter}")));
    let left = node.expires_in_ms.map(Duration::from_millis);
    parts.extend(left.map(|left| format!("expires in {}", format_duration(left))));
    parts.extend(node.problem.as_deref().map(shown));
    parts.join(", ")
}

/// What a terminal shows for Ctrl-C, `^C`, after the line. It must not begin another one, which would stay.
const ROOM_FOR_INTERRUPT: usize = 3;

/// A line on the terminal that is written over, and gone at the end.
pub(crate) struct LiveLine {
    written: bool,
}

impl LiveLine {
    pub(crate) fn new() -> Self {
        Self { written: false }
    }

    pub(crate) fn write(&mut self, text: &str) {
        let size = rustix::termios::tcgetwinsize(rustix::stdio::stderr());
        let width = size.ok().map(|size| size.ws_col).filter(|width| *width > 0).unwrap_or(80);
        let text = fitted(&one_line(text), usize::from(width).saturating_sub(ROOM_FOR_INTERRUPT));
        let _ = write!(io::stderr(), "\r\x1b[K{text}");
        self.written = true;
    }
}

/// A text that is cut where it does not fit, and says so.
fn fitted(text: &str, room: usize) -> String {
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let kept = text.chars().take(room.saturating_sub(1));
    kept.chain(['…']).collect()
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        if self.written {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Drives terminals, turns the direction of writing, ends lines, or cannot be seen.
    const UNFIT: [char; 16] = [
        '\u{7f}',
        '\u{85}',
        '\u{9b}',
        '\u{ad}',
        '\u{34f}',
        '\u{61c}',
        '\u{115f}',
        '\u{180e}',
        '\u{200b}',
        '\u{2028}',
        '\u{202e}',
        '\u{2066}',
        '\u{3164}',
        '\u{ffa0}',
        '\u{1d173}',
        '\u{e0041}',
    ];

    fn lock(note: &str) -> Holder {
        let mut holder = Holder::unknown(fencepost::Name::new("job").unwrap());
        holder.note = Some(note.to_owned());
        holder
    }

    #[test]
    fn waiters_are_shown_with_what_is_known_and_beyond_some_are_counted() {
        let mut known = lock("a\u{1b}[2Jb");
        (known.host, known.pid) = (Some("web-1".to_owned()), Some(7));
        let mut earlier = lock("");
        earlier.owner = Some("31d52854-f76f-8be1-bb89-4bb8ea83f017".parse().unwrap());
        let mut holder = lock("works");
        holder.queue = vec![known, earlier, lock("backend 5")];
        let waits = |holder: &Holder| -> Vec<String> {
            let text = details(holder);
            text.lines().filter_map(|line| line.strip_prefix("waits    ").map(str::to_owned)).collect()
        };
        assert_eq!(
            waits(&holder),
            [
                r"1. web-1, pid 7, note `a\u{1b}[2Jb`",
                "2. owner 31d52854-f76f-8be1-bb89-4bb8ea83f017",
                "3. a foreign client, note `backend 5`",
            ]
        );
        holder.queue = vec![lock(""); 20];
        assert_eq!((waits(&holder).len(), waits(&holder)[19].as_str()), (20, "20. a foreign client"));
        holder.queue = vec![lock(""); 25];
        assert_eq!((waits(&holder).len(), waits(&holder)[20].as_str()), (21, "and 5 more"));
    }

    #[test]
    fn json_can_be_shown_and_means_the_same() {
        let text: String = UNFIT.iter().chain(&['\u{1b}', '\n', '"', '\\', 'ä', '🦀']).collect();
        let value = serde_json::json!({ text.clone(): [text.clone(), 1] });
        let json = to_json(&value).unwrap();
        assert!(!json.contains(is_unfit) && json.contains("ä🦀"), "{json:?}");
        assert!(json.contains(r"\u009b") && json.contains(r"\udb40\udc41"), "{json}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), value);
    }

    #[test]
    fn a_line_that_does_not_fit_says_so() {
        assert_eq!(fitted("four", 4), "four");
        assert_eq!(fitted("fives", 4), "fiv…");
        assert_eq!(fitted("fives", 0), "…");
    }

    #[test]
    fn nothing_that_is_shown_drives_a_terminal_or_hides() {
        for character in UNFIT {
            let text = format!("a{character}b");
            assert!(one_line(&text).is_ascii(), "{character:?}");
            assert!(shown(&text).is_ascii(), "{character:?}");
        }
        assert_eq!(one_line("ä\n\u{1b}[2J"), r"ä\n\u{1b}[2J");
        assert_eq!(shown("it\u{3164}"), r"it\u{3164}");
    }
}
