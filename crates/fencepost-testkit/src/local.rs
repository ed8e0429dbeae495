//! Stores that are started for a while on this machine, each as somebody would run it, and what can be done
//! to their servers.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use crate::etcd::Cluster;
use crate::history::{Cause, Excuse};
use crate::process::state;
use crate::redis::Fleet;
use crate::zookeeper::Ensemble;
use crate::{Folder, postgres, redis, zookeeper};

/// Which store, on how many servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Files in a temporary folder.
    File,
    /// One Redis without persistence.
    Redis,
    /// Five of them.
    Redlock5,
    /// One PostgreSQL.
    Postgres,
    /// One member of etcd.
    Etcd1,
    /// Three of them.
    Etcd3,
    /// One ZooKeeper.
    Zookeeper1,
    /// Three of them.
    Zookeeper3,
}

/// What can be done to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// It is killed, and started again with what it has on disk.
    Kill,
    /// It stands still.
    Pause,
    /// It is killed, and started again without its data.
    Empty,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::File,
        Self::Redis,
        Self::Redlock5,
        Self::Postgres,
        Self::Etcd1,
        Self::Etcd3,
        Self::Zookeeper1,
        Self::Zookeeper3,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Redis => "redis",
            Self::Redlock5 => "redlock5",
            Self::Postgres => "postgres",
            Self::Etcd1 => "etcd1",
            Self::Etcd3 => "etcd3",
            Self::Zookeeper1 => "zookeeper1",
            Self::Zookeeper3 => "zookeeper3",
        }
    }

    /// The Debian package that it needs and that is not installed.
    pub fn missing(self) -> Option<&'static str> {
        let (package, found) = match self {
            Self::File => return None,
            Self::Redis | Self::Redlock5 => ("redis-server", redis::which("redis-server")),
            Self::Postgres => ("postgresql", Path::new("/usr/lib/postgresql").is_dir()),
            Self::Etcd1 | Self::Etcd3 => {
                let client = redis::which("etcdctl");
                (if client { "etcd-server" } else { "etcd-client" }, client && redis::which("etcd"))
            }
            Self::Zookeeper1 | Self::Zookeeper3 if !redis::which("java") => ("default-jre-headless", false),
            Self::Zookeeper1 | Self::Zookeeper3 => {
                ("zookeeper", Path::new("/usr/share/java/zookeeper.jar").is_file())
            }
        };
        (!found).then_some(package)
    }

    /// What its servers can be dealt so that the store's promises say what happens then.
    pub fn blows(self) -> &'static [Blow] {
        match self {
            Self::File => &[],
            // Without persistence, a killed one comes back empty.
            Self::Redis | Self::Redlock5 => &[Blow::Kill, Blow::Pause, Blow::Empty],
            _ => &[Blow::Kill, Blow::Pause],
        }
    }

    /// Why two clients may believe that they hold a lock after such a blow, where the store's promises say
    /// so. `replaced`: the server led the others, and another one does now.
    pub fn excuse(self, blow: Blow, ttl: Duration, replaced: bool) -> Option<Excuse> {
        let (cause, why) = match (self, blow) {
            (Self::Redis, Blow::Kill | Blow::Empty) => (
                Cause::Forgot,
                "one Redis that restarts without its keys has forgotten its locks; a holder learns it at its \
                next renewal",
            ),
            (Self::Postgres, Blow::Kill) => (
                Cause::ForgotTheNewest(Duration::from_millis(600)),
                "a crash may lose leases that are less than 0.6 s old, and a holder that stands still learns \
                of it late",
            ),
            (Self::Etcd3, Blow::Pause) if replaced => (
                Cause::WokeUp,
                "an etcd leader that stood still, was replaced and wakes up may end leases that its \
                successor keeps (etcd \
                 releases before November 2023)",
            ),
            (Self::Zookeeper3, Blow::Kill | Blow::Pause) => (
                Cause::DidNotTell(ttl / 2 + zookeeper::TICK / 2),
                "a ZooKeeper server that answered a holder and is gone before it told the leader leaves the \
                holder believing for \
                 half a ttl and half a tick too long at most",
            ),
            _ => return None,
        };
        Some(Excuse { cause, why: format!("{why} (SAFETY.md)"), ttl })
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names: Vec<_> = Self::ALL.iter().map(|kind| kind.name()).collect();
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| format!("no such local store; known are {}", names.join(", ")))
    }
}

/// A running store. It ends with its value, and with this process.
#[derive(Debug)]
pub struct Local {
    url: String,
    servers: Servers,
}

#[derive(Debug)]
enum Servers {
    None { _folder: Folder },
    Redis(Fleet),
    Postgres(postgres::Server),
    Etcd(Cluster),
    Zookeeper(zookeeper::Server),
    Zookeepers(Ensemble),
}

impl Local {
    /// Starts a store for locks of this ttl.
    ///
    /// # Panics
    /// If it does not start; the message says why.
    pub fn start(kind: Kind, ttl: Duration) -> Self {
        let (url, servers) = match kind {
            Kind::File => {
                // Made by the store, for us alone.
                let folder = Folder::new("locks");
                let locks = folder.path().join("store");
                (format!("file://{}", locks.display()), Servers::None { _folder: folder })
            }
            Kind::Redis => {
                let fleet = Fleet::start(1);
                (fleet[0].url(), Servers::Redis(fleet))
            }
            Kind::Redlock5 => {
                let fleet = Fleet::start(5);
                // The shortest quarantine that goes with the ttl, or half of the run would be spent in it.
                let (ttl, quarantine) =
                    (ttl.as_millis(), (ttl.mul_f64(1.05) + Duration::from_secs(1)).as_millis());
                let terms = format!("max_ttl={ttl}ms&quarantine={quarantine}ms&deployment=local");
                (fleet.url_with(&terms), Servers::Redis(fleet))
            }
            Kind::Postgres => {
                let server = postgres::Server::start();
                let database = server.create_database();
                (server.url(&database), Servers::Postgres(server))
            }
            Kind::Etcd1 | Kind::Etcd3 => {
                let cluster = Cluster::start(if kind == Kind::Etcd1 { 1 } else { 3 });
                (cluster.url(), Servers::Etcd(cluster))
            }
            Kind::Zookeeper1 => {
                let server = zookeeper::Server::start();
                (server.url(), Servers::Zookeeper(server))
            }
            Kind::Zookeeper3 => {
                let ensemble = Ensemble::start(3);
                (ensemble.url(), Servers::Zookeepers(ensemble))
            }
        };
        Self { url, servers }
    }

    /// Its URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// How many servers it has.
    pub fn servers(&self) -> usize {
        match &self.servers {
            Servers::None { .. } => 0,
            Servers::Postgres(_) | Servers::Zookeeper(_) => 1,
            Servers::Redis(fleet) => fleet.len(),
            Servers::Etcd(cluster) => cluster.iter().count(),
            Servers::Zookeepers(ensemble) => ensemble.iter().count(),
        }
    }

    /// Which server leads the others, where one does. All must run.
    pub fn leader(&self) -> Option<usize> {
        match &self.servers {
            Servers::Etcd(cluster) if self.servers() > 1 => Some(cluster.leader()),
            Servers::Zookeepers(ensemble) => Some(ensemble.leader()),
            _ => None,
        }
    }

    /// Begins a blow at one server.
    pub fn strike(&mut self, blow: Blow, server: usize) {
        match (&mut self.servers, blow) {
            (Servers::None { .. }, _) => {}
            (Servers::Redis(fleet), Blow::Pause) => fleet[server].pause(),
            (Servers::Redis(fleet), _) => fleet[server].kill(),
            (Servers::Postgres(server), Blow::Pause) => server.pause(),
            (Servers::Postgres(server), _) => server.kill(),
            (Servers::Etcd(cluster), Blow::Pause) => cluster[server].pause(),
            (Servers::Etcd(cluster), _) => cluster[server].kill(),
            (Servers::Zookeeper(server), Blow::Pause) => server.pause(),
            (Servers::Zookeeper(server), _) => server.kill(),
            (Servers::Zookeepers(ensemble), Blow::Pause) => ensemble.get(server).pause(),
            (Servers::Zookeepers(ensemble), _) => ensemble.get_mut(server).kill(),
        }
    }

    /// Whether a blow has its effect on a server right now: it stands still, or nobody listens at its port.
    pub fn feels(&self, blow: Blow, server: usize) -> bool {
        let running: (SocketAddr, &dyn Fn() -> u32) = match &self.servers {
            Servers::None { .. } => return false,
            Servers::Redis(fleet) => (fleet[server].addr(), &|| fleet[server].pid()),
            Servers::Postgres(server) => (server.addr(), &|| server.pid()),
            Servers::Etcd(cluster) => (cluster[server].addr(), &|| cluster[server].pid()),
            Servers::Zookeeper(server) => (server.addr(), &|| server.pid()),
            Servers::Zookeepers(ensemble) => (ensemble.get(server).addr(), &|| ensemble.get(server).pid()),
        };
        let (addr, pid) = running;
        match blow {
            Blow::Pause => state(pid()) == Some('T'),
            Blow::Kill | Blow::Empty => TcpStream::connect(addr).is_err(),
        }
    }

    /// What the servers have of locks whose names start so, beyond what the store's clients show of holders;
    /// nothing where that cannot be asked.
    pub fn entries(&self, prefix: &str) -> Vec<String> {
        match &self.servers {
            Servers::Redis(fleet) => {
                fleet.iter().flat_map(|server| server.keys_like(&format!("lock:{prefix}*"))).collect()
            }
            Servers::Etcd(cluster) => cluster.keys(prefix),
            _ => Vec::new(),
        }
    }

    /// Ends it: the server goes on, or is started again. Returns when it answers.
    ///
    /// # Panics
    /// If it does not start.
    pub fn mend(&mut self, blow: Blow, server: usize) {
        match (&mut self.servers, blow) {
            (Servers::None { .. }, _) => {}
            (Servers::Redis(fleet), Blow::Pause) => fleet[server].resume(),
            (Servers::Redis(fleet), Blow::Empty) => fleet[server].restart_empty(),
            (Servers::Redis(fleet), Blow::Kill) => fleet[server].restart(),
            (Servers::Postgres(server), Blow::Pause) => server.resume(),
            (Servers::Postgres(server), _) => server.restart(),
            (Servers::Etcd(cluster), Blow::Pause) => cluster[server].resume(),
            (Servers::Etcd(cluster), _) => cluster[server].restart(),
            (Servers::Zookeeper(server), Blow::Pause) => server.resume(),
            (Servers::Zookeeper(server), _) => server.restart(),
            (Servers::Zookeepers(ensemble), Blow::Pause) => ensemble.get(server).resume(),
            (Servers::Zookeepers(ensemble), _) => ensemble.get_mut(server).restart(),
        }
    }
}
