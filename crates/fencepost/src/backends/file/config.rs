//! What a `file:` URL says.

use std::path::PathBuf;
use std::time::Duration;

use super::directory::Access;
use crate::backends::common::parameter::Parameter;
use crate::url::StoreUrl;
use crate::{Error, Result};

const TIMEOUT: Duration = Duration::from_secs(2);

pub(super) const PARAMETERS: &[Parameter] = &[
    Parameter::new(
        "mode",
        "private",
        "`private` is for one user: the directory is made with 0700, and one that others may write or move \
         away is refused; `shared` is for everybody who may write into the directory that `fencepost init` \
         or an administrator has made (1777 makes lock files 0666, 0770 makes them 0660)",
    ),
    Parameter::new(
        "durable",
        "no",
        "`yes` writes each token to the disk before its lock is granted and keeps all files, for machines \
         whose clock may be wrong after a restart; with `no` a power cut may lose the last records, and then \
         the wall clock keeps tokens growing",
    ),
    Parameter::new(
        "timeout",
        "2s",
        "How long a call puts up with a file that a stopped process keeps busy without holding the lock; \
         waiting for a lock is bounded by the caller's `wait` instead",
    ),
];

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Config {
    pub(super) directory: PathBuf,
    pub(super) access: Access,
    pub(super) durable: bool,
    pub(super) timeout: Duration,
}

impl Config {
    pub(super) fn from_url(mut url: StoreUrl) -> Result<Self> {
        let access = url.take_choice("mode", &[("private", Access::Private), ("shared", Access::Shared)])?;
        let durable = url.take_choice("durable", &[("yes", true), ("no", false)])?;
        let timeout = url.take_duration("timeout")?;
        let directory = directory(&url)?;
        url.finish()?;
        Ok(Self {
            directory,
            access: access.unwrap_or(Access::Private),
            durable: durable.unwrap_or(false),
            timeout: timeout.unwrap_or(TIMEOUT),
        })
    }
}

/// The directory that a URL names.
fn directory(url: &StoreUrl) -> Result<PathBuf> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn config(url: &str) -> Result<Config> {
        Config::from_url(StoreUrl::parse(url)?)
    }

    #[test]
    fn the_table_has_exactly_the_parameters_that_are_taken_with_their_defaults() {
        let pairs: Vec<_> = PARAMETERS.iter().map(|row| format!("{}={}", row.name, row.default)).collect();
        let all = config(&format!("file:/x?{}", pairs.join("&"))).unwrap();
        assert_eq!(all, config("file:/x").unwrap());
        let refused = config("file:/x?colour=red").unwrap_err().to_string();
        let mut known: Vec<_> = PARAMETERS.iter().map(|row| format!("`{}`", row.name)).collect();
        known.sort();
        assert!(refused.ends_with(&format!("known are {}", known.join(", "))), "{refused}");
    }

    #[test]
    fn a_url_names_a_directory_but_never_a_host() {
        let directory = |url| config(url).map(|config| config.directory);
        assert_eq!(directory("file:locks").unwrap(), Path::new("locks"));
        assert_eq!(directory("file:///var/lock/app").unwrap(), Path::new("/var/lock/app"));
        assert_eq!(directory("file:/var/lock/app").unwrap(), Path::new("/var/lock/app"));
        assert!(matches!(directory("file://server/share"), Err(Error::Invalid { .. })));
    }
}
