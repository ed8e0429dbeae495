//! Store URLs: `scheme://[user[:password]@]host[:port][,host…][/path][?key=value&…]`, and `file:PATH`.
//! The nodes of `redlock` have a login each, and may be URLs:
//! `redlock:redis://a,rediss://user:password@b,…[?key=value&…]`.
//!
//! Parsed here rather than by a general URL parser. Those refuse several hosts with ports, turn a relative
//! `file:` path into an absolute one, and print passwords.

use std::fmt;
#[cfg(feature = "tls")]
use std::sync::Arc;
use std::time::Duration;

pub(crate) use crate::secret::Password;
use crate::{Error, Result, parse_duration, text};

#[cfg(test)]
pub(crate) mod tests;

/// A store URL, taken apart. Its `Display` and `Debug` never show the password.
#[derive(Clone, Default)]
pub(crate) struct StoreUrl {
    pub(crate) scheme: String,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Password>,
    pub(crate) hosts: Vec<Host>,
    /// What follows the authority, percent-decoded; for `file:` and `memory:` the whole rest.
    pub(crate) path: String,
    /// The caller's own configuration of TLS.
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Arc<rustls::ClientConfig>>,
    parameters: Vec<(String, String)>,
    known: Vec<&'static str>,
}

/// User and password.
type Login = (Option<String>, Option<Password>);

/// One `host[:port]`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) port: Option<u16>,
    /// The scheme of a node that was given as a URL.
    pub(crate) scheme: Option<String>,
    /// The login of this node, where each has its own.
    pub(crate) login: Option<Login>,
}

const NO_SCHEME: &str =
    "it has no scheme; write for example `file:`, `file:///var/lock/app` or `redis://localhost`";
const ESCAPE: &str = "it has a broken percent escape";
const AT: &str =
    "it has an `@` behind the host; write `/`, `?`, `#` and `@` in a password as %2F, %3F, %23 and %40";
const HOST: &str = "a host is not of the form host or host:port; write `/`, `?`, `#` and `@` in a password \
                    as %2F, %3F, %23 and %40";
const NODES: &str = "its nodes are not of the form `[redis://|rediss://][user:password@]host[:port]`, \
                     separated by commas; write `/`, `?`, `#`, `,` and `@` in a password as %2F, %3F, %23, \
                     %2C and %40";

/// Errors quote at most the scheme: the rest may hold a password.
fn broken(what: &str) -> Error {
    Error::invalid(format!("this is not a store URL: {what}"))
}

fn decode(part: &str) -> Result<String> {
    text::decode(part).ok_or_else(|| broken(ESCAPE))
}

impl StoreUrl {
    /// Takes a URL apart.
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once(':').ok_or_else(|| broken(NO_SCHEME))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut out =
            Self { scheme: scheme.to_ascii_lowercase(), parameters: parse_query(query)?, ..Self::default() };
        let has_nodes = out.scheme == "redlock";
        let (authority, path) = match rest.strip_prefix("//") {
            Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
            None if has_nodes => (rest, ""),
            None => ("", rest),
        };
        // An `@` after the authority ends a password with a `/` or `?` in it: nothing of it may be quoted.
        if !authority.is_empty() && (query.contains('@') || path.contains('@')) {
            return Err(broken(AT));
        }
        out.path = decode(path)?;
        if has_nodes {
            out.hosts = parse_nodes(authority).ok_or_else(|| broken(NODES))?;
            return Ok(out);
        }
        let (login, hosts) = split_login(authority);
        if let Some(login) = login {
            (out.user, out.password) = parse_login(login).ok_or_else(|| broken(ESCAPE))?;
        }
        if !hosts.is_empty() {
            let hosts = hosts.split(',').map(parse_host).collect::<Option<_>>();
            out.hosts = hosts.ok_or_else(|| broken(HOST))?;
        }
        Ok(out)
    }

    #[cfg(feature = "tls")]
    pub(crate) fn with_tls(self, tls: Option<Arc<rustls::ClientConfig>>) -> Self {
        Self { tls, ..self }
    }

    /// The value of a parameter, which thereby becomes a known one.
    pub(crate) fn take(&mut self, key: &'static str) -> Option<String> {
        self.known.push(key);
        let index = self.parameters.iter().position(|(other, _)| other == key)?;
        Some(self.parameters.swap_remove(index).1)
    }

    /// A parameter that is a duration.
    pub(crate) fn take_duration(&mut self, key: &'static str) -> Result<Option<Duration>> {
        let parse = |value: String| {
            parse_duration(&value).map_err(|error| Error::invalid(format!("parameter `{key}`: {error}")))
        };
        self.take(key).map(parse).transpose()
    }

    /// A parameter that is one of a few words.
    #[allow(dead_code)] // for some stores
    pub(crate) fn take_choice<T: Copy>(
        &mut self,
        key: &'static str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>> {
        let Some(value) = self.take(key) else { return Ok(None) };
        if let Some((_, choice)) = choices.iter().find(|(word, _)| *word == value) {
            return Ok(Some(*choice));
        }
        let words: Vec<_> = choices.iter().map(|(word, _)| format!("`{word}`")).collect();
        Err(Error::invalid(format!("parameter `{key}` is {}, not `{value}`", words.join(" or "))))
    }

    /// Refuses what nobody asked for: parameters, naming the known ones, and a configuration of TLS.
    pub(crate) fn finish(mut self) -> Result<()> {
        #[cfg(feature = "tls")]
        if self.tls.is_some() {
            return Err(Error::invalid(format!(
                "a TLS configuration was given, and this `{}:` URL does not ask for TLS; write `rediss:` or \
                 `etcds:`, or `sslmode=verify-full` for PostgreSQL",
                self.scheme
            )));
        }
        let Some((key, _)) = self.parameters.first() else { return Ok(()) };
        self.known.sort_unstable();
        Err(Error::invalid(format!(
            "parameter `{key}` is not known to {} stores; known are {}",
            self.scheme,
            self.known.iter().map(|known| format!("`{known}`")).collect::<Vec<_>>().join(", ")
        )))
    }
}

fn parse_query(query: &str) -> Result<Vec<(String, String)>> {
    let mut parameters: Vec<(String, String)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) =
            pair.split_once('=').ok_or_else(|| broken("a parameter is not of the form key=value"))?;
        let key = decode(key)?;
        if parameters.iter().any(|(other, _)| *other == key) {
            return Err(broken(&format!("parameter `{key}` is given twice")));
        }
        parameters.push((key, decode(value)?));
    }
    Ok(parameters)
}

/// Several nodes, each with a scheme and a login of its own. The first node's login is that of all which have
/// none.
fn parse_nodes(text: &str) -> Option<Vec<Host>> {
    let mut nodes: Vec<Host> = Vec::new();
    for entry in text.split(',') {
        let (scheme, rest) =
            entry.split_once("://").map_or((None, entry), |(scheme, rest)| (Some(scheme), rest));
        let (login, host) = split_login(rest.strip_suffix('/').unwrap_or(rest));
        let mut node = parse_host(host)?;
        node.scheme = scheme.map(str::to_ascii_lowercase);
        node.login = match login {
            Some(login) => Some(parse_login(login)?),
            None => nodes.first().and_then(|first| first.login.clone()),
        };
        nodes.push(node);
    }
    Some(nodes)
}

/// Splits at the last `@`: a password may contain one.
fn split_login(text: &str) -> (Option<&str>, &str) {
    text.rsplit_once('@').map_or((None, text), |(login, hosts)| (Some(login), hosts))
}

fn parse_login(login: &str) -> Option<Login> {
    let (user, password) = match login.split_once(':') {
        Some((user, password)) => (user, Some(Password::new(text::decode(password)?))),
        None => (login, None),
    };
    Some((Some(text::decode(user)?).filter(|user| !user.is_empty()), password))
}

fn parse_host(text: &str) -> Option<Host> {
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (name, rest) = rest.split_once(']')?;
            (name, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None => text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port))),
    };
    let port = port.map(str::parse).transpose().ok()?;
    let name = text::decode(name).filter(|name| !name.is_empty() && !name.contains(['/', '@']))?;
    Some(Host { name, port, scheme: None, login: None })
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, close) = if self.name.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{open}{}{close}", self.name)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.scheme)?;
        if !self.hosts.is_empty() || self.path.starts_with('/') {
            f.write_str("//")?;
        }
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        let hosts: Vec<_> = self.hosts.iter().map(Host::to_string).collect();
        write!(f, "{}{}", hosts.join(","), self.path)
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
