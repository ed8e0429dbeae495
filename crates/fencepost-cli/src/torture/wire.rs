//! What workers and their parent tell each other, a line of JSON each.

use std::io::{self, Write};

use fencepost_testkit::history::Event;
use serde::{Deserialize, Serialize};

/// From a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Said {
    /// Something happened.
    Event(Event),
    /// It reads both registers of a lock, and tells the guarded one its token first.
    Read { lock: usize, token: u64 },
    /// It writes one more than it read to both, whatever its guard says.
    Write { lock: usize, token: u64, guarded: Option<u64>, unguarded: u64 },
}

/// To a worker.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// What it read; the guarded register may have refused. It shall work on for so many milliseconds: its
    /// links are cut.
    Read { guarded: Option<u64>, unguarded: u64, linger: u64 },
    /// The guarded register's answer to a write.
    Wrote { accepted: bool },
    /// It shall end.
    Stop,
}

/// Writes a message as one line in one piece.
pub(super) fn send(out: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    out.write_all(&line)?;
    out.flush()
}
