//! `init`: makes the lock directory, and for `mode=shared` one that all users of the machine may use.

use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, fchmod, fstat, openat};
use rustix::process::geteuid;

use super::config::Config;
use super::directory::{Access, DIRECTORY, Directory};
use crate::backends::{Init, nothing_to_change};
use crate::url::StoreUrl;
use crate::{Error, Result};

/// Everybody may make files in it, and remove only their own.
const SHARED: Mode = Mode::from_raw_mode(0o1777);
const OTHERS: Mode = Mode::from_raw_mode(0o022);

pub(super) async fn init(url: StoreUrl, what: Init) -> Result<Vec<String>> {
    if what == Init::Change {
        return Err(nothing_to_change(&url));
    }
    let config = Config::from_url(url)?;
    let path = &config.directory;
    let made = match config.access {
        Access::Shared => make_shared(path).map_err(|error| {
            Error::config(format!("lock directory `{}` cannot be made: {error}", path.display()))
        })?,
        Access::Private => false,
    };
    let directory = Directory::open(path, config.access)?;
    let (path, is_open) = (directory.path.display(), !(directory.mode & OTHERS).is_empty());
    Ok(vec![match config.access {
        Access::Private => format!("`{path}` is there, for locks of this user alone"),
        Access::Shared if made => format!("`{path}` was made, for locks of all users of this machine"),
        Access::Shared if is_open => format!("`{path}` is there already"),
        Access::Shared => {
            return Err(Error::config(format!(
                "lock directory `{path}` exists, and only its owner may write into it; name a new one, or \
                 open it with `chmod 1777` while nobody uses it"
            )));
        }
    }])
}

/// Makes a directory for everybody, unless something has that name already.
fn make_shared(path: &Path) -> io::Result<bool> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(false),
        made => made?,
    }
    // Not by its path: others may have put something else there.
    let directory = File::from(openat(CWD, path, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?);
    if fstat(&directory)?.st_uid != geteuid().as_raw() {
        return Ok(false);
    }
    fchmod(&directory, SHARED)?;
    directory.sync_all()?;
    Ok(true)
}
