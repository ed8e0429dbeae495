//! The directory of lock files: whether it is fit for them, and how it is opened.

mod ancestors;

use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, Gid, Mode, OFlags, Stat, fchmod, fchown, fstat, fstatfs, fsync, openat};
use rustix::io::Errno;
use rustix::process::geteuid;

use self::ancestors::Walk;
use crate::{Error, Result, text};

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
pub(crate) struct Directory {
    pub(crate) file: OwnedFd,
    pub(crate) path: PathBuf,
    pub(crate) access: Access,
    /// The permissions of files in it.
    pub(crate) mode: Mode,
    group: Gid,
    /// Its own entry is on the disk, and those of the directories that lead to it.
    on_disk: AtomicBool,
}

/// Why a directory is not used.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error(transparent)]
    System(#[from] std::io::Error),
    #[error(transparent)]
    Refused(#[from] Error),
}

impl From<Errno> for Unfit {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

/// How directories are opened.
pub(crate) const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Directory {
    /// Opens the directory, making it if need be, and refuses one that is not fit.
    pub(crate) fn open(path: &Path, access: Access) -> Result<Self> {
        Self::open_fit(path, access).map_err(|unfit| {
            let error = match unfit {
                Unfit::System(error) => error,
                Unfit::Refused(error) => return error,
            };
            let path = path.display();
            let step = match (error.kind(), access) {
                (ErrorKind::NotFound, Access::Shared) => init_of(&path.to_string()),
                _ => "name another one as `file:///path`".to_owned(),
            };
            let message = format!("lock directory `{path}`: {error}; {step}");
            match error.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                    Error::Unavailable { store: format!("file:{path}"), source: message.into() }
                }
                _ => Error::config(message),
            }
        })
    }

    fn open_fit(path: &Path, access: Access) -> Result<Self, Unfit> {
        let Walk { directory: file, path, closed } = match access {
            Access::Private => ancestors::walk(path)?,
            Access::Shared => {
                let directory = openat(CWD, path, DIRECTORY, Mode::empty())?;
                Walk { directory, path: path.canonicalize()?, closed: false }
            }
        };
        // The type's width and sign differ between machines; the magic numbers have 32 bits.
        if let Some(kind) = network_file_system(fstatfs(&file)?.f_type as u32) {
            let path = path.display();
            return Err(Unfit::Refused(Error::config(format!(
                "lock directory `{path}` is on {kind}, where locks do not reliably exclude other machines, \
                 or survive an outage; use a directory on a local disk (`file:///path`), or a server \
                 (`redis://host`)"
            ))));
        }
        let stat = fstat(&file)?;
        // As open as the directory that they are in.
        let mode = match access {
            Access::Private => 0o600,
            Access::Shared => stat.st_mode & 0o066 | 0o600,
        };
        if access == Access::Private {
            check_private(&stat, &path)?;
            warn_of_readers(&stat, &path, closed);
        }
        let (mode, group) = (Mode::from_raw_mode(mode), Gid::from_raw(stat.st_gid));
        Ok(Self { file, path, access, mode, group, on_disk: AtomicBool::new(false) })
    }

    /// Puts the entries of the directory on the disk, and the first time its own. This or another process of
    /// the user may have made it just now, and the private directories above it.
    pub(crate) fn sync(&self) -> std::io::Result<()> {
        fsync(&self.file)?;
        if self.access == Access::Private && !self.on_disk.load(Ordering::Acquire) {
            let mut file = openat(&self.file, ".", DIRECTORY, Mode::empty())?;
            let mut stat = fstat(&file)?;
            while is_private(&stat) {
                let parent = match openat(&file, "..", DIRECTORY, Mode::empty()) {
                    // Nobody makes directories for us where we may not look.
                    Err(Errno::ACCESS) => break,
                    parent => parent?,
                };
                fsync(&parent)?;
                let above = fstat(&parent)?;
                if (above.st_dev, above.st_ino) == (stat.st_dev, stat.st_ino) {
                    break;
                }
                (file, stat) = (parent, above);
            }
            self.on_disk.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Gives a new file of a shared directory the directory's group, and the permissions that the umask cut.
    pub(crate) fn open_to_others(&self, file: impl AsFd) -> std::io::Result<()> {
        if self.access == Access::Shared {
            // It is not ours to give where we write by other rights than the group's. Then nobody needs it.
            let _ = fchown(&file, None, Some(self.group));
            fchmod(&file, self.mode)?;
        }
        Ok(())
    }
}

/// Ours, and closed to everybody else, as the directories are that we make.
fn is_private(stat: &Stat) -> bool {
    stat.st_uid == geteuid().as_raw() && stat.st_mode & 0o077 == 0
}

/// How to get a directory that users share.
fn init_of(path: &str) -> String {
    format!("make it with `fencepost init --store 'file:{path}?mode=shared'`")
}

fn check_private(stat: &Stat, path: &Path) -> Result<()> {
    let (us, path) = (geteuid().as_raw(), path.display());
    if stat.st_uid != us {
        return Err(Error::config(format!(
            "lock directory `{path}` belongs to user {}, not to us (user {us}); use a directory of your own, \
             or one for all users: {}",
            stat.st_uid,
            init_of("/var/lock/app")
        )));
    }
    if stat.st_mode & 0o022 != 0 {
        return Err(Error::config(format!(
            "lock directory `{path}` can be written by other users; close it with `chmod go-w`, or share it \
             with `?mode=shared`"
        )));
    }
    Ok(())
}

/// Users that only look let no second holder in. A directory that somebody made by hand is not refused for
/// them.
fn warn_of_readers(stat: &Stat, path: &Path, closed: bool) {
    if stat.st_mode & 0o055 != 0 && !closed {
        tracing::warn!(
            "others can look into lock directory `{0}`: they see the names of its locks, and can keep a \
             force-release waiting; close it with `chmod go-rx {0}`, or share it with `?mode=shared`",
            text::printable(&path.display().to_string())
        );
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

    #[test]
    fn network_file_systems_are_known_and_local_ones_are_not() {
        assert_eq!(network_file_system(0x6969), Some("NFS"));
        // ext4, xfs, btrfs, tmpfs, overlay, zfs
        for local in [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0x794C_7630, 0x2FC1_2FC1] {
            assert_eq!(network_file_system(local), None);
        }
    }
}
