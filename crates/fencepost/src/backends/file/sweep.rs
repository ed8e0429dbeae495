//! The collection of lock files that nobody has used for a day.

use std::time::Duration;

use rustix::fs::{AtFlags, Dir, statat, unlinkat};

use super::client::Client;
use super::keys::SUFFIX;
use super::lockfile::{LockFile, UNFINISHED};
use super::record::HeldBy;
use super::timestamp::{Timestamp, wall};
use crate::text::printable;

/// A file that was not written for this long may be collected: the wall clock has long passed its tokens.
const IDLE: Duration = Duration::from_secs(24 * 3600);
/// The pause between two collections.
const SWEEP_EVERY: Duration = Duration::from_secs(3600);
/// The most that one collection looks at.
const SWEEP_MOST: usize = 4096;
/// Its time of modification is when the last collection was.
const SWEPT: &str = ".swept";

/// Removes idle files, at most once an hour. Never in a durable store: without the counter only the clock
/// keeps tokens growing.
pub(super) fn sweep(client: &Client) {
    if client.durable || !is_due(client) {
        return;
    }
    // A file is removed by its name: no operator may give that name to another one meanwhile.
    let Ok(turn) = LockFile::of_directory(&client.directory) else { return };
    if !turn.try_lock().unwrap_or(false) {
        return;
    }
    let Ok(entries) = Dir::read_from(&client.directory.file) else { return };
    for entry in entries.take(SWEEP_MOST).flatten() {
        let Ok(file_name) = entry.file_name().to_str() else { continue };
        if !is_idle(client, file_name, IDLE) {
            continue;
        }
        if file_name.starts_with(UNFINISHED) {
            let _ = unlinkat(&client.directory.file, file_name, AtFlags::empty());
        } else if file_name.ends_with(SUFFIX)
            && let Err(error) = collect(client, file_name)
        {
            tracing::debug!(file = %printable(file_name), %error, "an idle lock file was not collected");
        }
    }
}

fn is_due(client: &Client) -> bool {
    let is_new = statat(&client.directory.file, SWEPT, AtFlags::SYMLINK_NOFOLLOW).is_err();
    (is_new || is_idle(client, SWEPT, SWEEP_EVERY))
        && LockFile::open_or_create(&client.directory, SWEPT).is_ok_and(|mark| mark.touch().is_ok())
}

fn is_idle(client: &Client, file_name: &str, idle: Duration) -> bool {
    let Ok(stat) = statat(&client.directory.file, file_name, AtFlags::SYMLINK_NOFOLLOW) else { return false };
    let written = u64::try_from(stat.st_mtime).unwrap_or(u64::MAX);
    written.saturating_add(idle.as_secs()) < wall() / 1_000_000
}

/// Removes one file, if it is idle indeed.
fn collect(client: &Client, file_name: &str) -> std::io::Result<()> {
    let Some(file) = LockFile::open(&client.directory, file_name)? else { return Ok(()) };
    // A waiter that gets this flock when the file is gone notices, and makes a new file.
    if !file.try_lock()? || !file.is_current()? || !is_idle(client, file_name, IDLE) {
        return Ok(());
    }
    let (page, now) = (file.read()?, Timestamp::now());
    let is_over = match page.record() {
        Ok(None) => true,
        Ok(Some(record)) => {
            let is_leased = matches!(record.held_by, HeldBy::Lease(end) if !end.is_over(now));
            let is_behind = page.last_token(Some(&record)).is_ok_and(|last| last < now.wall);
            !is_leased && !record.durable && is_behind
        }
        Err(_) => false,
    };
    if is_over {
        unlinkat(&client.directory.file, file_name, AtFlags::empty())?;
    }
    Ok(())
}
