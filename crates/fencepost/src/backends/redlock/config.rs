//! What a `redlock:` URL says.

use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::quorum::MAX_NODES;
use crate::backends::common::parameter::Parameter;
use crate::backends::common::tls::TlsSettings;
use crate::backends::redis::config::{Address, Config as NodeConfig};
use crate::options::DEFAULT_TTL;
use crate::url::StoreUrl;
use crate::{Error, Result, format_duration};

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);
const DEFAULT_MAX_TTL: Duration = Duration::from_secs(60);
/// A shorter quarantine leaves little room for wrong server clocks.
const COMFORTABLE_QUARANTINE: Duration = Duration::from_secs(30);
/// A proposal moves a counter by at most this from the node's own clock.
const MOST_BOUND: Duration = Duration::from_secs(5);
/// What the arithmetic of leases allows for anyway.
const LEAST_DRIFT: f64 = 0.01;

/// What a `redlock:` URL takes beside `ttl`.
pub(in crate::backends) const PARAMETERS: &[Parameter] = &[
    Parameter::new("timeout", "2s", "how long a node is waited for where a majority needs its reply"),
    Parameter::new("prefix", "", "stands in front of all keys"),
    Parameter::new("db", "0", "the number of the database on each node"),
    Parameter::new("keys", "lock", "`plain` makes the lock's key its bare name"),
    Parameter::new("max_ttl", "60s", "the longest ttl; part of the deployment"),
    Parameter::new(
        "quarantine",
        "max_ttl + 1 % + 1s, at least 30s",
        "how long a node that may have lost data does not vote; part of the deployment",
    ),
    Parameter::new("drift", "0.01", "how far apart the rates of clocks may be"),
    Parameter::new("deployment", "", "a name that stands for the list of nodes"),
    Parameter::new("allow", "", "`evicting` accepts nodes that may evict keys"),
    Parameter::new("ca", "", "file of the authorities that nodes with TLS are trusted by"),
    Parameter::new("cert", "", "file of our certificate for nodes with TLS"),
    Parameter::new("key", "", "file of the key of that certificate"),
    Parameter::new("server_name", "", "the name that a certificate must have, if not the host's"),
];

#[derive(Clone, Debug)]
pub(super) struct Config {
    /// The URL for messages, without passwords.
    pub(super) label: String,
    pub(super) nodes: Vec<NodeConfig>,
    pub(super) start: String,
    /// The longest time that a node's reply is waited for.
    pub(super) timeout: Duration,
    /// The longest lease. All clients of a deployment agree on it: a quarantine is longer.
    pub(super) max_ttl: Duration,
    /// How long a node that may have lost data does not vote.
    pub(super) quarantine: Duration,
    /// How much longer than asked a node keeps a key, as clocks may run at rates more than 1 % apart.
    stretch: f64,
    /// Fingerprint of the deployment: how many nodes, and which.
    pub(super) members: String,
    /// The key that says whether a node votes: a name that no lock can have.
    pub(super) node_key: String,
    /// How far a proposal may be from a node's clock, in microseconds, as the scripts take it.
    pub(super) bound_us: String,
}

impl Config {
    pub(super) fn from_url(mut url: StoreUrl) -> Result<Self> {
        let label = url.to_string();
        let n = url.hosts.len();
        if n < 3 {
            return Err(Error::invalid(format!(
                "a redlock URL names at least 3 independent servers, not {n}: one that fails must leave a \
                 majority; for a single server use `redis://host`"
            )));
        }
        if n > MAX_NODES {
            return Err(Error::invalid(format!(
                "a redlock URL names at most {MAX_NODES} servers; 5 are plenty"
            )));
        }
        let max_ttl = max_ttl(&mut url)?;
        let drift = drift(url.take("drift"))?;
        let quarantine = quarantine(&mut url, max_ttl, drift)?;
        let deployment = url.take("deployment");
        let nodes = Self::nodes(&mut url)?;
        let members = members(&nodes, deployment.as_deref())?;
        let (prefix, start, timeout) = (&nodes[0].prefix, nodes[0].start.clone(), nodes[0].timeout);
        Ok(Self {
            label,
            node_key: format!("{{{prefix}fencepost}}:node"),
            nodes,
            bound_us: bound(quarantine).as_micros().to_string(),
            start,
            timeout,
            max_ttl,
            quarantine,
            stretch: drift - LEAST_DRIFT,
            members,
        })
    }

    /// What the URL says of each node, in the terms of a single server's URL.
    fn nodes(url: &mut StoreUrl) -> Result<Vec<NodeConfig>> {
        let database = match url.take("db") {
            Some(database) => format!("/{database}"),
            None => std::mem::take(&mut url.path),
        };
        let hosts = std::mem::take(&mut url.hosts);
        let tls = hosts.iter().any(|host| host.scheme.as_deref() == Some("rediss"));
        let mut nodes = Vec::with_capacity(hosts.len());
        for host in hosts {
            let mut one = url.clone();
            one.scheme = host.scheme.clone().unwrap_or_else(|| "redis".to_owned());
            if !matches!(one.scheme.as_str(), "redis" | "rediss") {
                return Err(Error::invalid("a node of a redlock URL is a `redis://` or `rediss://` server"));
            }
            if tls && one.scheme == "redis" {
                // What only its neighbours need is not unknown.
                TlsSettings::take(&mut one)?;
            }
            (one.user, one.password) = host.login.clone().unwrap_or_default();
            one.path.clone_from(&database);
            one.hosts = vec![host];
            let mut node = NodeConfig::from_url_with(one, DEFAULT_TIMEOUT)?;
            if node.allow_replica {
                return Err(Error::invalid(
                    "a replica cannot vote; `allow=replica` makes no sense with redlock",
                ));
            }
            node.label = node.label.split('?').next().unwrap_or_default().to_owned();
            nodes.push(node);
        }
        Ok(nodes)
    }

    /// How long a node must keep a key for a lease of `ttl`.
    pub(super) fn key_life(&self, ttl: Duration) -> Duration {
        ttl + ttl.mul_f64(self.stretch)
    }

    pub(super) fn check_ttl(&self, ttl: Duration) -> Result<()> {
        check_ttl(ttl, self.max_ttl)
    }
}

/// The ttl of locks that name none, by a URL and its parameter `ttl`.
pub(in crate::backends) fn default_ttl(url: &StoreUrl, ttl: Option<Duration>) -> Result<Duration> {
    let max_ttl = max_ttl(&mut url.clone())?;
    let ttl = ttl.unwrap_or(DEFAULT_TTL.min(max_ttl));
    check_ttl(ttl, max_ttl)?;
    Ok(ttl)
}

fn max_ttl(url: &mut StoreUrl) -> Result<Duration> {
    let max_ttl = url.take_duration("max_ttl")?.unwrap_or(DEFAULT_MAX_TTL);
    if max_ttl < Duration::from_millis(10) || max_ttl > Duration::from_secs(24 * 3600) {
        return Err(Error::invalid("parameter `max_ttl` must be between 10ms and 24h"));
    }
    Ok(max_ttl)
}

/// Refuses a ttl that a quarantine would not outlast.
fn check_ttl(ttl: Duration, max_ttl: Duration) -> Result<()> {
    if ttl <= max_ttl {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "a ttl of {} is longer than this deployment's max_ttl of {}; use a ttl of a few seconds, which is \
         renewed while the lock is held, or change `max_ttl` in the URL of every client and run \
         `fencepost init --reconfigure`",
        format_duration(ttl),
        format_duration(max_ttl)
    )))
}

/// How far a proposal may be from a node's clock. After a loss of data, tokens stay in order as long as the
/// clocks of the servers are right within `(quarantine - 2.2 * bound) / 2`: a counter may be behind the clock
/// by a fifth of the bound.
fn bound(quarantine: Duration) -> Duration {
    (quarantine / 6).min(MOST_BOUND)
}

fn drift(text: Option<String>) -> Result<f64> {
    let Some(text) = text else { return Ok(LEAST_DRIFT) };
    match text.parse::<f64>() {
        Ok(drift) if (LEAST_DRIFT..=0.5).contains(&drift) => Ok(drift),
        _ => Err(Error::invalid(format!(
            "parameter `drift` is how far apart the rates of clocks may be, from `0.01` (the default) to \
             `0.5`, not `{text}`"
        ))),
    }
}

fn quarantine(url: &mut StoreUrl, max_ttl: Duration, drift: f64) -> Result<Duration> {
    // Longer than every lease that a node can have granted before it lost its data.
    let least = max_ttl.mul_f64(1.0 + drift) + max_ttl.mul_f64(drift - LEAST_DRIFT) + Duration::from_secs(1);
    let Some(quarantine) = url.take_duration("quarantine")? else {
        return Ok(least.max(COMFORTABLE_QUARANTINE));
    };
    if quarantine < least {
        return Err(Error::invalid(format!(
            "parameter `quarantine` must be at least {}ms with a max_ttl of {}: a node that lost its data \
             must not vote while a lock that it granted may be held",
            least.as_micros().div_ceil(1000),
            format_duration(max_ttl)
        )));
    }
    if quarantine < COMFORTABLE_QUARANTINE {
        tracing::warn!(
            quarantine = %format_duration(quarantine),
            "a quarantine below 30s keeps tokens in order after a loss of data only if the clocks of the \
             servers are right within three tenths of it"
        );
    }
    Ok(quarantine)
}

/// The fingerprint that keeps clients which count majorities of different sets off the same nodes.
fn members(nodes: &[NodeConfig], deployment: Option<&str>) -> Result<String> {
    let mut names: Vec<String> = nodes.iter().map(address).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Error::invalid(format!("the redlock URL names `{}` twice", pair[0])));
    }
    let text = deployment.map_or_else(|| names.join("\n"), |name| format!("deployment {name}"));
    let hash = Sha256::digest(text.as_bytes());
    let hash: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{}-{hash}", nodes.len()))
}

fn address(node: &NodeConfig) -> String {
    match &node.address {
        Address::Tcp { host, port } => format!("{}:{port}/{}", host.to_ascii_lowercase(), node.database),
        Address::Unix(path) => path.display().to_string(),
        // Their schemes name none.
        Address::Sentinel(_) => node.label.clone(),
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
    fn each_node_has_its_own_scheme_and_login() {
        let config = parse("redlock:redis://u:p@a,rediss://b:7000,:q@c?ca=/x&prefix=app:&db=2").unwrap();
        assert_eq!(config.nodes.len(), 3);
        assert_eq!(config.nodes.iter().filter(|node| node.tls.is_some()).count(), 1);
        let logins: Vec<_> = config
            .nodes
            .iter()
            .map(|node| (node.user.as_deref(), node.password.as_ref().map(crate::url::Password::reveal)))
            .collect();
        assert_eq!(logins, [(Some("u"), Some("p")), (Some("u"), Some("p")), (None, Some("q"))]);
        assert!(config.nodes.iter().all(|node| node.database == 2 && node.prefix == "app:"));
        assert_eq!(config.nodes[1].label, "rediss://u@b:7000/2");
        assert_eq!(parse("redlock://a,b,c/3").unwrap().nodes[2].database, 3);
    }

    #[test]
    fn the_order_of_the_nodes_does_not_matter_but_which_they_are_does() {
        let members = |text| parse(text).unwrap().members;
        assert_eq!(members("redlock://a,b,c"), members("redlock://c:6379,A,b"));
        assert_ne!(members("redlock://a,b,c"), members("redlock://a,b,d"));
        assert_ne!(members("redlock://a,b,c"), members("redlock://a,b,c/1"));
        assert_eq!(members("redlock://a,b,c?deployment=x"), members("redlock://d,e,f?deployment=x"));
        assert_ne!(members("redlock://a,b,c?deployment=x"), members("redlock://a,b,c,d?deployment=x"));
    }

    #[test]
    fn a_quarantine_outlasts_every_lease() {
        let config = parse("redlock://a,b,c").unwrap();
        assert_eq!(config.max_ttl, DEFAULT_MAX_TTL);
        assert_eq!(config.quarantine, Duration::from_millis(61_600));
        assert_eq!(config.bound_us, "5000000");
        let config = parse("redlock://a,b,c?max_ttl=1s&quarantine=3s").unwrap();
        assert_eq!(config.bound_us, "500000");
        assert!(config.check_ttl(Duration::from_secs(1)).is_ok());
        assert!(config.check_ttl(Duration::from_millis(1001)).is_err());
        let config = parse("redlock://a,b,c?drift=0.11&max_ttl=10s").unwrap();
        assert_eq!(config.key_life(Duration::from_secs(10)), Duration::from_secs(11));
        assert!(config.quarantine >= COMFORTABLE_QUARANTINE);
    }

    #[test]
    fn locks_that_name_no_ttl_get_one_that_the_deployment_allows() {
        let ttl = |text: &str, ttl: Option<u64>| {
            default_ttl(&StoreUrl::parse(text).unwrap(), ttl.map(Duration::from_secs))
        };
        assert_eq!(ttl("redlock://a,b,c", None).unwrap(), DEFAULT_TTL);
        assert_eq!(ttl("redlock://a,b,c?max_ttl=5s", None).unwrap(), Duration::from_secs(5));
        assert_eq!(ttl("redlock://a,b,c?max_ttl=5s", Some(2)).unwrap(), Duration::from_secs(2));
        assert!(matches!(ttl("redlock://a,b,c?max_ttl=5s", Some(6)), Err(Error::Invalid { .. })));
    }

    #[test]
    fn the_shortest_quarantine_is_said_so_that_it_is_accepted() {
        let error = parse("redlock://a,b,c?max_ttl=5s&quarantine=6s").unwrap_err().to_string();
        let least = error.split_once("at least ").unwrap().1.split_once(' ').unwrap().0;
        assert_eq!(least, "6050ms");
        parse(&format!("redlock://a,b,c?max_ttl=5s&quarantine={least}")).unwrap();
    }

    #[test]
    fn the_table_has_each_parameter_and_no_other() {
        let value = |name: &str| match name {
            "timeout" | "max_ttl" => "5s",
            "quarantine" => "30s",
            "db" => "1",
            "drift" => "0.02",
            "keys" => "plain",
            "allow" => "evicting",
            _ => "x",
        };
        let words = |one: &Parameter| format!("{}={}", one.name, value(one.name));
        let all = PARAMETERS.iter().map(words).collect::<Vec<_>>().join("&");
        parse(&format!("redlock:rediss://a,b,c?{all}")).unwrap();
        for name in ["ttl", "other"] {
            assert!(parse(&format!("redlock:rediss://a,b,c?{all}&{name}=1s")).is_err(), "{name}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (text, word) in [
            ("redlock://a,b", "redis://"),
            ("redlock://", "redis://"),
            ("redlock://a,b,A", "twice"),
            ("redlock:redis://a,b,http://c", "rediss://"),
            ("redlock://a,b,c?quarantine=10s", "quarantine"),
            ("redlock://a,b,c?drift=0.001", "drift"),
            ("redlock://a,b,c?drift=2%25", "drift"),
            ("redlock://a,b,c?allow=replica", "replica"),
            ("redlock://a,b,c?max_ttl=0s", "max_ttl"),
            ("redlock://a,b,c?tll=1s", "`max_ttl`"),
            ("redlock://a,b,c/x", "database"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{text}: {error}");
            assert!(error.to_string().contains(word), "{text}: {error}");
        }
        let many: Vec<_> = (0..16).map(|node| format!("h{node}")).collect();
        assert!(parse(&format!("redlock://{}", many.join(","))).is_err());
    }

    proptest! {
        #[test]
        fn no_url_makes_it_panic_or_show_a_password(
            text in crate::url::tests::nearly_a_url("redlock|redlock:redis|redlock:rediss"),
        ) {
            // What comes after the login may look like one, and is a host or a path then.
            let shown = match parse(&text) {
                Ok(config) => format!("{config:?}"),
                Err(error) => error.to_string(),
            };
            prop_assert!(!shown.contains("s3cret"), "{shown}");
        }
    }
}
