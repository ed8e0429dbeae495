//! From a locked file to a grant, and from a busy one to its holder. Nothing here waits.
//!
//! These calls take a few microseconds and run where the caller is: moving them to another thread would cost more
//! than they do. Only `durable=yes` waits for a disk.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use super::Shared;
use super::hold::FlockHold;
use super::lockfile::LockFile;
use super::place;
use super::record::{Damage, Now, Page, Record, Revocation, State};
use crate::backend::{Grant, Request};
use crate::runtime::sync::lock;
use crate::token::TOKEN_LIMIT;
use crate::{Error, FencingToken, Holder, Name, Result};

/// How often a try looks again, at once, at a lock that changes hands.
const SPINS: u32 = 64;

/// What became of a file whose flock we got.
pub(super) enum Claim {
    Granted(Grant),
    /// Detached by somebody, and its lease has not ended.
    Leased(Holder),
    /// The file was collected or replaced before we got it.
    Gone,
}

/// What became of a try.
pub(super) enum Tried {
    Granted(Grant),
    Busy(Holder),
    /// Somebody has the flock, but no holder stands behind it: it changes hands, or is being looked at.
    Passing,
}

impl Shared {
    /// Takes the lock if it is free now.
    pub(super) fn try_claim(self: &Arc<Self>, request: &Request) -> Result<Tried> {
        let file_name = place::file_name(&request.name);
        for _ in 0..SPINS {
            let file = LockFile::open_or_create(&self.place, &file_name);
            let file = file.map_err(|error| self.failed(&file_name, "open", error))?;
            if file.try_lock().map_err(|error| self.failed(&file_name, "lock", error))? {
                match self.claim(file, request, &file_name)? {
                    Claim::Granted(grant) => return Ok(Tried::Granted(grant)),
                    Claim::Leased(holder) => return Ok(Tried::Busy(holder)),
                    Claim::Gone => continue,
                }
            }
            if let Some(holder) = self.holder_of(&file, &request.name, &file_name)? {
                return Ok(Tried::Busy(holder));
            }
            std::thread::yield_now();
        }
        Ok(Tried::Passing)
    }

    /// Makes a grant of a file whose flock is ours; dropping the file gives the flock up.
    pub(super) fn claim(
        self: &Arc<Self>,
        file: LockFile,
        request: &Request,
        file_name: &str,
    ) -> Result<Claim> {
        let failed = |doing, error| self.failed(file_name, doing, error);
        let sent = self.clock.now();
        // The record is ours alone to write now, but an operator may be in the middle of a revocation.
        let page = file.peek().map_err(|error| failed("read", error))?;
        let now = self.now();
        let last = match self.record(&page, &request.name, file_name) {
            Ok(Some(record)) => match record.state {
                State::Leased(lease) if !lease.left(&now).is_zero() => {
                    return Ok(Claim::Leased(holder(&request.name, &page, &record, &now)));
                }
                _ => page.last_token(Some(&record)),
            },
            Ok(None) => page.last_token(None),
            // What a file holds that nobody uses any more is nobody's trouble.
            Err(_) if matches!(file.is_current(&self.place, file_name), Ok(false)) => {
                return Ok(Claim::Gone);
            }
            Err(error) => return Err(error),
        };
        let last = last.map_err(|damage| self.damaged(file_name, &request.name, damage))?;
        let token = self.next_token(last, &now)?;
        let mut hold = FlockHold::new(self.clone(), file, request, token, now.wall);
        match self.write_grant(&mut hold, &page, &now, file_name) {
            Ok(true) => {}
            given_up => {
                hold.abandon();
                return given_up.map(|_| Claim::Gone);
            }
        }
        let token = hold.token();
        let hold = Arc::new(hold);
        let watched = Arc::downgrade(&hold);
        lock(&self.held).insert(request.owner(), watched);
        // Only now: whoever replaces the file after this look finds us among those to tell.
        if !hold.is_current().map_err(|error| failed("examine", error))? {
            return Ok(Claim::Gone);
        }
        Ok(Claim::Granted(Grant { identity: request.identity, token, sent, term: None, pushed: false, hold }))
    }

    /// Writes the record of a grant. An operator may reserve a token after we read the page, or begin to replace the file
    /// under the holder before us: it looks for us after it wrote, and we for it, so that at least one sees the other. No
    /// token is given twice or out of order, and no lock that an operator takes from somebody else. `false` in that case.
    fn write_grant(&self, hold: &mut FlockHold, before: &Page, now: &Now, file_name: &str) -> Result<bool> {
        let failed = |error| self.failed(file_name, "write", error);
        if self.durable && before.len == 0 {
            // Before the record: whoever finds one, after we were killed here, takes the file's name to be on the disk.
            hold.file().sync(&self.place, true).map_err(failed)?;
        }
        loop {
            hold.file().write_or_restore(&hold.record(State::Held), before).map_err(failed)?;
            let page = hold.file().peek().map_err(failed)?;
            let Ok(Some(revocation)) = page.revocation() else { break };
            if revocation.replacing {
                if self.is_given_up(hold.file()).map_err(failed)? {
                    continue;
                }
                return Ok(false);
            }
            if revocation.token < hold.token().get() {
                break;
            }
            hold.raise(self.next_token(revocation.token, now)?);
        }
        if self.durable {
            hold.file().sync(&self.place, false).map_err(failed)?;
        }
        Ok(true)
    }

    /// Whether the operator was killed that has announced to replace this file. If so, takes that back in its place.
    fn is_given_up(&self, file: &LockFile) -> io::Result<bool> {
        let turn = LockFile::directory(&self.place)?;
        if !turn.try_lock()? {
            return Ok(false);
        }
        if let Ok(Some(left)) = file.peek()?.revocation() {
            file.revoke(&Revocation { replacing: false, ..left })?;
        }
        Ok(true)
    }

    /// Who has a lock whose flock we did not get; `None` if it is only passing from hand to hand.
    pub(super) fn holder_of(&self, file: &LockFile, name: &Name, file_name: &str) -> Result<Option<Holder>> {
        let failed = |error| self.failed(file_name, "examine", error);
        let locked = file.is_locked().map_err(failed)?;
        let page = file.peek().map_err(failed)?;
        if !file.is_current(&self.place, file_name).map_err(failed)? {
            return Ok(None);
        }
        let Some(record) = self.record(&page, name, file_name)? else { return Ok(None) };
        let now = self.now();
        let held = match record.state {
            State::Free => false,
            // A record that outlived its flock is of a holder that died.
            State::Held => locked,
            State::Leased(lease) => !lease.left(&now).is_zero(),
        };
        Ok(held.then(|| holder(name, &page, &record, &now)))
    }

    /// The record in a page, if it is this lock's.
    pub(super) fn record<'a>(
        &self,
        page: &'a Page,
        name: &Name,
        file_name: &str,
    ) -> Result<Option<Record<'a>>> {
        let record = page.record().map_err(|damage| self.damaged(file_name, name, damage))?;
        match &record {
            Some(record) if record.name != name.as_str() => Err(Error::Backend {
                store: self.label.clone(),
                source: format!(
                    "lock file `{}` belongs to lock `{}`, not to `{name}`; {}",
                    self.place.path.join(file_name).display(),
                    record.name.escape_debug(),
                    next_step(name)
                )
                .into(),
            }),
            // Without a clock to fall back on, a counter that vanished is not to be started over.
            None if self.durable && page.len > 0 => Err(self.damaged(file_name, name, Damage::Truncated)),
            _ => Ok(record),
        }
    }

    pub(super) fn next_token(&self, last: u64, now: &Now) -> Result<FencingToken> {
        next_token(last, now.wall).ok_or_else(|| Error::Backend {
            store: self.label.clone(),
            source: "fencing tokens have reached their limit of 2^53".into(),
        })
    }

    /// The time on the clocks that leases are written in.
    pub(super) fn now(&self) -> Now {
        let (boot, ahead) = boot();
        let boottime = i128::try_from(self.clock.now().since_origin().as_nanos()).unwrap_or(i128::MAX);
        let boottime = boottime.saturating_sub(ahead).max(0);
        Now { boot, boottime: u64::try_from(boottime).unwrap_or(u64::MAX), wall: wall() }
    }

    /// An error of the system, sorted by what can be done about it.
    pub(super) fn failed(&self, file_name: &str, doing: &str, error: io::Error) -> Error {
        use io::ErrorKind as Kind;
        let path = self.place.path.join(file_name);
        let what = if file_name.is_empty() { "directory" } else { "file" };
        let message = format!("cannot {doing} lock {what} `{}`: {error}", path.display());
        match error.kind() {
            Kind::InvalidInput | Kind::IsADirectory => Error::config(format!(
                "{message}; look who has put it there, remove it, or name another directory as `file:///path`"
            )),
            Kind::PermissionDenied | Kind::ReadOnlyFilesystem => Error::config(format!(
                "{message}; check who owns it and its directory, or name another one as `file:///path`"
            )),
            _ if error.raw_os_error() == Some(libc::ELOOP) => {
                Error::config(format!("{message}; a lock file must not be a symbolic link"))
            }
            Kind::NotFound => Error::Unavailable {
                store: self.label.clone(),
                source: format!("{message}; the lock directory is gone, connect again to make it anew")
                    .into(),
            },
            _ => Error::Unavailable { store: self.label.clone(), source: message.into() },
        }
    }

    /// A lock file that cannot be read.
    pub(super) fn damaged(&self, file_name: &str, name: &Name, damage: Damage) -> Error {
        let path = self.place.path.join(file_name);
        let source = format!("lock file `{}`: {damage}; {}", path.display(), next_step(name));
        Error::Backend { store: self.label.clone(), source: source.into() }
    }
}

fn next_step(name: &Name) -> String {
    let plain =
        name.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric() || b":/@+,=._-".contains(&byte));
    let name = if plain { name.to_string() } else { format!("'{}'", name.as_str().replace('\'', r"'\''")) };
    format!(
        "once you are sure that nobody holds the lock, start it over with `fencepost force-release {name} --now \
         --reason …`"
    )
}

/// The next token: one more than the last, and not less than the wall clock in microseconds, so that it also grows
/// when the record was lost.
fn next_token(last: u64, wall: u64) -> Option<FencingToken> {
    let floor = if wall < TOKEN_LIMIT { wall } else { 0 };
    FencingToken::new(last.checked_add(1)?.max(floor))
}

/// The holder that a record tells of.
pub(super) fn holder(name: &Name, page: &Page, record: &Record<'_>, now: &Now) -> Holder {
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    Holder {
        owner: Some(record.owner),
        token: FencingToken::new(record.token),
        host: some(record.host),
        pid: Some(record.pid),
        note: some(record.note),
        since: Some(SystemTime::UNIX_EPOCH + Duration::from_micros(record.since)),
        expires_in: match record.state {
            State::Leased(lease) => Some(lease.left(now)),
            _ => None,
        },
        revoked: page.revoked(record.owner).ok().flatten().map(str::to_owned),
        ..Holder::unknown(name.clone())
    }
}

/// Microseconds of the wall clock.
pub(super) fn wall() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// The identity of this boot, zero if the system does not tell, and how many nanoseconds our clock is ahead of what it counts:
/// in a time namespace it has another origin.
fn boot() -> ([u8; 16], i128) {
    static BOOT: std::sync::OnceLock<([u8; 16], i128)> = std::sync::OnceLock::new();
    *BOOT.get_or_init(|| {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let id = id.trim().parse().map_or([0; 16], crate::Owner::to_bytes);
        // The offsets are those of our children's namespace, which is ours unless somebody has asked for another one.
        let namespace = |of: &str| std::fs::read_link(format!("/proc/self/ns/{of}")).ok();
        match (namespace("time"), namespace("time_for_children")) {
            // A kernel without time namespaces.
            (None, None) => (id, 0),
            (ours, childrens) if ours == childrens => {
                let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
                boottime_offset(&offsets).map_or(([0; 16], 0), |ahead| (id, ahead))
            }
            _ => ([0; 16], 0),
        }
    })
}

/// The offset of `CLOCK_BOOTTIME` in nanoseconds, of lines like `boottime 86400 0`.
fn boottime_offset(offsets: &str) -> Option<i128> {
    let line = offsets.lines().find_map(|line| line.trim().strip_prefix("boottime"))?;
    let mut numbers = line.split_whitespace().map(|number| number.parse::<i128>().ok());
    let (seconds, nanoseconds) = (numbers.next()??, numbers.next()??);
    Some(seconds * 1_000_000_000 + nanoseconds)
}

/// This process: its pid, and when it started. Asked anew in a forked child.
pub(super) fn process() -> (u32, u64) {
    static KNOWN: AtomicU32 = AtomicU32::new(0);
    static PID: AtomicU32 = AtomicU32::new(0);
    static STARTED: AtomicU64 = AtomicU64::new(0);
    let generation = super::fork::generation() + 1;
    if KNOWN.load(Ordering::Acquire) != generation {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The second field is the command in parentheses, which may contain anything; the start is the 22nd.
        let started = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(19)?.parse().ok());
        STARTED.store(started.unwrap_or(0), Ordering::Relaxed);
        PID.store(std::process::id(), Ordering::Relaxed);
        KNOWN.store(generation, Ordering::Release);
    }
    (PID.load(Ordering::Relaxed), STARTED.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_token_is_larger_than_the_last_and_not_behind_the_clock(
            last in 0u64..TOKEN_LIMIT - 1,
            wall in any::<u64>(),
        ) {
            let token = next_token(last, wall).unwrap().get();
            prop_assert!(token > last);
            prop_assert!(token >= wall || wall >= TOKEN_LIMIT);
        }
    }

    #[test]
    fn tokens_end_at_their_limit_and_a_mad_clock_does_not_use_them_up() {
        assert!(next_token(TOKEN_LIMIT - 1, 0).is_none());
        assert_eq!(next_token(7, u64::MAX).unwrap().get(), 8);
    }

    #[test]
    fn this_process_has_a_start_and_this_machine_a_boot() {
        assert_eq!(process().0, std::process::id());
        assert!(process().1 > 0);
        assert_ne!(boot().0, [0; 16]);
    }

    #[test]
    fn the_origin_of_a_time_namespace_is_read() {
        let offsets = "monotonic           0         0\nboottime        86400 250000000\n";
        assert_eq!(boottime_offset(offsets), Some(86_400_250_000_000));
        assert_eq!(boottime_offset("monotonic 0 0\nboottime -5 0\n"), Some(-5_000_000_000));
        assert_eq!(boottime_offset("monotonic 0 0\n"), None);
    }
}
