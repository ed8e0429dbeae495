//! Several servers that know nothing of each other, as Redlock wants them.

use std::net::SocketAddr;
use std::ops::{Index, IndexMut};
use std::thread;

use super::{Config, Server};
use crate::Proxy;

/// Independent servers. `nodes[0]` is the first of them.
#[derive(Debug)]
pub struct Nodes(Vec<Server>);

impl Nodes {
    /// Starts `count` servers without password, TLS and persistence.
    ///
    /// # Panics
    /// If one does not start; the message says why.
    pub fn start(count: usize) -> Self {
        Self::start_with(count, |config| config)
    }

    /// Starts `count` servers, all at the same time. `configure` is called for one after the other.
    ///
    /// # Panics
    /// If one does not start; the message says why.
    pub fn start_with(count: usize, mut configure: impl FnMut(Config) -> Config) -> Self {
        let configs: Vec<_> = (0..count).map(|_| configure(Config::new())).collect();
        thread::scope(|scope| {
            let starting: Vec<_> =
                configs.into_iter().map(|config| scope.spawn(move || config.start())).collect();
            let started = starting.into_iter().map(|server| match server.join() {
                Ok(server) => server,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            Self(started.collect())
        })
    }

    /// The URL of all of them, with the login of each that wants one: `redlock://127.0.0.1:1,127.0.0.1:2,…`
    ///
    /// # Panics
    /// If a server wants TLS, which such a URL cannot say.
    pub fn url(&self) -> String {
        self.url_with("")
    }

    /// The URL of all of them with parameters, such as `max_ttl=2s&quarantine=4s`.
    ///
    /// # Panics
    /// If a server wants TLS.
    pub fn url_with(&self, parameters: &str) -> String {
        self.url_at(self.iter().map(Server::addr), parameters)
    }

    /// The URL of all of them by way of proxies, the first of which stands in front of the first server, and
    /// so on; with parameters, if any.
    ///
    /// # Panics
    /// If there is not one proxy for each server, or a server wants TLS.
    pub fn url_through(&self, proxies: &[Proxy], parameters: &str) -> String {
        assert_eq!(proxies.len(), self.len(), "one proxy for each server");
        self.url_at(proxies.iter().map(Proxy::addr), parameters)
    }

    fn url_at(&self, addrs: impl Iterator<Item = SocketAddr>, parameters: &str) -> String {
        assert!(self.iter().all(|server| server.certificates.is_none()), "a redlock URL speaks no TLS");
        let nodes: Vec<_> =
            self.iter().zip(addrs).map(|(server, addr)| format!("{}{addr}", server.login())).collect();
        let mark = if parameters.is_empty() { "" } else { "?" };
        format!("redlock://{}{mark}{parameters}", nodes.join(","))
    }

    /// Starts a proxy in front of each server, for [`url_through`](Self::url_through).
    pub fn proxies(&self) -> Vec<Proxy> {
        self.iter().map(|server| Proxy::start(server.addr())).collect()
    }

    /// The servers, one after the other.
    pub fn iter(&self) -> std::slice::Iter<'_, Server> {
        self.0.iter()
    }

    /// How many servers there are, running or not.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no server at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Index<usize> for Nodes {
    type Output = Server;

    fn index(&self, index: usize) -> &Server {
        &self.0[index]
    }
}

impl IndexMut<usize> for Nodes {
    fn index_mut(&mut self, index: usize) -> &mut Server {
        &mut self.0[index]
    }
}
