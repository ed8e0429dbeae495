//! Where lock files live: which directory, whether it is fit, and what a lock's file is called.

use std::fmt::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, Gid, Mode, OFlags, Stat, fchmod, fchown, fstat, fstatfs, fsync, openat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::parents::{self, Way};
use crate::url::StoreUrl;
use crate::{Error, Name, Result, text};

/// What lock files end in; nothing else in the directory does.
pub(super) const SUFFIX: &str = ".lock";

/// The longest file name that Linux takes.
const MAX_FILE_NAME: usize = 255;
/// How much of a name that is too long stays readable in front of its hash.
const READABLE: usize = 120;
/// Stands between the two. Never part of an encoded name, so the two kinds cannot meet.
const HASHED: char = '~';

/// Who may use the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Only this user.
    Private,
    /// Everybody whom the directory's own permissions let write into it.
    Shared,
}

/// A directory that is fit for lock files.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) dir: OwnedFd,
    pub(crate) path: PathBuf,
    pub(crate) access: Access,
    /// The permissions of files in it.
    pub(crate) mode: Mode,
    group: Gid,
    /// Its own entry is on the disk, and those of what leads to it.
    on_disk: AtomicBool,
}

/// How directories are opened.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Place {
    /// Opens the directory, making it if need be, and refuses one that is not fit.
    pub(crate) fn open(path: &Path, access: Access) -> Result<Self> {
        let shown = path.display();
        let failed = |what: &str, error: std::io::Error| {
            let message =
                format!("lock directory `{shown}` {what}: {error}; name another one as `file:///path`");
            match error.kind() {
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                    Error::Unavailable { store: format!("file:{shown}"), source: message.into() }
                }
                _ => Error::config(message),
            }
        };
        let Way { dir, path, closed } = match access {
            Access::Private => parents::open(path, &failed)?,
            Access::Shared => {
                let dir = openat(CWD, path, DIRECTORY, Mode::empty());
                let dir = dir.map_err(|error| failed("cannot be opened", error.into()))?;
                let path = path.canonicalize().map_err(|error| failed("cannot be found", error))?;
                Way { dir, path, closed: false }
            }
        };
        let kind = fstatfs(&dir).map_err(|error| failed("cannot be examined", error.into()))?.f_type;
        // The type's width and sign differ between machines; the magic numbers have 32 bits.
        if let Some(kind) = network_file_system(kind as u32) {
            return Err(Error::config(format!(
                "lock directory `{shown}` is on {kind}, where locks do not reliably exclude other machines, or \
                 survive an outage; use a directory on a local disk (`file:///path`), or a server (`redis://host`)"
            )));
        }
        let stat = fstat(&dir).map_err(|error| failed("cannot be examined", error.into()))?;
        if access == Access::Private {
            check_private(&stat, &path)?;
            warn_of_readers(&stat, &path, closed);
        }
        // As open as the directory that they are in.
        let mode = match access {
            Access::Private => Mode::from_raw_mode(0o600),
            Access::Shared => Mode::from_raw_mode(stat.st_mode & 0o066 | 0o600),
        };
        Ok(Self {
            dir,
            path,
            access,
            mode,
            group: Gid::from_raw(stat.st_gid),
            on_disk: AtomicBool::new(false),
        })
    }

    /// Puts the entries of the directory on the disk, and the first time its own. This or another process of
    /// this user may have made it just now, and what leads to it and is closed to others.
    pub(crate) fn sync(&self) -> std::io::Result<()> {
        fsync(&self.dir)?;
        if self.access == Access::Private && !self.on_disk.load(Ordering::Acquire) {
            let mut dir = openat(&self.dir, ".", DIRECTORY, Mode::empty())?;
            let mut stat = fstat(&dir)?;
            while is_private(&stat) {
                let parent = match openat(&dir, "..", DIRECTORY, Mode::empty()) {
                    // Nobody makes directories for us where we may not look.
                    Err(Errno::ACCESS) => break,
                    parent => parent?,
                };
                fsync(&parent)?;
                let next = fstat(&parent)?;
                if (next.st_dev, next.st_ino) == (stat.st_dev, stat.st_ino) {
                    break;
                }
                (dir, stat) = (parent, next);
            }
            self.on_disk.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Gives a new file of a shared directory the group of the directory, which others share with us, and the permissions that
    /// the umask has cut.
    pub(crate) fn open_to_others(&self, file: impl AsFd) -> std::io::Result<()> {
        if self.access == Access::Shared {
            // Not ours to give where we write by other rights than the group's; those who have them need no group.
            let _ = fchown(&file, None, Some(self.group));
            fchmod(&file, self.mode)?;
        }
        Ok(())
    }
}

/// The directory that a URL names.
pub(super) fn directory(url: &StoreUrl) -> Result<PathBuf> {
    if let Some(host) = url.hosts.first() {
        return Err(Error::invalid(format!(
            "a file store has no host, but this URL names `{host}`; write `file:///absolute/path` or \
             `file:relative/path`"
        )));
    }
    if !url.path.is_empty() {
        return Ok(PathBuf::from(&url.path));
    }
    let absolute = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    state.map(|state| state.join("fencepost/locks")).ok_or_else(|| {
        Error::config(
            "the default lock directory is in the user's home, but neither XDG_STATE_HOME nor HOME is set; \
             name a directory, as in `file:///path`",
        )
    })
}

/// Ours, and closed to everybody else, as the directories are that we make.
fn is_private(stat: &Stat) -> bool {
    stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o077 == 0
}

fn check_private(stat: &Stat, path: &Path) -> Result<()> {
    let (us, path) = (rustix::process::geteuid().as_raw(), path.display());
    if stat.st_uid != us {
        return Err(Error::config(format!(
            "lock directory `{path}` belongs to user {}, not to us (user {us}); use a directory of your own, or \
             share this one with `?mode=shared`",
            stat.st_uid
        )));
    }
    if stat.st_mode & 0o022 != 0 {
        return Err(Error::config(format!(
            "lock directory `{path}` can be written by other users; close it with `chmod go-w`, or share it with \
             `?mode=shared`"
        )));
    }
    Ok(())
}

/// No second holder comes of those who only look, so a directory that somebody has made by hand is not refused
/// for them.
fn warn_of_readers(stat: &Stat, path: &Path, closed: bool) {
    if stat.st_mode & 0o055 != 0 && !closed {
        tracing::warn!(
            "others can look into lock directory `{0}`: they see the names of its locks, and can keep a \
             force-release waiting; close it with `chmod go-rx {0}`, or share it with `?mode=shared`",
            text::printable(&path.display().to_string())
        );
    }
}

/// The file of a name. Readable where it can be; different names never share one.
pub(super) fn file_name(name: &Name) -> String {
    file_name_with(name, SUFFIX)
}

/// The same with another ending.
pub(crate) fn file_name_with(name: &Name, suffix: &str) -> String {
    let mut out = encoded(name.as_str());
    if out.len() + suffix.len() > MAX_FILE_NAME {
        out.truncate(READABLE);
        out.push(HASHED);
        for byte in Sha256::digest(name.as_str()) {
            // Writing to a string cannot fail.
            let _ = write!(out, "{byte:02x}");
        }
    }
    out.push_str(suffix);
    out
}

/// Whether a lock file may be of a name that starts with `prefix`. Only the record can tell for a hashed one.
pub(super) fn may_start_with(file_name: &str, prefix: &str) -> bool {
    file_name.contains(HASHED) || file_name.starts_with(&encoded(prefix))
}

fn encoded(name: &str) -> String {
    let encoded = text::encode(name, b":@+,=");
    // No hidden files, and nothing that could be taken for `.` or `..`.
    match encoded.strip_prefix('.') {
        Some(rest) => format!("%2E{rest}"),
        None => encoded,
    }
}

/// The name of a file system on which flock is not to be trusted.
fn network_file_system(magic: u32) -> Option<&'static str> {
    Some(match magic {
        0x6969 => "NFS",
        0x517B | 0xFE53_4D42 | 0xFF53_4D42 => "SMB",
        0x0102_1997 => "9p",
        0x6573_5546 => "FUSE (sshfs, virtiofs and the like)",
        0x00C3_6400 => "Ceph",
        0x0BD0_0BD0 => "Lustre",
        0x5346_414F | 0x6B41_4653 => "AFS",
        0x7375_7245 => "Coda",
        0x4750_4653 => "GPFS",
        0x0116_1970 => "GFS2",
        0x7461_636F => "OCFS2",
        0x1983_0326 => "BeeGFS",
        0xAAD7_AAEA => "PanFS",
        0x564C => "NCP",
        0x786F_4256 => "a VirtualBox shared folder",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(name: &str) -> String {
        file_name(&Name::new(name).unwrap())
    }

    #[test]
    fn files_are_named_after_their_locks() {
        assert_eq!(file("order:42"), "order:42.lock");
        assert_eq!(file("a/b"), "a%2Fb.lock");
        assert_eq!(file("."), "%2E.lock");
        assert_eq!(file("../../etc"), "%2E.%2F..%2Fetc.lock");
        assert_eq!(file("~"), "%7E.lock");
        let (a, b) = (file(&"ü".repeat(200)), file(&("ü".repeat(199) + "u")));
        assert!(a.len() <= MAX_FILE_NAME && a.contains(HASHED) && a != b);
    }

    proptest! {
        #[test]
        fn every_name_has_a_safe_file_of_its_own(a in "[^\0]{1,128}", b in "[^\0]{1,128}") {
            let (file_a, file_b) = (file(&a), file(&b));
            prop_assert_eq!(file_a == file_b, a == b);
            prop_assert!(file_a.len() <= MAX_FILE_NAME && file_a.ends_with(SUFFIX));
            prop_assert!(!file_a.starts_with('.') && !file_a.contains('/'));
        }

        #[test]
        fn no_name_hides_from_its_prefix(name in "[^\0]{1,128}", cut in 0usize..128) {
            let prefix: String = name.chars().take(cut).collect();
            prop_assert!(may_start_with(&file(&name), &prefix));
        }
    }

    #[test]
    fn network_file_systems_are_known_and_local_ones_are_not() {
        assert_eq!(network_file_system(0x6969), Some("NFS"));
        // ext4, xfs, btrfs, tmpfs, overlay, zfs
        for local in [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0x794C_7630, 0x2FC1_2FC1] {
            assert_eq!(network_file_system(local), None);
        }
    }

    #[test]
    fn a_url_names_a_directory_but_never_a_host() {
        let of = |url| directory(&StoreUrl::parse(url).unwrap());
        assert_eq!(of("file:locks").unwrap(), Path::new("locks"));
        assert_eq!(of("file:///var/lock/app").unwrap(), Path::new("/var/lock/app"));
        assert_eq!(of("file:/var/lock/app").unwrap(), Path::new("/var/lock/app"));
        assert!(matches!(of("file://server/share"), Err(Error::Invalid { .. })));
    }
}
