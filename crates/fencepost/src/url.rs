//! Store URLs: `scheme://[user[:password]@]host[:port][,host…][/path][?key=value&…]`, and `file:PATH`. The nodes of
//! `redlock` have a login each, and can be given as URLs: `redlock:redis://a,rediss://user:password@b,…[?key=value&…]`.
//!
//! Parsed here rather than by a general URL parser: those refuse several hosts with ports, turn a relative `file:`
//! path into an absolute one, and print passwords.

use std::fmt;
use std::time::Duration;

use crate::{Error, Result, parse_duration, text};

/// A text that only the server it is meant for gets to see.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Password(String);

impl Password {
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// A server's words without the password: some repeat what they were sent.
    #[allow(dead_code)] // by features
    pub(crate) fn hide_in(&self, text: &str) -> String {
        match self.0.as_str() {
            "" => text.to_owned(),
            // As it was sent, and as errors are shown.
            password => text.replace(password, "(hidden)").replace(&*text::printable(password), "(hidden)"),
        }
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// A store URL, taken apart. Its `Display` and `Debug` never show the password.
#[derive(Clone)]
pub(crate) struct StoreUrl {
    pub(crate) scheme: String,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Password>,
    pub(crate) hosts: Vec<Host>,
    /// What follows the authority, percent-decoded; for `file:` and `memory:` the whole rest.
    pub(crate) path: String,
    parameters: Vec<(String, String)>,
    known: Vec<&'static str>,
}

/// One `host[:port]`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) port: Option<u16>,
    /// The scheme of a node that was given as a URL.
    pub(crate) scheme: Option<String>,
    /// Its user and password, where each host has its own.
    pub(crate) login: Option<(Option<String>, Option<Password>)>,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, close) = if self.name.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{open}{}{close}", self.name)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl StoreUrl {
    /// Takes a URL apart. Errors quote at most the scheme: the rest may hold a password.
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let broken = |what: &str| Error::invalid(format!("this is not a store URL: {what}"));
        let (scheme, rest) = url.split_once(':').ok_or_else(|| {
            broken(
                "it has no scheme; write for example `file:`, `file:///var/lock/app` or `redis://localhost`",
            )
        })?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut out = Self {
            scheme: scheme.to_ascii_lowercase(),
            user: None,
            password: None,
            hosts: Vec::new(),
            path: String::new(),
            parameters: Vec::new(),
            known: Vec::new(),
        };
        let decode = |part: &str| text::decode(part).ok_or_else(|| broken("it has a broken percent escape"));
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) =
                pair.split_once('=').ok_or_else(|| broken("a parameter is not of the form key=value"))?;
            let key = decode(key)?;
            if out.parameters.iter().any(|(other, _)| *other == key) {
                return Err(broken(&format!("parameter `{key}` is given twice")));
            }
            out.parameters.push((key, decode(value)?));
        }
        let several = out.scheme == "redlock";
        const AT: &str = "it has an `@` behind the host; write `/`, `?`, `#` and `@` in a password as %2F, %3F, %23 and %40";
        let Some(rest) = rest.strip_prefix("//") else {
            if several {
                if query.contains('@') {
                    return Err(broken(AT));
                }
                out.hosts = parse_nodes(rest).ok_or_else(|| broken(NODES))?;
            } else {
                out.path = decode(rest)?;
            }
            return Ok(out);
        };
        // An `@` behind the authority is the end of a password with a `/` or `?` in it: nothing of it may be quoted.
        let slash = rest.find('/').unwrap_or(rest.len());
        if slash > 0 && (query.contains('@') || rest[slash..].contains('@')) {
            return Err(broken(AT));
        }
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        out.path = decode(path)?;
        if several {
            out.hosts = parse_nodes(authority).ok_or_else(|| broken(NODES))?;
            return Ok(out);
        }
        // The last `@`: a password may contain one.
        let hosts = match authority.rsplit_once('@') {
            None => authority,
            Some((login, hosts)) => {
                let (user, password) = login.split_once(':').map_or((login, None), |(u, p)| (u, Some(p)));
                out.user = Some(decode(user)?).filter(|user| !user.is_empty());
                out.password = password.map(decode).transpose()?.map(Password::new);
                hosts
            }
        };
        for host in hosts.split(',').filter(|_| !hosts.is_empty()) {
            out.hosts
                .push(parse_host(host).ok_or_else(|| broken("a host is not of the form host or host:port; write `/`, `?`, `#` and `@` in a password as %2F, %3F, %23 and %40"))?);
        }
        Ok(out)
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

    /// Refuses parameters nobody asked for, naming the known ones.
    pub(crate) fn finish(mut self) -> Result<()> {
        let Some((key, _)) = self.parameters.first() else { return Ok(()) };
        self.known.sort_unstable();
        Err(Error::invalid(format!(
            "parameter `{key}` is not known to {} stores; known are {}",
            self.scheme,
            self.known.iter().map(|known| format!("`{known}`")).collect::<Vec<_>>().join(", ")
        )))
    }
}

const NODES: &str = "its nodes are not of the form `[redis://|rediss://][user:password@]host[:port]`, separated by commas; \
                     write `/`, `?`, `#`, `,` and `@` in a password as %2F, %3F, %23, %2C and %40";

/// Several nodes, each with a scheme and a login of its own. A login at the first node is that of all which have none.
fn parse_nodes(text: &str) -> Option<Vec<Host>> {
    let mut nodes: Vec<Host> = Vec::new();
    for entry in text.split(',') {
        let (scheme, rest) =
            entry.split_once("://").map_or((None, entry), |(scheme, rest)| (Some(scheme), rest));
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (login, host) = rest.rsplit_once('@').map_or((None, rest), |(login, host)| (Some(login), host));
        let mut node = parse_host(host)?;
        node.scheme = scheme.map(str::to_ascii_lowercase);
        node.login = match login {
            None => nodes.first().and_then(|first| first.login.clone()),
            Some(login) => {
                let (user, password) = login.split_once(':').map_or((login, None), |(u, p)| (u, Some(p)));
                let password = match password {
                    Some(password) => Some(Password::new(text::decode(password)?)),
                    None => None,
                };
                Some((Some(text::decode(user)?).filter(|user| !user.is_empty()), password))
            }
        };
        nodes.push(node);
    }
    Some(nodes)
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
    let name = text::decode(name).filter(|name| !name.is_empty())?;
    if name.contains(['/', '@']) {
        return None;
    }
    Some(Host { name, port, scheme: None, login: None })
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn host(name: &str, port: Option<u16>) -> Host {
        Host { name: name.to_owned(), port, scheme: None, login: None }
    }

    #[test]
    fn a_password_is_hidden_wherever_it_is_repeated() {
        let hidden = |password: &str, text| Password::new(password.to_owned()).hide_in(text);
        assert_eq!(hidden("hush", "ERR no `hush`: u hush"), "ERR no `(hidden)`: u (hidden)");
        assert_eq!(hidden("a\u{7}b", "ERR a\\u{7}b"), "ERR (hidden)");
        assert_eq!(hidden("", "ERR"), "ERR");
    }

    #[test]
    fn the_nodes_of_redlock_have_schemes_and_logins() {
        let url = StoreUrl::parse("redlock://me:p%2C1@a:1,b,:p2@c/2?ttl=5s").unwrap();
        let login = |user: Option<&str>, password: &str| {
            Some((user.map(str::to_owned), Some(Password::new(password.to_owned()))))
        };
        let logins: Vec<_> = url.hosts.iter().map(|host| host.login.clone()).collect();
        assert_eq!(logins, [login(Some("me"), "p,1"), login(Some("me"), "p,1"), login(None, "p2")]);
        assert_eq!((url.path.as_str(), url.to_string().as_str()), ("/2", "redlock://a:1,b,c/2"));
        let url = StoreUrl::parse("redlock:redis://a:1,rediss://u:s3cret@b/,c?x=1").unwrap();
        let schemes: Vec<_> = url.hosts.iter().map(|host| host.scheme.as_deref()).collect();
        assert_eq!(schemes, [Some("redis"), Some("rediss"), None]);
        assert!(!format!("{url} {url:?} {:?}", url.hosts).contains("s3cret"));
        for text in ["redlock://a,,b", "redlock:a/b,c,d", "redlock://u:s3,cret@a,b,c", "redlock:"] {
            let message = StoreUrl::parse(text).unwrap_err().to_string();
            assert!(message.contains("commas") && !message.contains("cret"), "{message}");
        }
    }

    #[test]
    fn every_form_is_taken_apart() {
        let url = StoreUrl::parse("redis://me:p%40s:s@example.org:7000/3?ttl=5s").unwrap();
        assert_eq!((url.scheme.as_str(), url.path.as_str()), ("redis", "/3"));
        assert_eq!(
            (url.user.as_deref(), url.password.as_ref().map(Password::reveal)),
            (Some("me"), Some("p@s:s"))
        );
        assert_eq!(url.hosts, [host("example.org", Some(7000))]);
        let url = StoreUrl::parse("redlock://a:1,b,[::1]:3").unwrap();
        assert_eq!(url.hosts, [host("a", Some(1)), host("b", None), host("::1", Some(3))]);
        assert_eq!(url.to_string(), "redlock://a:1,b,[::1]:3");
        for (text, path) in [
            ("file:", ""),
            ("file:locks", "locks"),
            ("file:///var/lock", "/var/lock"),
            ("file:/var/lock", "/var/lock"),
            ("file:a%20b?ttl=1s", "a b"),
            ("redis+unix:///run/redis.sock", "/run/redis.sock"),
        ] {
            assert_eq!(StoreUrl::parse(text).unwrap().path, path, "{text}");
        }
        let url = StoreUrl::parse("redis://:secret@h").unwrap();
        assert_eq!((url.user, url.password.as_ref().map(Password::reveal)), (None, Some("secret")));
    }

    #[test]
    fn broken_urls_are_refused() {
        for text in [
            "",
            "redis",
            "redis://h:port",
            "redis://[::1",
            "redis://a,,b",
            "redis://h?x",
            "redis://h?a=1&a=2",
        ] {
            assert!(matches!(StoreUrl::parse(text), Err(Error::Invalid { .. })), "{text}");
        }
    }

    #[test]
    fn a_password_that_should_have_been_escaped_is_not_quoted() {
        for text in [
            "redis://u:s3cret/pw@h",
            "redis://:s3cret/pw@h",
            "redis://u:123/s3cret@h",
            "redis://u:s3cret?a=b@h",
            "redis://u:12?s3cret=b@h",
            "redis://u:s3cret/pw",
            "redlock:redis://a,redis://b,redis://u:12?s3cret=x@c",
        ] {
            let message = StoreUrl::parse(text).unwrap_err().to_string();
            assert!(!message.contains("s3cret"), "{message}");
        }
    }

    #[test]
    fn an_unknown_parameter_names_the_known_ones() {
        let mut url = StoreUrl::parse("redis://h?ttl=5s&tll=3s").unwrap();
        assert_eq!(url.take_duration("ttl").unwrap(), Some(Duration::from_secs(5)));
        assert_eq!(url.take("prefix"), None);
        let message = url.finish().unwrap_err().to_string();
        assert!(message.contains("`tll`") && message.contains("`prefix`, `ttl`"), "{message}");
    }

    /// Texts that are nearly URLs of a scheme, with the password `s3cret`.
    pub(crate) fn nearly_a_url(schemes: &str) -> impl Strategy<Value = String> + use<> {
        let login = "([a-z%]{0,3}(:s3cret)?@)?";
        let hosts = "[a-c0-9:,.\\[\\]%@ -]{0,14}";
        let path = "(/[a-z0-9/%.:]{0,10})?";
        let name = "(ttl|timeout|prefix|db|keys|allow|ca|cert|key|server_name|max_ttl|quarantine|drift|deployment\
                    |schema|lock_delay|durable|sequence|sslmode|mode|x)";
        let value = "[a-z0-9%.,-]{0,8}";
        let text = format!("({schemes}):/?/?{login}{hosts}{path}(\\?({name}={value}&?){{0,4}})?");
        proptest::string::string_regex(&text).unwrap()
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in ".{0,60}", url in nearly_a_url("[a-z+]{0,8}")) {
            for text in [text, url] {
                if let Ok(mut url) = StoreUrl::parse(&text) {
                    let _ = (url.take("prefix"), url.take_duration("ttl"), url.finish());
                }
            }
        }

        #[test]
        fn a_password_is_never_printed(secret in "[a-z]{12}", rest in "[ -~]{0,20}") {
            let text = format!("redis://u:{secret}@{rest}");
            match StoreUrl::parse(&text) {
                Ok(url) => {
                    let shown = format!("{url} {url:?}");
                    prop_assert!(!shown.contains(&secret) || rest.contains('/') && rest.contains('@'));
                }
                Err(error) => prop_assert!(!error.to_string().contains(&secret)),
            }
        }
    }
}
