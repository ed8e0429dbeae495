//! Several servers that agree with each other.

use super::Server;
use crate::{eventually, port};

/// A running ensemble. Dropping it kills all of its servers.
#[derive(Debug)]
pub struct Ensemble {
    servers: Vec<Server>,
}

impl Ensemble {
    /// Starts so many servers and waits until they have a leader.
    ///
    /// # Panics
    /// If they do not start; the message says why.
    pub fn start(count: usize) -> Self {
        Self::start_with(count, "")
    }

    /// The same, with more lines in the configuration of each.
    ///
    /// # Panics
    /// If they do not start; the message says why.
    pub fn start_with(count: usize, settings: &str) -> Self {
        // A port can be taken between the look and its use.
        for _ in 0..5 {
            if let Some(ensemble) = Self::try_start(count, settings) {
                return ensemble;
            }
        }
        panic!("no ensemble of {count} servers starts");
    }

    fn try_start(count: usize, settings: &str) -> Option<Self> {
        let peers: String = (1..=count)
            .map(|id| format!("server.{id}=127.0.0.1:{}:{}\n", port::free(), port::free()))
            .collect();
        let settings = format!("{settings}\n{peers}");
        let mut servers: Vec<_> = (1..=count)
            .map(|id| {
                let mut server = Server::prepare(port::free(), settings.clone());
                let data = server.folder.path().join("data");
                std::fs::create_dir_all(&data).expect("the folder is writable");
                std::fs::write(data.join("myid"), id.to_string()).expect("the folder is writable");
                server.launch();
                server
            })
            .collect();
        servers.iter_mut().all(Server::becomes_ready).then_some(Self { servers })
    }

    /// Its URL, which names all servers.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.servers.iter().map(|server| server.addr().to_string()).collect();
        format!("zookeeper://{}", hosts.join(","))
    }

    /// The server that leads, as soon as there is one.
    pub fn leader(&self) -> usize {
        let mut leader = None;
        eventually("an ensemble has a leader", || {
            let leads =
                |server: &Server| server.process.is_some() && server.mode().as_deref() == Some("leader");
            leader = self.servers.iter().position(leads);
            leader.is_some()
        });
        leader.expect("there is one")
    }

    /// A server that does not lead.
    pub fn follower(&self) -> &Server {
        &self.servers[(self.leader() + 1) % self.servers.len()]
    }

    /// One of its servers, counted from 0.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn get(&self, index: usize) -> &Server {
        &self.servers[index]
    }

    /// One of its servers, counted from 0.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn get_mut(&mut self, index: usize) -> &mut Server {
        &mut self.servers[index]
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Server> {
        self.servers.iter()
    }
}
