//! What the library has to say while it works, on stderr: warnings unless `--quiet`, more with `--verbose`.
//! One line an event, in which no text of a server or a file name can act as anything but text.

use std::fmt::{self, Write as _};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::args::Global;
use crate::output::{one_line, to_json};

/// What the commands themselves tell in their results and errors.
const TOLD_ANYHOW: [&str; 2] = ["lock lost", "lock force-released"];

/// Begins to write the library's events.
pub(crate) fn start(global: &Global) {
    let level = match global.verbose {
        0 if global.quiet => return,
        0 => Level::WARN,
        1 => Level::DEBUG,
        _ => Level::TRACE,
    };
    let lines = Lines { json: global.json, brief: global.verbose == 0 };
    let log = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).with_ansi(false);
    log.event_format(lines).init();
}

/// How an event is written.
struct Lines {
    json: bool,
    brief: bool,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let (message, level) = (one_line(&fields.message), event.metadata().level());
        if self.brief && TOLD_ANYHOW.contains(&&*message) {
            return Ok(());
        }
        if self.json {
            let level = level.as_str().to_ascii_lowercase();
            let object = serde_json::json!({ "log": level, "message": message, "fields": fields.values });
            return writeln!(out, "{}", to_json(&object).map_err(|_| fmt::Error)?);
        }
        if self.brief {
            write!(out, "fencepost: warning: {message}")?;
        } else {
            SystemTime.format_time(&mut out)?;
            write!(out, " {level:>5} {}: {message}", event.metadata().target())?;
        }
        let mut separator = if self.brief { " (" } else { " " };
        for (key, value) in &fields.values {
            write!(out, "{separator}{key}={}", one_line(value.as_str().unwrap_or_default()))?;
            separator = if self.brief { ", " } else { " " };
        }
        let end = if self.brief && !fields.values.is_empty() { ")" } else { "" };
        writeln!(out, "{end}")
    }
}

/// The fields of an event, as text.
#[derive(Default)]
struct Fields {
    message: String,
    values: Map<String, Value>,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        let _ = write!(text, "{value:?}");
        self.put(field, text);
    }
}

impl Fields {
    fn put(&mut self, field: &Field, text: String) {
        match field.name() {
            "message" => self.message = text,
            // Whose lock it was is in the other fields.
            "owner" => {}
            name => drop(self.values.insert(name.to_owned(), Value::String(text))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn no_field_of_an_event_acts_on_a_terminal() {
        let text = "a\u{9b}31m\u{202e}\u{2028}\u{3164}b";
        for (json, brief) in [(true, true), (false, true), (false, false)] {
            let (written, lines) = (Written::default(), Lines { json, brief });
            let writer = written.clone();
            let log = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false);
            tracing::subscriber::with_default(log.event_format(lines).finish(), || {
                tracing::warn!(field = text, other = %text, "{text}");
            });
            let line = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
            assert!(line.trim_end().chars().all(|c| (' '..='~').contains(&c)), "{line:?}");
            if json {
                assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["fields"]["field"], text);
            }
        }
    }
}
