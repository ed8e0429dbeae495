//! What an `etcd://` or `etcds://` URL says.

use std::time::Duration;

use crate::backends::common::parameter::Parameter;
use crate::backends::common::tls::TlsSettings;
use crate::url::{Password, StoreUrl};
use crate::{Error, Result};

const DEFAULT_PORT: u16 = 2379;
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) const PARAMETERS: &[Parameter] = &[
    Parameter::new("timeout", "2s", "the longest that one request may take, with its repetitions"),
    Parameter::new("prefix", "", "what every key begins with, before the name"),
    Parameter::new("ca", "", "a file of authorities to trust instead of the system's, with `etcds`"),
    Parameter::new("cert", "", "our certificate, with `etcds` and `key`"),
    Parameter::new("key", "", "the private key of `cert`"),
    Parameter::new("server_name", "", "the name that the server's certificate must have, if not the host"),
];

#[derive(Clone)]
pub(super) struct Config {
    /// The URL for messages, without its password.
    pub(super) label: String,
    /// The members to talk to, in the order they are tried.
    pub(super) endpoints: Vec<(String, u16)>,
    pub(super) login: Option<(String, Password)>,
    pub(super) prefix: String,
    /// The longest that one request may take, with all its repetitions.
    pub(super) timeout: Duration,
    pub(super) tls: Option<TlsSettings>,
}

impl Config {
    pub(super) fn from_url(mut url: StoreUrl) -> Result<Self> {
        let label = url.to_string();
        let prefix = url.take("prefix").unwrap_or_default();
        if prefix.len() > 128 || prefix.contains('\0') {
            return Err(Error::invalid("parameter `prefix` may have at most 128 bytes and no NUL"));
        }
        let timeout = url.take_duration("timeout")?.unwrap_or(DEFAULT_TIMEOUT);
        if timeout < Duration::from_millis(1) {
            return Err(Error::invalid("parameter `timeout` must be at least 1ms"));
        }
        if url.hosts.is_empty() || !url.path.trim_start_matches('/').is_empty() {
            return Err(Error::invalid(format!(
                "an {} URL names the members of a cluster and no path, as in `{}://a:2379,b:2379,c:2379`; a \
                 path in front of all names is the parameter `prefix`",
                url.scheme, url.scheme
            )));
        }
        let endpoints =
            url.hosts.iter().map(|host| (host.name.clone(), host.port.unwrap_or(DEFAULT_PORT))).collect();
        let tls = (url.scheme == "etcds").then(|| TlsSettings::take(&mut url)).transpose()?;
        let login = match (url.user.take(), url.password.take()) {
            (None, None) => None,
            (Some(user), Some(password)) => Some((user, password)),
            _ => {
                return Err(Error::invalid(
                    "etcd knows users with a password; write `etcd://user:password@host`",
                ));
            }
        };
        url.finish()?;
        Ok(Self { label, endpoints, login, prefix, timeout, tls })
    }
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
        let config = parse("etcd://u:p@a,b:1,[::1]:2?prefix=app/&timeout=500ms").unwrap();
        let endpoints = [("a", 2379), ("b", 1), ("::1", 2)].map(|(host, port)| (host.to_owned(), port));
        assert_eq!(config.endpoints, endpoints);
        assert_eq!((config.prefix.as_str(), config.timeout), ("app/", Duration::from_millis(500)));
        assert_eq!(config.login, Some(("u".to_owned(), Password::new("p".to_owned()))));
        assert!(parse("etcds://h?ca=/a&cert=/c&key=/k&server_name=n").unwrap().tls.is_some());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for text in [
            "etcd://",
            "etcd://h/path",
            "etcd://user@h",
            "etcd://:password@h",
            "etcd://h?ca=/x",
            "etcds://h?cert=/x",
            "etcd://h?timeout=0s",
        ] {
            assert!(matches!(parse(text), Err(Error::Invalid { .. })), "{text}");
        }
    }

    #[test]
    fn each_parameter_of_the_table_is_taken_and_no_other() {
        let value = |name: &str| if name == "timeout" { "1s" } else { "x" };
        let mut listed: Vec<_> = PARAMETERS.iter().map(|parameter| parameter.name).collect();
        let words: Vec<_> = listed.iter().map(|name| format!("{name}={}", value(name))).collect();
        parse(&format!("etcds://h?{}", words.join("&"))).unwrap();
        let error = parse("etcds://h?other=x").unwrap_err().to_string();
        let known = error.split_once("known are ").unwrap().1;
        listed.sort_unstable();
        assert_eq!(known.replace('`', ""), listed.join(", "));
    }

    proptest! {
        #[test]
        fn no_url_makes_it_panic_or_show_a_password(text in crate::url::tests::nearly_a_url("etcd|etcds")) {
            // What is behind the login may look like one, and is a host or a path then.
            let shown = match parse(&text) {
                Ok(config) => format!("{config:?}"),
                Err(error) => error.to_string(),
            };
            prop_assert!(!shown.contains("s3cret"), "{shown}");
        }
    }
}
