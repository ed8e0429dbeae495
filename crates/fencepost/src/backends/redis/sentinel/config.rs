//! What a `redis+sentinel://` or `rediss+sentinel://` URL says beside what a `redis://` URL does.

use std::time::Duration;

use crate::backends::common::parameter::Parameter;
use crate::backends::common::tls::TlsSettings;
use crate::backends::redis::config;
use crate::options::DEFAULT_TTL;
use crate::url::{Password, StoreUrl};
use crate::{Error, Result, format_duration};

pub(super) const DEFAULT_PORT: u16 = 26379;
const DEFAULT_MAX_TTL: Duration = Duration::from_secs(10);
/// A waiter is pushed the lock for so long.
const LEAST_MAX_TTL: Duration = Duration::from_secs(1);

/// What a URL may set, in the order of the page.
pub(super) const PARAMETERS: &[Parameter] = &[
    Parameter::new("timeout", "2s", "the longest that finding the master, or one round trip, may take"),
    Parameter::new("failover", "quarantine", "`fast` grants locks at once after a failover: fencing only"),
    Parameter::new("max_ttl", "10s", "the longest ttl; with it grows the pause after a failover"),
    Parameter::new("sentinel_user", "", "the user at the sentinels, which is not that of the master"),
    Parameter::new("sentinel_password", "", "the password at the sentinels"),
    Parameter::new("sentinel_tls", "no", "`yes` if the sentinels speak TLS"),
    config::PREFIX,
    config::KEYS,
    Parameter::new("allow", "", "accepts a server that is `evicting`: exclusion is gone then"),
    config::REPLICAS,
    Parameter::new("ca", "", "a file of authorities to trust instead of the system's"),
    Parameter::new("cert", "", "our certificate, with `key`"),
    config::KEY,
    Parameter::new("server_name", "", "the name that the master's certificate must have, if not its host"),
];

/// Where the sentinels are, and what they are asked for.
#[derive(Clone, Debug)]
pub(in crate::backends) struct Sentinels {
    pub(super) hosts: Vec<(String, u16)>,
    /// The name of the master there.
    pub(super) service: String,
    /// Theirs alone: never the master's.
    pub(super) user: Option<String>,
    pub(super) password: Option<Password>,
    pub(in crate::backends::redis) tls: Option<TlsSettings>,
    /// `None` if locks are granted at once after a failover.
    pub(in crate::backends::redis) quarantine: Option<Quarantine>,
}

/// What a new master waits for.
#[derive(Clone, Copy, Debug)]
pub(in crate::backends::redis) struct Quarantine {
    /// The longest lease.
    pub(in crate::backends::redis) max_ttl: Duration,
}

impl Quarantine {
    /// Refuses a ttl that it would not outlast.
    pub(in crate::backends::redis) fn check_ttl(self, ttl: Duration) -> Result<()> {
        check_ttl(ttl, self.max_ttl)
    }
}

impl Sentinels {
    /// Takes them out of a URL, with the number of the database, if there is one.
    pub(in crate::backends::redis) fn take(url: &mut StoreUrl) -> Result<(Self, Option<String>)> {
        let mut path = url.path.trim_start_matches('/').splitn(2, '/');
        let service = path.next().unwrap_or_default().to_owned();
        let database = path.next().filter(|text| !text.is_empty()).map(str::to_owned);
        if service.is_empty() || url.hosts.is_empty() {
            return Err(Error::invalid(format!(
                "a {0} URL names the sentinels and the service, as in `{0}://s1,s2,s3/mymaster`",
                url.scheme
            )));
        }
        let hosts = url.hosts.iter();
        let hosts: Vec<_> =
            hosts.map(|host| (host.name.to_ascii_lowercase(), host.port.unwrap_or(DEFAULT_PORT))).collect();
        let twice = hosts.iter().enumerate().find(|(at, host)| hosts[..*at].contains(host));
        if let Some((_, (host, port))) = twice {
            return Err(Error::invalid(format!("the URL names the sentinel `{host}:{port}` twice")));
        }
        let (user, password) = (url.take("sentinel_user"), url.take("sentinel_password").map(Password::new));
        if user.is_some() && password.is_none() {
            return Err(Error::invalid("parameter `sentinel_user` needs `sentinel_password`"));
        }
        let quarantine = quarantine(url)?;
        Ok((Self { hosts, service, user, password, tls: None, quarantine }, database))
    }
}

fn quarantine(url: &mut StoreUrl) -> Result<Option<Quarantine>> {
    let slow = url.take_choice("failover", &[("quarantine", true), ("fast", false)])?.unwrap_or(true);
    let given = url.take_duration("max_ttl")?;
    if !slow {
        return match given {
            Some(_) => Err(Error::invalid("parameter `max_ttl` goes with `failover=quarantine`")),
            None => Ok(None),
        };
    }
    let max_ttl = given.unwrap_or(DEFAULT_MAX_TTL);
    if !(LEAST_MAX_TTL..=Duration::from_secs(24 * 3600)).contains(&max_ttl) {
        return Err(Error::invalid("parameter `max_ttl` must be between 1s and 24h"));
    }
    Ok(Some(Quarantine { max_ttl }))
}

/// The ttl of locks that name none, by a URL and its parameter `ttl`.
pub(super) fn default_ttl(url: &StoreUrl, ttl: Option<Duration>) -> Result<Duration> {
    let Some(Quarantine { max_ttl }) = quarantine(&mut url.clone())? else {
        return Ok(ttl.unwrap_or(DEFAULT_TTL));
    };
    let ttl = ttl.unwrap_or(DEFAULT_TTL.min(max_ttl));
    check_ttl(ttl, max_ttl)?;
    Ok(ttl)
}

fn check_ttl(ttl: Duration, max_ttl: Duration) -> Result<()> {
    if ttl <= max_ttl {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "a ttl of {} is longer than the max_ttl of {}, which a new master waits for; use a ttl of a few \
         seconds, which is renewed while the lock is held, or raise `max_ttl` in the URL of every client",
        format_duration(ttl),
        format_duration(max_ttl)
    )))
}

#[cfg(test)]
mod tests {
    use super::super::super::config::{Address, Config};
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Config> {
        Config::from_url(StoreUrl::parse(text)?)
    }

    fn sentinels(text: &str) -> Sentinels {
        match parse(text).unwrap().address {
            Address::Sentinel(sentinels) => sentinels,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_url_names_the_sentinels_the_service_and_the_database() {
        let config = parse("redis+sentinel://u:pw@a,B:7000/main/3").unwrap();
        assert_eq!((config.database, config.user.as_deref()), (3, Some("u")));
        let found = sentinels("redis+sentinel://u:pw@a,B:7000/main/3");
        assert_eq!(found.hosts, [("a".to_owned(), 26379), ("b".to_owned(), 7000)]);
        assert_eq!(found.service, "main");
        assert!(found.user.is_none() && found.password.is_none(), "the master's login is not theirs");
        assert_eq!(found.quarantine.unwrap().max_ttl, DEFAULT_MAX_TTL);
        let found = sentinels("redis+sentinel://a/s?sentinel_user=x&sentinel_password=y&failover=fast");
        assert_eq!(found.user.as_deref(), Some("x"));
        assert_eq!(found.password.as_ref().map(Password::reveal), Some("y"));
        assert!(found.quarantine.is_none());
    }

    #[test]
    fn each_side_has_tls_if_told_to() {
        let tls = |text: &str| (parse(text).unwrap().tls.is_some(), sentinels(text).tls.is_some());
        assert_eq!(tls("redis+sentinel://a/s"), (false, false));
        assert_eq!(tls("rediss+sentinel://a/s?ca=/x&server_name=n"), (true, false));
        assert_eq!(tls("rediss+sentinel://a/s?sentinel_tls=yes"), (true, true));
        assert_eq!(tls("redis+sentinel://a/s?sentinel_tls=yes&ca=/x"), (false, true));
        let both = sentinels("rediss+sentinel://a/s?sentinel_tls=yes&server_name=n");
        assert_eq!(both.tls.unwrap().server_name, None, "it is the master's");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for text in [
            "redis+sentinel://a",
            "redis+sentinel:///s",
            "redis+sentinel://a/s/x",
            "redis+sentinel://a,A:26379/s",
            "redis+sentinel://a/s?sentinel_user=x",
            "redis+sentinel://a/s?failover=slow",
            "redis+sentinel://a/s?failover=fast&max_ttl=3s",
            "redis+sentinel://a/s?max_ttl=500ms",
            "redis+sentinel://a/s?allow=replica",
            "redis+sentinel://a/s?ca=/x",
            "redis+sentinel://a/s?db=1",
            "redis://a?max_ttl=3s",
        ] {
            assert!(matches!(parse(text), Err(Error::Invalid { .. })), "{text}");
        }
    }

    #[test]
    fn locks_that_name_no_ttl_get_one_that_a_new_master_waits_for() {
        let ttl = |text: &str, ttl: Option<u64>| {
            default_ttl(&StoreUrl::parse(text).unwrap(), ttl.map(Duration::from_secs))
        };
        assert_eq!(ttl("redis+sentinel://a/s", None).unwrap(), DEFAULT_MAX_TTL);
        assert_eq!(ttl("redis+sentinel://a/s?max_ttl=60s", None).unwrap(), DEFAULT_TTL);
        assert_eq!(ttl("redis+sentinel://a/s?failover=fast", None).unwrap(), DEFAULT_TTL);
        assert_eq!(ttl("redis+sentinel://a/s?failover=fast", Some(90)).unwrap(), Duration::from_secs(90));
        assert!(matches!(ttl("redis+sentinel://a/s", Some(11)), Err(Error::Invalid { .. })));
    }

    #[test]
    fn the_table_of_parameters_is_what_urls_may_set() {
        let message = parse("rediss+sentinel://a/s?other=1").unwrap_err().to_string();
        let (_, names) = message.split_once("known are ").unwrap();
        let mut known: Vec<_> = names.split(", ").map(|name| name.trim_matches('`')).collect();
        let mut listed: Vec<_> = PARAMETERS.iter().map(|row| row.name).collect();
        known.sort_unstable();
        listed.sort_unstable();
        assert_eq!(known, listed);
    }

    proptest! {
        #[test]
        fn no_url_makes_it_panic_or_show_a_password(
            text in crate::url::tests::nearly_a_url("redis[+]sentinel|rediss[+]sentinel"),
        ) {
            let shown = match parse(&text) {
                Ok(config) => format!("{config:?} {:?}", config.address),
                Err(error) => error.to_string(),
            };
            prop_assert!(!shown.contains("s3cret"), "{shown}");
        }
    }
}
