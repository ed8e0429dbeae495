//! What a `postgres://` URL says.

use std::time::Duration;

use tokio_postgres::config::{Host, SslMode, SslNegotiation, TargetSessionAttrs};

use super::password;
use crate::backends::common::parameter::Parameter;
use crate::backends::common::tls::TlsSettings;
use crate::url::StoreUrl;
use crate::{Error, Result};

/// The parameters of the URL, beside the `ttl` that every store has.
pub(super) const PARAMETERS: &[Parameter] = &[
    Parameter::new("timeout", "2s", "How long one round trip or connect may take"),
    Parameter::new("schema", "fencepost", "Where the tables are; each schema is a space of names of its own"),
    Parameter::new(
        "lock_delay",
        "lease",
        "What a session that ends leaves behind: its leases, or nothing with `0`, so that locks are free \
         at once and a holder may learn that late",
    ),
    Parameter::new(
        "durable",
        "no",
        "With `yes`, a grant or renewal is on disk, and on the standbys that the server waits for, before \
         it counts",
    ),
    Parameter::new(
        "sequence",
        "",
        "The sequence that tokens come from instead of the clock, with its schema as in `public.fence`; \
         implies `durable=yes`",
    ),
    Parameter::new("host", "", "The folder of a unix socket, as in `postgres:///app?host=/run/postgresql`"),
    Parameter::new("port", "5432", "The number of that socket"),
    Parameter::new(
        "sslmode",
        "prefer",
        "TLS: `prefer` if the server has it, whoever it is; `require` and `verify-full` with a checked \
         certificate; `disable`",
    ),
    Parameter::new(
        "allow",
        "",
        "`cleartext` sends the password as it is to a server that asks for that and has not proved who it is",
    ),
    Parameter::new("ca", "", "The file of the authorities to trust instead of the system's"),
    Parameter::new("cert", "", "The file of our own certificate"),
    Parameter::new("key", "", "The file of its key"),
    Parameter::new("server_name", "", "The name in the server's certificate, if it is not the host's"),
    Parameter::new("application_name", "fencepost", "What `pg_stat_activity` shows"),
];

pub(super) const DEFAULT_PORT: u16 = 5432;
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);
pub(super) const DEFAULT_SCHEMA: &str = "fencepost";

/// A peer that answers nothing for this long is gone, on both sides of the connection.
pub(super) const KEEPALIVE: Duration = Duration::from_secs(5);
pub(super) const USER_TIMEOUT: Duration = Duration::from_secs(10);

/// What to do about a pool.
pub(super) const NO_POOL: &str = "connect to PostgreSQL itself or through a pool in session mode; only \
                                  transaction-level locks (`fencepost::postgres::lock_in_transaction`) \
                                  work through a transaction pool";

#[derive(Clone)]
pub(crate) struct Config {
    /// The URL for messages, without its password.
    pub(crate) label: String,
    pub(super) server: tokio_postgres::Config,
    pub(super) schema: String,
    /// The longest that one round trip, or a connect, may take.
    pub(crate) timeout: Duration,
    /// A lease outlives its session.
    pub(super) delay: bool,
    /// A grant or renewal is on disk before it is told.
    pub(super) durable: bool,
    /// With its schema: the functions look nowhere else.
    pub(super) sequence: Option<String>,
    #[cfg_attr(not(feature = "tls"), allow(dead_code))]
    pub(super) encryption: Encryption,
    /// The password may be sent as it is.
    pub(super) cleartext: bool,
}

/// Whether to speak TLS.
#[derive(Clone, Debug)]
pub(super) enum Encryption {
    Off,
    /// If the server does, whoever it is.
    Preferred,
    /// With a server that proves who it is.
    #[cfg_attr(not(feature = "tls"), allow(dead_code))]
    Verified(TlsSettings),
}

impl Config {
    pub(super) fn from_url(mut url: StoreUrl) -> Result<Self> {
        let label = url.to_string();
        let timeout = url.take_duration("timeout")?.unwrap_or(DEFAULT_TIMEOUT);
        if timeout < Duration::from_millis(1) {
            return Err(Error::invalid("parameter `timeout` must be at least 1ms"));
        }
        let schema = url.take("schema");
        let delay = url.take_choice("lock_delay", &[("lease", true), ("0", false)])?.unwrap_or(true);
        let durable = url.take_choice("durable", &[("yes", true), ("no", false)])?;
        let sequence = url.take("sequence").filter(|name| !name.is_empty());
        if sequence.is_some() && durable == Some(false) {
            return Err(Error::invalid(
                "`sequence` goes with `durable=yes`: without, a crash takes numbers of the sequence back, \
                 and tokens repeat",
            ));
        }
        if sequence.as_ref().is_some_and(|name| !name.contains('.')) {
            return Err(Error::invalid(
                "the `sequence` is named with its schema, as in `sequence=public.fence`",
            ));
        }
        let durable = durable.unwrap_or(sequence.is_some());
        let encryption = Self::encryption(&mut url)?;
        let allowed = url.take_choice("allow", &[("cleartext", ())])?.is_some();
        let server = Self::server(&mut url)?;
        url.finish()?;
        // A socket's folder says who serves there.
        let local = server.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)));
        let cleartext = allowed || local || matches!(encryption, Encryption::Verified(_));
        let mut config = Self {
            label,
            server,
            schema: String::new(),
            timeout,
            delay,
            durable,
            sequence,
            encryption,
            cleartext,
        };
        config.set_schema(schema.unwrap_or_else(|| DEFAULT_SCHEMA.to_owned()))?;
        Ok(config)
    }

    /// The same for what keeps resources and grants no locks: it writes data, so it waits for the disk.
    pub(crate) fn for_resources(mut url: StoreUrl) -> Result<Self> {
        for key in ["schema", "lock_delay", "durable", "sequence"] {
            if url.take(key).is_some() {
                return Err(Error::invalid(format!(
                    "parameter `{key}` is for locks, and means nothing to resources"
                )));
            }
        }
        Ok(Self { durable: true, ..Self::from_url(url)? })
    }

    pub(super) fn set_schema(&mut self, schema: String) -> Result<()> {
        if schema.is_empty() || schema.len() > 63 || schema.contains('\0') {
            return Err(Error::invalid("the `schema` is a name of 1 to 63 bytes"));
        }
        if schema.starts_with("pg_") {
            return Err(Error::invalid(format!(
                "the `schema` is one of your own, not `{schema}` of PostgreSQL"
            )));
        }
        self.schema = schema;
        Ok(())
    }

    fn server(url: &mut StoreUrl) -> Result<tokio_postgres::Config> {
        let mut server = tokio_postgres::Config::new();
        for host in &url.hosts {
            server.host(&host.name).port(host.port.unwrap_or(DEFAULT_PORT));
        }
        match (url.take("host"), url.hosts.is_empty()) {
            (Some(folder), true) if folder.starts_with('/') => {
                server.host_path(folder);
                if let Some(port) = url.take("port") {
                    let port = port.parse().map_err(|_| Error::invalid(format!("`{port}` is not a port")))?;
                    server.port(port);
                }
            }
            (None, false) => {}
            _ => {
                return Err(Error::invalid(
                    "a postgres URL names a server, as in `postgres://user@localhost/database`, or the \
                     folder of its socket, as in `postgres:///database?host=/run/postgresql`",
                ));
            }
        }
        if url.hosts.len() > 1 {
            server.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if let Some(user) = url.user.take() {
            server.user(user);
        }
        match url.path.trim_start_matches('/') {
            "" => {}
            database => drop(server.dbname(database)),
        }
        let given = url.password.take().map(Ok);
        if let Some(password) = given.or_else(|| password::find(&server).transpose()).transpose()? {
            server.password(password.reveal());
        }
        server
            .application_name(url.take("application_name").as_deref().unwrap_or("fencepost"))
            .keepalives_idle(KEEPALIVE)
            .keepalives_interval(KEEPALIVE / 2)
            .keepalives_retries(2)
            .tcp_user_timeout(USER_TIMEOUT);
        // Unix sockets have no TLS. Elsewhere the crate takes `Login` for TLS, and leaves it to that.
        if server.get_hosts().iter().all(|host| matches!(host, Host::Unix(_))) {
            server.ssl_mode(SslMode::Disable);
        } else {
            server.ssl_mode(SslMode::Require).ssl_negotiation(SslNegotiation::Direct);
        }
        Ok(server)
    }

    /// A URL that asks for TLS gets a checked certificate, too: encryption alone keeps out nobody who
    /// can change packets. A URL that does not ask gets what the server has.
    fn encryption(url: &mut StoreUrl) -> Result<Encryption> {
        let modes = [("disable", 0), ("prefer", 1), ("require", 2), ("verify-full", 2)];
        match url.take_choice("sslmode", &modes)? {
            Some(0) => Ok(Encryption::Off),
            Some(2) if cfg!(not(feature = "tls")) => {
                Err(Error::invalid("TLS is not built in; build fencepost with the feature `tls`"))
            }
            Some(2) => TlsSettings::take(url).map(Encryption::Verified),
            _ => Ok(Encryption::Preferred),
        }
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
        let config =
            parse("postgresql://ann:pw@h/db?schema=s&timeout=500ms&lock_delay=0&durable=yes").unwrap();
        assert_eq!((config.server.get_user(), config.server.get_dbname()), (Some("ann"), Some("db")));
        assert_eq!(config.server.get_ports(), [5432]);
        assert_eq!((config.schema.as_str(), config.delay, config.durable), ("s", false, true));
        assert!(matches!(config.encryption, Encryption::Preferred) && !config.cleartext);
        assert!(!format!("{config:?}").contains("pw"));
        let config = parse("postgres://a:1,b:2/db").unwrap();
        assert_eq!(config.server.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
        assert_eq!((config.schema.as_str(), config.delay, config.durable), ("fencepost", true, false));
        assert!(parse("postgres://h/db?sequence=a.s").unwrap().durable, "or a crash takes numbers back");
        for url in ["postgres://h/db?allow=cleartext", "postgres:///db?host=/run/p"] {
            assert!(parse(url).unwrap().cleartext, "{url}");
        }
        assert_eq!(parse("postgres:///db?host=/run/p&port=5433").unwrap().server.get_ports(), [5433]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for text in [
            "postgres://",
            "postgres:///db",
            "postgres:///db?host=relative",
            "postgres://h/db?host=/run",
            "postgres://h/db?lock_delay=5s",
            "postgres://h/db?sslmode=allow",
            "postgres://h/db?allow=anything",
            "postgres://h/db?schema=pg_temp",
            "postgres://h/db?sequence=unqualified",
            "postgres://h/db?ca=/x",
            "postgres://h/db?schema=",
            "postgres://h/db?timeout=0s",
            "postgres://h/db?sequence=a.s&durable=no",
        ] {
            assert!(matches!(parse(text), Err(Error::Invalid { .. })), "{text}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn the_table_has_exactly_the_parameters_that_are_accepted() {
        let socket = "postgres:///db?host=/run/p&sslmode=verify-full";
        let refused = parse(&format!("{socket}&colour=red")).unwrap_err().to_string();
        let mut known: Vec<_> = PARAMETERS.iter().map(|one| format!("`{}`", one.name)).collect();
        known.sort_unstable();
        assert!(refused.ends_with(&format!("known are {}", known.join(", "))), "{refused}");
        let defaults = PARAMETERS.iter().filter(|one| !one.default.is_empty());
        let pairs: Vec<_> = defaults.map(|one| format!("{}={}", one.name, one.default)).collect();
        let spelled_out = parse(&format!("postgres:///db?host=/run/p&{}", pairs.join("&"))).unwrap();
        let plain = parse("postgres:///db?host=/run/p&port=5432").unwrap();
        assert_eq!(spelled_out.server, plain.server);
        let rest = |config: &Config| {
            (config.schema.clone(), config.timeout, config.delay, config.durable, config.cleartext)
        };
        assert_eq!(rest(&spelled_out), rest(&plain));
        assert!(matches!(spelled_out.encryption, Encryption::Preferred));
    }

    proptest! {
        #[test]
        fn no_url_makes_it_panic_or_show_a_password(
            text in crate::url::tests::nearly_a_url("postgres|postgresql"),
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
