//! Which server program is started: Debian's Redis, another version of it, or Valkey.

use std::ffi::OsString;
use std::path::PathBuf;

/// The program that servers run unless told otherwise: what `FENCEPOST_REDIS_SERVER` names, else
/// `redis-server`.
pub fn program() -> PathBuf {
    named("FENCEPOST_REDIS_SERVER").unwrap_or_else(|| "redis-server".into())
}

/// Redis 6.2, where `FENCEPOST_REDIS_6` says where it is.
pub fn redis_6() -> Option<PathBuf> {
    named("FENCEPOST_REDIS_6")
}

/// Valkey 9, where `FENCEPOST_VALKEY` says where it is.
pub fn valkey() -> Option<PathBuf> {
    named("FENCEPOST_VALKEY")
}

/// All of them that are here: [`program`], [`redis_6`] and [`valkey`].
pub fn programs() -> Vec<PathBuf> {
    std::iter::once(program()).chain(redis_6()).chain(valkey()).collect()
}

fn named(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| *value != OsString::new()).map(PathBuf::from)
}

/// Whether a server can be started on this machine.
pub fn is_installed() -> bool {
    let program = program();
    if program.components().count() > 1 { program.is_file() } else { which(&program.to_string_lossy()) }
}

pub(crate) fn which(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}
