//! Where a store's servers are, and its URL by way of proxies in front of them.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use fencepost::StoreKind;
use fencepost_testkit::Proxy;

/// How long a server may take to accept a connection.
const PATIENCE: Duration = Duration::from_secs(2);

/// A URL taken apart at its hosts.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    /// What stands in front of each host, and where that leads.
    hosts: Vec<(String, SocketAddr)>,
    /// What follows the last one.
    rest: String,
}

impl Route {
    /// Finds the servers that a URL names.
    ///
    /// The error says why links to them cannot be cut, and holds nothing of the URL but its scheme.
    pub(crate) fn find(url: &str) -> Result<Self, String> {
        const NO_LINKS: &str = "the store has no network links";
        const TLS: &str = "TLS names its server, which a proxy is not";
        let (scheme, rest) = url.split_once("://").ok_or(NO_LINKS)?;
        let store = StoreKind::of(url).map_err(|_| NO_LINKS)?;
        let port = store.default_port.filter(|_| !scheme.contains("unix")).ok_or(NO_LINKS)?;
        let plain = store.urls[0].split(':').next().unwrap_or_default();
        if scheme.strip_suffix('s') == Some(plain) {
            return Err(TLS.to_owned());
        }
        if store.name == "redis-cluster" {
            return Err(
                "the nodes of a cluster tell clients where the others are, and name no proxy".to_owned()
            );
        }
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        if rest.contains("sslmode=require") || rest.contains("sslmode=verify") {
            return Err(TLS.to_owned());
        }
        if store.independent_nodes && !rest.contains("deployment=") {
            return Err(
                "without `deployment=` the servers' addresses are the deployment's name, and proxies have \
                 others"
                    .to_owned(),
            );
        }
        // A login stands in front of all hosts, or of each node.
        let parts: Vec<_> = match (store.independent_nodes, authority.rsplit_once('@')) {
            (true, _) | (_, None) => authority.split(',').map(str::to_owned).collect(),
            (_, Some((login, hosts))) => {
                let mut parts: Vec<_> = hosts.split(',').map(str::to_owned).collect();
                parts[0] = format!("{login}@{}", parts[0]);
                parts
            }
        };
        let mut hosts = Vec::new();
        for (number, part) in parts.iter().enumerate() {
            let (login, host) =
                part.rsplit_once('@').map_or(("", part.as_str()), |(login, host)| (login, host));
            let lead = if number == 0 { format!("{scheme}://") } else { ",".to_owned() };
            let lead = if part.contains('@') { format!("{lead}{login}@") } else { lead };
            hosts.push((lead, resolve(host, port)?));
        }
        Ok(Self { hosts, rest: rest.to_owned() })
    }

    /// A proxy in front of each server.
    pub(crate) fn proxies(&self) -> Vec<Proxy> {
        self.hosts.iter().map(|(_, addr)| Proxy::start(*addr)).collect()
    }

    /// The URL by way of these proxies.
    pub(crate) fn through(&self, proxies: &[Proxy]) -> String {
        let hosts: String = self
            .hosts
            .iter()
            .zip(proxies)
            .map(|((lead, _), proxy)| format!("{lead}{}", proxy.addr()))
            .collect();
        hosts + &self.rest
    }
}

fn resolve(host: &str, port: u16) -> Result<SocketAddr, String> {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, text)) if !text.ends_with(']') => {
            (name, text.parse().map_err(|_| "a port is no number".to_owned())?)
        }
        _ => (host, port),
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let name = if name.is_empty() { "localhost" } else { name };
    let found: Vec<_> = (name, port).to_socket_addrs().map(Iterator::collect).unwrap_or_default();
    choose(&found).ok_or_else(|| "a host has no address".to_owned())
}

/// Of several addresses, clients take the one where somebody listens, and so must a proxy.
fn choose(found: &[SocketAddr]) -> Option<SocketAddr> {
    let answers = |addr: &&SocketAddr| TcpStream::connect_timeout(addr, PATIENCE).is_ok();
    let chosen = if found.len() > 1 { found.iter().find(answers) } else { None };
    chosen.or(found.first()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(url: &str) -> (Vec<SocketAddr>, String) {
        let route = Route::find(url).unwrap();
        let proxies = route.proxies();
        let mut text = route.through(&proxies);
        for (number, proxy) in proxies.iter().enumerate() {
            text = text.replace(&proxy.addr().to_string(), &format!("proxy{number}"));
        }
        (route.hosts.into_iter().map(|(_, addr)| addr).collect(), text)
    }

    #[test]
    fn hosts_are_replaced_and_everything_else_stays() {
        let (hosts, text) = through("redis://user:p%40ss@127.0.0.1:7000/3?timeout=1s");
        assert_eq!((hosts[0].port(), text.as_str()), (7000, "redis://user:p%40ss@proxy0/3?timeout=1s"));
        let (hosts, text) = through("zookeeper://127.0.0.1,127.0.0.1:1,[::1]:2/chroot");
        assert_eq!(hosts.iter().map(SocketAddr::port).collect::<Vec<_>>(), [2181, 1, 2]);
        assert_eq!(text, "zookeeper://proxy0,proxy1,proxy2/chroot");
        let (_, text) = through("redlock://:a@127.0.0.1:1,127.0.0.1:2,u:b@127.0.0.1:3?deployment=x");
        assert_eq!(text, "redlock://:a@proxy0,proxy1,u:b@proxy2?deployment=x");
        let (_, text) = through("postgres://postgres@127.0.0.1:1,127.0.0.1:2/db");
        assert_eq!(text, "postgres://postgres@proxy0,proxy1/db");
    }

    #[test]
    fn of_several_addresses_the_one_where_somebody_listens_is_taken() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let somebody = server.local_addr().unwrap();
        let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
        assert_eq!(choose(&[nobody, somebody]), Some(somebody));
        assert_eq!(choose(&[nobody, nobody]), Some(nobody), "it may come up later");
    }

    #[test]
    fn links_that_cannot_be_cut_say_why() {
        for (url, why) in [
            ("file:", "no network"),
            ("redis+unix:///run/redis", "no network"),
            ("rediss://:secret@host", "TLS"),
            ("etcds://host", "TLS"),
            ("postgres://host/db?sslmode=require", "TLS"),
            ("redlock://a,b,c", "deployment="),
            ("redis+cluster://a,b,c", "tell clients"),
            ("redis://:secret@127.0.0.1:port", "no number"),
        ] {
            let error = Route::find(url).unwrap_err();
            assert!(error.contains(why) && !error.contains("secret"), "{url}: {error}");
        }
    }
}
