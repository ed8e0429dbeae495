//! What a `zookeeper://` URL says.

use std::time::Duration;

use super::driver::{CallError, Cause, ErrorCode};
use super::keys;
use crate::backends::common::parameter::Parameter;
use crate::url::{Host, Password, StoreUrl};
use crate::{Error, FencingToken, Result};

pub(super) const DEFAULT_PORT: u16 = 2181;
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);
const DEFAULT_PREFIX: &str = "fencepost";

pub(super) const PARAMETERS: &[Parameter] = &[
    Parameter::new("prefix", DEFAULT_PREFIX, "the folder below the chroot that has a folder for each lock"),
    Parameter::new("acl", "", "`open` accepts, with a login, folders in which others may delete nodes"),
    Parameter::new("timeout", "2s", "the longest that one request, or a connect, may take"),
];

pub(crate) struct Config {
    /// The URL for messages, without its password.
    pub(super) label: String,
    pub(super) servers: Vec<(String, u16)>,
    /// The folder that has a folder for each name.
    pub(super) base: String,
    /// `user:password`.
    pub(super) login: Option<Password>,
    /// With a login: a lock's folder must not let others delete our nodes.
    pub(super) checks_folders: bool,
    /// The longest that one round trip, or a connect, may take.
    pub(super) timeout: Duration,
}

impl Config {
    pub(super) fn from_url(mut url: StoreUrl) -> Result<Self> {
        let label = url.to_string();
        let prefix = url.take("prefix").unwrap_or_else(|| DEFAULT_PREFIX.to_owned());
        let timeout = url.take_duration("timeout")?.unwrap_or(DEFAULT_TIMEOUT);
        if timeout < Duration::from_millis(1) {
            return Err(Error::invalid("parameter `timeout` must be at least 1ms"));
        }
        if url.hosts.is_empty() {
            return Err(Error::invalid(
                "a zookeeper URL names the servers of one ensemble, as in `zookeeper://a:2181,b:2181/chroot`",
            ));
        }
        check_path(&url.path)?;
        check_path(&prefix)?;
        let base = keys::base(&url.path, &prefix);
        if base.is_empty() || base == "/zookeeper" || base.starts_with("/zookeeper/") {
            return Err(Error::invalid(
                "locks need a node of their own: give a path in the URL or the parameter `prefix`, and not \
                 `/zookeeper`, which is the server's",
            ));
        }
        let port = |host: &Host| (host.name.clone(), host.port.unwrap_or(DEFAULT_PORT));
        let servers = url.hosts.iter().map(port).collect();
        let login = match (url.user.take(), url.password.take()) {
            (Some(user), Some(password)) => Some(Password::new(format!("{user}:{}", password.reveal()))),
            (None, None) => None,
            _ => {
                return Err(Error::invalid(
                    "a login has a user and a password; write `zookeeper://user:password@host`",
                ));
            }
        };
        let checks_folders = match url.take("acl").as_deref() {
            None => login.is_some(),
            Some("open") if login.is_some() => false,
            Some(_) => {
                return Err(Error::invalid(
                    "the parameter `acl` is `open`, for a URL with a login whose nodes may be in \
                     folders of others",
                ));
            }
        };
        url.finish()?;
        Ok(Self { label, servers, base, login, checks_folders, timeout })
    }

    pub(super) fn login(&self) -> Option<&str> {
        self.login.as_ref().map(Password::reveal)
    }

    /// The token of a transaction.
    pub(super) fn token(&self, zxid: i64) -> Result<FencingToken> {
        let token = u64::try_from(zxid).ok().and_then(FencingToken::new);
        token.ok_or_else(|| self.backend(format!("transaction {zxid:#x} is too large for a token")))
    }

    pub(super) fn unavailable(&self, source: impl Into<crate::Source>) -> Error {
        Error::Unavailable { store: self.label.clone(), source: source.into() }
    }

    pub(super) fn backend(&self, source: impl Into<crate::Source>) -> Error {
        Error::Backend { store: self.label.clone(), source: source.into() }
    }
}

impl From<CallError> for Error {
    fn from(CallError { cause, path, config }: CallError) -> Self {
        let store = &config.label;
        match cause {
            Cause::Refused(ErrorCode::NO_AUTH | ErrorCode::AUTH_FAILED) => Self::config(format!(
                "{store} does not let us use the node `{path}`; give the login it was made with in the URL, \
                 as in `zookeeper://user:password@host`, or change the node's ACL"
            )),
            Cause::Refused(ErrorCode::UNIMPLEMENTED) => {
                Self::config(format!("{store} is too old; Fencepost needs ZooKeeper 3.5 or newer"))
            }
            Cause::Refused(ErrorCode::NO_NODE) => config.unavailable(format!("`{path}` was taken away")),
            Cause::Refused(code) => config.backend(format!("`{path}`: {code:?}")),
            Cause::Garbled(why) => config.backend(why.to_string()),
            Cause::NotSent(why) | Cause::Unanswered(why) | Cause::ConnectionLost(why) => {
                config.unavailable(why.to_string())
            }
        }
    }
}

/// Refuses what servers refuse in a path.
fn check_path(path: &str) -> Result<()> {
    let wrong = |part: &str| part == "." || part == ".." || part.contains(|c: char| c.is_control());
    if path.len() > 512 || path.split('/').any(wrong) {
        return Err(Error::invalid(
            "a chroot or prefix has at most 512 bytes, no control characters, and no part that is `.` or \
             `..`",
        ));
    }
    Ok(())
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Config> {
        Config::from_url(StoreUrl::parse(text)?)
    }

    #[test]
    fn urls_say_where_and_how() {
        let config = parse("zookeeper://me:p%40ss@a,b:2182/app?prefix=jobs/x&timeout=500ms").unwrap();
        assert_eq!(config.servers, [("a".to_owned(), 2181), ("b".to_owned(), 2182)]);
        assert_eq!((config.base.as_str(), config.timeout), ("/app/jobs/x", Duration::from_millis(500)));
        assert_eq!(config.login(), Some("me:p@ss"));
        assert!(!format!("{config:?}").contains("p@ss") && !config.label.contains("p@ss"));
        assert_eq!(parse("zookeeper://a").unwrap().base, "/fencepost");
        assert_eq!(parse("zookeeper://a/locks?prefix=").unwrap().base, "/locks");
    }

    #[test]
    fn the_table_has_every_parameter() {
        let refusal = parse("zookeeper://a?x=1").unwrap_err().to_string();
        let (_, known) = refusal.split_once("known are ").unwrap();
        let mut names: Vec<_> = PARAMETERS.iter().map(|one| format!("`{}`", one.name)).collect();
        names.sort_unstable();
        assert_eq!(known, names.join(", "));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for text in [
            "zookeeper://",
            "zookeeper://me@a",
            "zookeeper://:secret@a",
            "zookeeper://a?prefix=",
            "zookeeper://a/zookeeper?prefix=",
            "zookeeper://a/x/../y",
            "zookeeper://a?timeout=0s",
            "zookeeper://a?session_timeout=5s",
            "zookeeper://a?acl=open",
            "zookeeper://me:secret@a?acl=private",
        ] {
            assert!(matches!(parse(text), Err(Error::Invalid { .. })), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_url_makes_it_panic_or_show_a_password(text in crate::url::tests::nearly_a_url("zookeeper")) {
            // What is behind the login may look like one, and is a host or a path then.
            let shown = match parse(&text) {
                Ok(config) => format!("{config:?}"),
                Err(error) => error.to_string(),
            };
            prop_assert!(!shown.contains("s3cret"), "{shown}");
        }
    }
}
