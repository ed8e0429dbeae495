//! The library's events on their way to Python's `logging`. A thread on which one happens puts it into a
//! queue and goes on. It neither waits nor takes the interpreter: it may be the one that renews, and may hold
//! a mutex of the library's. A thread of Python's reads the queue.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write as _;
use std::net::Shutdown;
use std::os::fd::{IntoRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use fencepost::backend::{PerProcess, runtime};
use fencepost::printable;
use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, Subscriber, set_global_default};
use tracing::{Event, Level, Metadata};

/// The most events that wait to be read; those that come after are counted.
const MOST: usize = 1000;

/// The levels of Python's `logging`.
const DEBUG: u8 = 10;
const INFO: u8 = 20;

/// An event: its level, when it happened in seconds since 1970, the source file and line, and what it says.
type Told = (u8, f64, &'static str, u32, String);

/// What a process has to tell. A forked child has nothing of its parent's.
static QUEUE: PerProcess<Queue> = PerProcess::new();

#[derive(Default)]
struct Queue {
    /// The lowest level that is wanted; 0 while nobody reads.
    level: AtomicU8,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    events: Vec<Told>,
    dropped: u64,
    /// Wakes the reader by a byte, and ends it by being shut down.
    reader: Option<UnixStream>,
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, event: Told) {
        let waiting = &mut *self.waiting();
        let Some(mut reader) = waiting.reader.as_ref() else { return };
        if waiting.events.len() == MOST {
            waiting.dropped += 1;
            return;
        }
        waiting.events.push(event);
        if waiting.events.len() == 1 {
            // A full socket wakes the reader as well as one more byte would.
            let _ = reader.write(&[0]);
        }
    }
}

/// Begins to queue the events of this process, from level INFO on; the socket that their reader waits for.
#[pyfunction]
pub(crate) fn log_open() -> PyResult<RawFd> {
    // Forks are counted once it runs. That it does not is told to whoever needs it.
    let _ = runtime();
    let (near, far) = UnixStream::pair()?;
    far.set_nonblocking(true)?;
    let queue = QUEUE.get();
    queue.waiting().reader = Some(far);
    queue.level.store(INFO, Relaxed);
    Ok(near.into_raw_fd())
}

/// Whether events of level DEBUG are wanted as well.
#[pyfunction]
pub(crate) fn log_debug(on: bool) {
    QUEUE.get().level.store(if on { DEBUG } else { INFO }, Relaxed);
}

/// The events that wait, and how many were dropped after them because so many waited.
#[pyfunction]
pub(crate) fn log_take() -> (Vec<Told>, u64) {
    let waiting = &mut *QUEUE.get().waiting();
    (std::mem::take(&mut waiting.events), std::mem::take(&mut waiting.dropped))
}

/// Queues no more events, and tells the reader that there is no end to wait for.
#[pyfunction]
pub(crate) fn log_close() {
    let queue = QUEUE.get();
    queue.level.store(0, Relaxed);
    if let Some(reader) = queue.waiting().reader.take() {
        // A child may have it, too: closing it would end nothing.
        let _ = reader.shutdown(Shutdown::Both);
    }
}

/// Listens to the library, for as long as this process lives.
pub(crate) fn listen() {
    // It is there already if the module is made a second time.
    let _ = set_global_default(Listener);
}

struct Listener;

impl Subscriber for Listener {
    /// Asked each time: what is wanted changes, and a cache would be rebuilt under a mutex that a forked
    /// child might find locked.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::DEBUG)
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let least = QUEUE.get().level.load(Relaxed);
        // Not what HTTP/2 has to say about each frame.
        let ours = metadata.is_event() && metadata.target().starts_with("fencepost");
        ours && least > 0 && level(metadata.level()) >= least
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |at| at.as_secs_f64());
        let about = event.metadata();
        let (file, line) = (about.file().unwrap_or_default(), about.line().unwrap_or_default());
        QUEUE.get().put((level(about.level()), at, file, line, text.to_string()));
    }

    // Spans are never enabled.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn level(level: &Level) -> u8 {
    match *level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => INFO,
        _ => DEBUG,
    }
}

/// What an event says, as the command writes it: the message, then the fields by name, all in one line.
#[derive(Default)]
struct Text {
    message: String,
    fields: BTreeMap<&'static str, String>,
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }
}

impl Text {
    fn put(&mut self, field: &Field, text: String) {
        match field.name() {
            "message" => self.message = text,
            // Whose lock it was is in the other fields.
            "owner" => {}
            name => drop(self.fields.insert(name, text)),
        }
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.message))?;
        self.fields.iter().try_for_each(|(name, value)| write!(f, " {name}={}", printable(value)))
    }
}
