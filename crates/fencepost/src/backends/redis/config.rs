//! What a `redis://`, `rediss://` or `redis+unix://` URL says, and most of one of Sentinel.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::driver::batch::Replicas;
use super::sentinel::config::{Quarantine, Sentinels};
use crate::backends::common::parameter::Parameter;
use crate::backends::common::tls::TlsSettings;
use crate::url::{Host, Password, StoreUrl};
use crate::{Error, Result};

const DEFAULT_PORT: u16 = 6379;
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);

/// What a URL may set, in the order of the page.
pub(in crate::backends) const PARAMETERS: &[Parameter] =
    &[TIMEOUT, DB, PREFIX, KEYS, ALLOW, REPLICAS, CA, CERT, KEY, SERVER_NAME];

/// And one of a cluster.
pub(in crate::backends) const CLUSTER_PARAMETERS: &[Parameter] =
    &[TIMEOUT, PREFIX, KEYS, ALLOW_CLUSTER, REPLICAS, CA, CERT, KEY, SERVER_NAME];

const TIMEOUT: Parameter =
    Parameter::new("timeout", "2s", "the longest that a connect or one round trip may take");
const DB: Parameter =
    Parameter::new("db", "0", "the database, with `redis+unix`; with a host, write `/2` after it");
pub(super) const PREFIX: Parameter = Parameter::new("prefix", "", "what every key begins with");
pub(super) const KEYS: Parameter =
    Parameter::new("keys", "lock", "`plain` makes the bare name the key, as clients of other make have it");
const ALLOW: Parameter =
    Parameter::new("allow", "", "accepts a server that is `evicting` or a `replica`: exclusion is gone then");
const ALLOW_CLUSTER: Parameter = Parameter::new(
    "allow",
    "",
    "accepts servers that are `evicting`, and without a warning a `failover` that breaks exclusion",
);
pub(super) const REPLICAS: Parameter =
    Parameter::new("replicas", "0", "how many replicas must have a grant before it counts");
const CA: Parameter =
    Parameter::new("ca", "", "a file of authorities to trust instead of the system's, with `rediss`");
const CERT: Parameter = Parameter::new("cert", "", "our certificate, with `rediss` and `key`");
pub(super) const KEY: Parameter = Parameter::new("key", "", "the private key of `cert`");
const SERVER_NAME: Parameter =
    Parameter::new("server_name", "", "the name that the server's certificate must have, if not the host");

#[derive(Clone)]
pub(in crate::backends) struct Config {
    /// The URL for messages, without its password.
    pub(in crate::backends) label: String,
    pub(in crate::backends) address: Address,
    pub(in crate::backends) user: Option<String>,
    pub(in crate::backends) password: Option<Password>,
    pub(in crate::backends) database: u32,
    pub(in crate::backends) prefix: String,
    /// What the key of a lock begins with, before its name.
    pub(in crate::backends) start: String,
    /// The longest that one round trip, or a connect, may take.
    pub(in crate::backends) timeout: Duration,
    pub(in crate::backends) allow_evicting: bool,
    pub(in crate::backends) allow_replica: bool,
    pub(in crate::backends) allow_failover: bool,
    /// What a grant has to reach before it counts.
    pub(in crate::backends) replicas: Option<Replicas>,
    pub(in crate::backends) tls: Option<TlsSettings>,
    /// The nodes of a cluster that are asked first for the others.
    pub(in crate::backends) seeds: Vec<NodeAddress>,
}

/// Host and port.
pub(in crate::backends) type NodeAddress = (String, u16);

#[derive(Clone, Debug)]
pub(in crate::backends) enum Address {
    Tcp {
        host: String,
        port: u16,
    },
    Unix(PathBuf),
    /// Wherever the master is.
    Sentinel(Sentinels),
}

impl Config {
    pub(in crate::backends) fn from_url(url: StoreUrl) -> Result<Self> {
        Self::from_url_with(url, DEFAULT_TIMEOUT)
    }

    pub(in crate::backends) fn from_url_with(mut url: StoreUrl, timeout: Duration) -> Result<Self> {
        let label = url.to_string();
        let prefix = url.take("prefix").unwrap_or_default();
        if prefix.len() > 128 || prefix.contains('\0') {
            return Err(Error::invalid("parameter `prefix` may have at most 128 bytes and no NUL"));
        }
        let plain = url.take_choice("keys", &[("lock", false), ("plain", true)])?.unwrap_or(false);
        let start = if plain { prefix.clone() } else { format!("{prefix}lock:") };
        let timeout = url.take_duration("timeout")?.unwrap_or(timeout);
        if timeout < Duration::from_millis(1) {
            return Err(Error::invalid("parameter `timeout` must be at least 1ms"));
        }
        let (mut allow_evicting, mut allow_replica, mut allow_failover) = (false, false, false);
        for word in url.take("allow").unwrap_or_default().split(',').filter(|word| !word.is_empty()) {
            match word {
                "evicting" => allow_evicting = true,
                "replica" => allow_replica = true,
                "failover" if url.scheme.ends_with("+cluster") => allow_failover = true,
                _ => {
                    let third = if url.scheme.ends_with("+cluster") { ", `failover`" } else { "" };
                    let message =
                        format!("parameter `allow` takes `evicting`, `replica`{third}, not `{word}`");
                    return Err(Error::invalid(message));
                }
            }
        }
        let replicas = Self::replicas(&mut url, timeout)?;
        let seeds = Self::seeds(&url)?;
        let (mut address, database) = match seeds.first() {
            Some((host, port)) => (Address::Tcp { host: host.clone(), port: *port }, 0),
            None => Self::address(&mut url)?,
        };
        let mut sentinel_tls = false;
        if let Address::Sentinel(_) = address {
            if allow_replica {
                return Err(Error::invalid("parameter `allow` takes `evicting` here, not `replica`"));
            }
            let choice = url.take_choice("sentinel_tls", &[("yes", true), ("no", false)])?;
            sentinel_tls = choice.unwrap_or(false);
        }
        let server_tls = url.scheme.starts_with("rediss");
        let tls = (server_tls || sentinel_tls).then(|| TlsSettings::take(&mut url)).transpose()?;
        if let Address::Sentinel(sentinels) = &mut address {
            // Each has its own name.
            sentinels.tls = tls.as_ref().filter(|_| sentinel_tls).map(TlsSettings::of_another_server);
        }
        let tls = tls.filter(|_| server_tls);
        let (user, password) = (url.user.take(), url.password.take());
        if user.is_some() && password.is_none() {
            return Err(Error::invalid(
                "the URL has a user but no password; write `redis://user:password@host`, or \
                 `redis://:password@host` for a password alone",
            ));
        }
        url.finish()?;
        Ok(Self {
            label,
            address,
            user,
            password,
            database,
            prefix,
            start,
            timeout,
            allow_evicting,
            allow_replica,
            allow_failover,
            replicas,
            tls,
            seeds,
        })
    }

    pub(in crate::backends) fn is_cluster(&self) -> bool {
        !self.seeds.is_empty()
    }

    /// The same for one node of the cluster.
    pub(in crate::backends) fn of_node(&self, (host, port): &NodeAddress) -> Self {
        let mut config = self.clone();
        config.label = format!("{}, node {host}:{port},", self.label);
        config.address = Address::Tcp { host: host.clone(), port: *port };
        if let Some(tls) = config.tls.as_mut().filter(|_| host.parse::<IpAddr>().is_ok()) {
            // A certificate is of a name: of the one that the URL has.
            let named = self.seeds.iter().map(|(host, _)| host).find(|host| host.parse::<IpAddr>().is_err());
            tls.server_name = tls.server_name.take().or_else(|| named.cloned());
        }
        config
    }

    fn replicas(url: &mut StoreUrl, timeout: Duration) -> Result<Option<Replicas>> {
        let Some(text) = url.take("replicas") else { return Ok(None) };
        let count = text.parse().ok().filter(|count| *count <= 100);
        let count =
            count.ok_or_else(|| Error::invalid("parameter `replicas` takes a number, 100 at most"))?;
        // Nothing else goes over the connection meanwhile.
        Ok((count > 0).then_some(Replicas { count, within: timeout / 4 }))
    }

    fn seeds(url: &StoreUrl) -> Result<Vec<NodeAddress>> {
        if !url.scheme.ends_with("+cluster") {
            return Ok(Vec::new());
        }
        if url.hosts.is_empty() {
            return Err(Error::invalid(format!(
                "a {} URL names some nodes of the cluster, as in `{}://a:6379,b:6379`",
                url.scheme, url.scheme
            )));
        }
        if !matches!(url.path.as_str(), "" | "/" | "/0") {
            return Err(Error::invalid("a cluster has no database but 0; leave out what follows the hosts"));
        }
        let address = |host: &Host| (host.name.clone(), host.port.unwrap_or(DEFAULT_PORT));
        Ok(url.hosts.iter().map(address).collect())
    }

    pub(in crate::backends) fn is_found_by_sentinel(&self) -> bool {
        matches!(self.address, Address::Sentinel(_))
    }

    /// What a new master waits for.
    pub(super) fn quarantine(&self) -> Option<Quarantine> {
        match &self.address {
            Address::Sentinel(sentinels) => sentinels.quarantine,
            _ => None,
        }
    }

    /// Refuses a ttl that a new master does not wait for.
    pub(super) fn check_ttl(&self, ttl: Duration) -> Result<()> {
        self.quarantine().map_or(Ok(()), |quarantine| quarantine.check_ttl(ttl))
    }

    fn address(url: &mut StoreUrl) -> Result<(Address, u32)> {
        let number = |text: &str| {
            text.parse::<u32>()
                .map_err(|_| Error::invalid(format!("`{text}` is not the number of a database")))
        };
        if url.scheme == "redis+unix" {
            if !url.path.starts_with('/') || !url.hosts.is_empty() {
                return Err(Error::invalid(
                    "a redis+unix URL names a socket: `redis+unix:///run/redis.sock`",
                ));
            }
            // A login after too few slashes would be taken for a part of the path, and shown.
            if url.path.contains('@') {
                return Err(Error::invalid(
                    "the path of a socket with `@` in it is not supported; a password stands between `//` \
                     and the path: `redis+unix://:PASSWORD@/run/redis.sock`",
                ));
            }
            let database = url.take("db").as_deref().map_or(Ok(0), number)?;
            return Ok((Address::Unix(PathBuf::from(&url.path)), database));
        }
        if url.scheme.ends_with("+sentinel") {
            let (sentinels, database) = Sentinels::take(url)?;
            return Ok((Address::Sentinel(sentinels), database.as_deref().map_or(Ok(0), number)?));
        }
        let [host] = url.hosts.as_slice() else {
            return Err(Error::invalid(format!(
                "a {} URL names one server, as in `{}://localhost:6379`",
                url.scheme, url.scheme
            )));
        };
        let database = match url.path.trim_start_matches('/') {
            "" => 0,
            text => number(text)?,
        };
        Ok((Address::Tcp { host: host.name.clone(), port: host.port.unwrap_or(DEFAULT_PORT) }, database))
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
        let config = parse("redis://:pw@h/2?prefix=app:&timeout=500ms&allow=evicting").unwrap();
        assert!(matches!(&config.address, Address::Tcp { host, port: 6379 } if host == "h"));
        assert_eq!((config.database, config.prefix.as_str()), (2, "app:"));
        assert_eq!(config.start, "app:lock:");
        assert_eq!(parse("redis://h?prefix=app:&keys=plain").unwrap().start, "app:");
        assert!(parse("redis://h?keys=bare").is_err());
        assert!(config.allow_evicting && !config.allow_replica && config.tls.is_none());
        let config = parse("redis+unix:///run/r.sock?db=1").unwrap();
        assert!(matches!(&config.address, Address::Unix(path) if path.ends_with("r.sock")));
        assert!(parse("rediss://h?ca=/a&cert=/c&key=/k&server_name=n").unwrap().tls.is_some());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for text in [
            "redis://",
            "redis://a,b",
            "redis://h/x",
            "redis://user@h",
            "redis://h?ca=/x",
            "rediss://h?cert=/x",
            "redis+unix://h/s",
            "redis+unix:/:s3cret@/s",
            "redis://h?allow=all",
            "redis://h?timeout=0s",
        ] {
            assert!(matches!(parse(text), Err(Error::Invalid { .. })), "{text}");
        }
    }

    #[test]
    fn the_table_of_parameters_is_what_urls_may_set() {
        let mut known = std::collections::BTreeSet::new();
        for text in ["redis+unix:///s?other=1", "rediss://h?other=1"] {
            let message = parse(text).unwrap_err().to_string();
            let (_, names) = message.split_once("known are ").unwrap();
            known.extend(names.split(", ").map(|name| name.trim_matches('`').to_owned()));
        }
        let listed: Vec<_> = PARAMETERS.iter().map(|row| row.name).collect();
        assert!(known.iter().all(|name| listed.contains(&name.as_str())), "{known:?}");
        assert_eq!(known.len(), listed.len());
        let config = parse("redis://h?timeout=2s&prefix=&keys=lock&allow=").unwrap();
        assert_eq!(config.timeout, DEFAULT_TIMEOUT);
        assert_eq!((config.start.as_str(), config.database), ("lock:", 0));
    }

    proptest! {
        #[test]
        fn no_url_makes_it_panic_or_show_a_password(
            text in crate::url::tests::nearly_a_url("redis|rediss|redis[+]unix"),
        ) {
            // What follows the login may look like one, and is a host or a path then.
            let shown = match parse(&text) {
                Ok(config) => format!("{config:?}"),
                Err(error) => error.to_string(),
            };
            prop_assert!(!shown.contains("s3cret"), "{shown}");
        }
    }
}
