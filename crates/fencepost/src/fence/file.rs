//! Resources in files on this machine, two for each: `NAME.guard`, whose flock is the turn to check and
//! write, and `NAME.value` with the largest token and the value, replaced as a whole.
//!
//! A replacement is a new file that is on the disk before it gets the name. So whoever is killed, at whatever
//! point, leaves the old pair of token and value or the new one.

use std::fs::File as StdFile;
use std::io::{self, Read as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, fsync, openat, renameat, unlinkat};
use rustix::io::Errno;

use super::record::{Record, Rule};
use super::{Backend, Error, Result};
use crate::backends::file::directory::{Access, Directory};
use crate::backends::file::fork;
use crate::backends::file::keys::file_name_with;
use crate::backends::file::lockfile::LockFile;
use crate::text::printable;
use crate::url::StoreUrl;
use crate::{FencingToken, Name};

const GUARD: &str = ".guard";
const VALUE: &str = ".value";
/// A value that has not got its name yet. One name is enough: only who has the flock writes it.
const NEW: &str = ".new";
const MAGIC: &str = "fencepost-fence 1";
/// The largest value: each write and each activation reads or writes all of it.
const LARGEST: u64 = 256 << 20;
/// The same with its first line.
const LARGEST_FILE: u64 = LARGEST + 64;
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait before another look at a flock: doubled from the first to the last.
const PAUSES: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(10));

#[derive(Debug)]
pub(super) struct File(Arc<Folder>);

#[derive(Debug)]
struct Folder {
    directory: Arc<Directory>,
    timeout: Duration,
    label: String,
}

/// Why a step failed, and whether it may have taken effect.
enum Trouble {
    Before(io::Error),
    After(io::Error),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Before(error)
    }
}

impl File {
    pub(super) fn from_url(mut url: StoreUrl) -> Result<Self> {
        if url.path.is_empty() || !url.hosts.is_empty() {
            return Err(Error::invalid(
                "resources in files need a directory of their own: write `file:///absolute/path` or \
                 `file:relative/path`",
            ));
        }
        let access = url.take_choice("mode", &[("private", Access::Private), ("shared", Access::Shared)])?;
        let timeout = url.take_duration("timeout")?.unwrap_or(TIMEOUT);
        let path = std::path::PathBuf::from(&url.path);
        url.finish()?;
        let directory = Arc::new(Directory::open(&path, access.unwrap_or(Access::Private))?);
        fork::install().map_err(|error| {
            crate::Error::config(format!("files cannot be protected from forked children: {error}"))
        })?;
        let label = format!("file:{}", directory.path.display());
        Ok(Self(Arc::new(Folder { directory, timeout, label })))
    }

    /// Does one step on a thread that may block. It goes on to its end if the caller does not.
    async fn step<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Folder) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (folder, label) = (self.0.clone(), self.0.label.clone());
        let done = tokio::task::spawn_blocking(move || job(&folder)).await;
        done.unwrap_or_else(|error| match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down, and it never ran.
            Err(error) => Err(crate::Error::unavailable(label, error).into()),
        })
    }

    async fn put(&self, resource: &Name, token: FencingToken, value: &[u8], rule: Rule) -> Result<()> {
        if value.len() as u64 > LARGEST {
            return Err(Error::invalid(format!(
                "a value in a file may have at most {LARGEST} bytes, the one for `{}` has {}; keep large \
                 data elsewhere and a reference to it here",
                printable(resource.as_str()),
                value.len()
            )));
        }
        let (resource, value) = (resource.clone(), value.to_vec());
        self.step(move |folder| folder.put(&resource, token, value, rule)).await
    }
}

#[async_trait]
impl Backend for File {
    async fn activate(&self, resource: &Name, token: FencingToken) -> Result<Option<Vec<u8>>> {
        let resource = resource.clone();
        self.step(move |folder| folder.activate(&resource, token)).await
    }

    async fn write(&self, resource: &Name, token: FencingToken, value: &[u8]) -> Result<()> {
        self.put(resource, token, value, Rule::AtLeast).await
    }

    async fn write_once(&self, resource: &Name, token: FencingToken, value: &[u8]) -> Result<()> {
        self.put(resource, token, value, Rule::Above).await
    }
}

impl Folder {
    fn activate(&self, resource: &Name, token: FencingToken) -> Result<Option<Vec<u8>>> {
        let _turn = self.turn(resource)?;
        let mut record = self.read(resource)?;
        let before = record.highest;
        record.admit(resource.as_str(), token, Rule::AtLeast)?;
        let on_disk = if record.highest == before {
            // Whoever gave the record its name may have been killed before that was on the disk.
            self.directory.sync().map_err(Trouble::After)
        } else {
            self.replace(resource, &record)
        };
        // Whether or not it took effect, it does no harm: it can be activated again.
        on_disk.map_err(|(Trouble::Before(error) | Trouble::After(error))| self.unavailable(error))?;
        Ok(record.value)
    }

    fn put(&self, resource: &Name, token: FencingToken, value: Vec<u8>, rule: Rule) -> Result<()> {
        let _turn = self.turn(resource)?;
        let mut record = self.read(resource)?;
        record.admit(resource.as_str(), token, rule)?;
        record.value = Some(value);
        self.replace(resource, &record).map_err(|trouble| match trouble {
            Trouble::Before(error) => self.unavailable(error),
            Trouble::After(error) => Error::uncertain(resource, error),
        })
    }

    /// Takes the flock, which every step has for a moment only. Whoever was stopped in the middle of one
    /// keeps it, so the wait has an end.
    fn turn(&self, resource: &Name) -> Result<LockFile> {
        let (name, started) = (file_name_with(resource, GUARD), Instant::now());
        let mut pause = PAUSES.0;
        let failed = |error: io::Error| self.unavailable(error);
        loop {
            let guard = LockFile::open_or_create(&self.directory, &name).map_err(failed)?;
            while !guard.try_lock().map_err(failed)? {
                if started.elapsed() >= self.timeout {
                    let waited = crate::format_duration(self.timeout);
                    return Err(self.unavailable(format!(
                        "`{name}` was in use for {waited}: a process was stopped in the middle of a \
                         write; resume or end it"
                    )));
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(PAUSES.1);
            }
            if guard.is_current().map_err(failed)? {
                return Ok(guard);
            }
        }
    }

    fn read(&self, resource: &Name) -> Result<Record<Option<Vec<u8>>>> {
        let name = file_name_with(resource, VALUE);
        let unreadable = |why: &str| {
            let why = format!(
                "`{name}` cannot be read: {why}; restore it from a backup, since without it stale holders \
                 would get in"
            );
            Error::Failed(crate::Error::backend(&self.label, why))
        };
        let failed = |error: io::Error| self.unavailable(error);
        // Without waiting, should it be a pipe.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = match openat(&self.directory.file, &name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(Record::default()),
            Err(Errno::LOOP) => return Err(unreadable("it is a symbolic link")),
            Err(error) => return Err(failed(error.into())),
        };
        let stat = fstat(&file).map_err(|error| failed(error.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(unreadable("it is no plain file"));
        }
        if u64::try_from(stat.st_size).is_ok_and(|size| size > LARGEST_FILE) {
            return Err(unreadable("it is larger than any value that is written here"));
        }
        let mut bytes = Vec::new();
        // Whoever writes into it, instead of replacing it, must not make us read for ever.
        StdFile::from(file).take(LARGEST_FILE).read_to_end(&mut bytes).map_err(failed)?;
        decode(bytes).ok_or_else(|| unreadable("it is damaged, or of another version"))
    }

    fn unavailable(&self, source: impl Into<crate::Source>) -> Error {
        Error::Failed(crate::Error::unavailable(&self.label, source))
    }

    /// Puts a record into the place of the one before, on the disk.
    fn replace(&self, resource: &Name, record: &Record<Option<Vec<u8>>>) -> Result<(), Trouble> {
        let (new, name) = (file_name_with(resource, NEW), file_name_with(resource, VALUE));
        let dir = &self.directory.file;
        // What somebody left who was killed; it may be another user's.
        let _ = unlinkat(dir, &new, AtFlags::empty());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = StdFile::from(openat(dir, &new, flags, self.directory.mode).map_err(io::Error::from)?);
        self.directory.open_to_others(&file)?;
        file.write_all(header(record).as_bytes())?;
        file.write_all(record.value.as_deref().unwrap_or_default())?;
        fsync(&file).map_err(io::Error::from)?;
        renameat(dir, &new, dir, &name).map_err(io::Error::from)?;
        self.directory.sync().map_err(Trouble::After)
    }
}

/// The first line: the token, and how many bytes of a value follow; `-` if none was written yet.
fn header(record: &Record<Option<Vec<u8>>>) -> String {
    let token = record.highest.map_or(0, FencingToken::get);
    match &record.value {
        Some(value) => format!("{MAGIC} {token} {}\n", value.len()),
        None => format!("{MAGIC} {token} -\n"),
    }
}

fn decode(mut bytes: Vec<u8>) -> Option<Record<Option<Vec<u8>>>> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let value = bytes.split_off(end + 1);
    let line = std::str::from_utf8(bytes.get(..end)?).ok()?;
    let (token, length) = line.strip_prefix(MAGIC)?.strip_prefix(' ')?.split_once(' ')?;
    let highest = Some(FencingToken::new(token.parse().ok()?)?);
    let value = match length {
        "-" if value.is_empty() => None,
        length if length.parse() == Ok(value.len()) => Some(value),
        _ => return None,
    };
    Some(Record { highest, value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_record_is_read_back_and_a_part_of_it_is_not(
            number in 1u64..1 << 53,
            value in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..50)),
        ) {
            let record = Record { highest: FencingToken::new(number), value };
            let mut bytes = header(&record).into_bytes();
            bytes.extend(record.value.iter().flatten());
            prop_assert_eq!(decode(bytes.clone()), Some(record));
            for cut in 0..bytes.len() {
                prop_assert_eq!(decode(bytes[..cut].to_vec()), None);
            }
        }
    }
}
