//! Stores that are started for a while on this machine, each as somebody would run it, and what can be done
//! to their servers. Adding a store means adding its rows to [`STORES`] and its name to `for_each_store!`.

use std::fmt::{self, Debug};
use std::net::{SocketAddr, TcpStream};
use std::str::FromStr;
use std::time::Duration;

use crate::conformance::Harness;
use crate::history::{Cause, Excuse};
use crate::process::state;
use crate::{etcd, file, postgres, redis, zookeeper};

/// A store that can be started here, on one server or several.
#[derive(Debug)]
pub struct Store {
    /// Its name on the command line.
    pub name: &'static str,
    /// The Debian package that it needs and that is not installed.
    pub missing: fn() -> Option<&'static str>,
    /// Starts it, for locks of this ttl.
    pub start: fn(Duration) -> Box<dyn Servers>,
    /// What its servers can be dealt so that the store's promises say what happens then.
    pub blows: &'static [Blow],
    /// Why two clients may believe that they hold a lock after a blow, where the store's promises say so, for
    /// this ttl. The last argument: the server led others, and another one does now.
    pub excuse: fn(Blow, Duration, bool) -> Option<(Cause, &'static str)>,
    /// Starts it to be held to its promises.
    pub harness: fn() -> Harness,
}

/// All of them.
pub const STORES: &[Kind] = &[
    Kind(&file::LOCAL),
    Kind(&redis::LOCAL),
    Kind(&redis::cluster::LOCAL),
    Kind(&redis::LOCAL_SENTINEL),
    Kind(&redis::LOCAL_REDLOCK),
    Kind(&postgres::LOCAL),
    Kind(&etcd::LOCAL),
    Kind(&etcd::LOCAL_CLUSTER),
    Kind(&zookeeper::LOCAL),
    Kind(&zookeeper::LOCAL_ENSEMBLE),
];

/// Calls a macro with one entry a store: a name for tests, and what [`STORES`] calls it.
#[macro_export]
macro_rules! for_each_store {
    ($macro:ident) => {
        $macro! {
            file "file",
            redis "redis",
            redis_cluster "redis-cluster",
            redis_sentinel "redis-sentinel",
            redlock "redlock5",
            postgres "postgres",
            etcd "etcd1",
            zookeeper "zookeeper1",
        }
    };
}

/// Which store.
#[derive(Clone, Copy)]
pub struct Kind(pub &'static Store);

impl Kind {
    /// Its row.
    pub fn row(self) -> &'static Store {
        self.0
    }

    /// Why two clients may believe that they hold a lock after such a blow.
    pub fn excuse(self, blow: Blow, ttl: Duration, replaced: bool) -> Option<Excuse> {
        let (cause, why) = (self.0.excuse)(blow, ttl, replaced)?;
        Some(Excuse { cause, why: format!("{why} (SAFETY.md)"), ttl })
    }
}

impl Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name)
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names: Vec<_> = STORES.iter().map(|kind| kind.0.name).collect();
        let found = STORES.iter().copied().find(|kind| kind.0.name == text);
        found.ok_or_else(|| format!("no such local store; known are {}", names.join(", ")))
    }
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
    /// Another one takes over from it by order, while it is well.
    Failover,
    /// What it has of locks goes to another one.
    Reshard,
}

impl Blow {
    /// Whether only one that leads others can be dealt it.
    pub fn is_for_leaders(self) -> bool {
        matches!(self, Self::Failover | Self::Reshard)
    }
}

/// The servers of a store. They end with this value.
pub trait Servers: Debug + Send {
    /// The URL that names them.
    fn url(&self) -> String;

    /// How many there are.
    fn count(&self) -> usize;

    /// One of them, counted from 0.
    fn get(&mut self, index: usize) -> &mut dyn Server;

    /// Which ones lead others, where some do. All must run.
    fn leaders(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Begins a blow at one server.
    fn strike(&mut self, blow: Blow, server: usize) {
        match blow {
            Blow::Pause => self.get(server).pause(),
            Blow::Kill | Blow::Empty => self.get(server).kill(),
            Blow::Failover | Blow::Reshard => unreachable!("only some stores can be dealt that"),
        }
    }

    /// Whether a blow has its effect on a server right now: it stands still, or nobody listens at its port.
    fn feels(&mut self, blow: Blow, server: usize) -> bool {
        let server = self.get(server);
        match blow {
            Blow::Pause => state(server.pid()) == Some('T'),
            _ => TcpStream::connect(server.addr()).is_err(),
        }
    }

    /// Ends it: the server goes on, or is started again. Returns when it answers.
    ///
    /// # Panics
    /// If it does not start.
    fn mend(&mut self, blow: Blow, server: usize) {
        let server = self.get(server);
        match blow {
            Blow::Pause => server.resume(),
            Blow::Kill => server.restart(),
            Blow::Empty => server.restart_empty(),
            Blow::Failover | Blow::Reshard => {}
        }
    }

    /// What they have of locks whose names start so, beyond what clients show of holders; nothing where that
    /// cannot be asked.
    fn entries(&self, prefix: &str) -> Vec<String> {
        let _ = prefix;
        Vec::new()
    }
}

/// One server.
pub trait Server {
    /// Where it listens.
    fn addr(&self) -> SocketAddr;
    /// Its process.
    fn pid(&self) -> u32;
    /// Lets it stand still.
    fn pause(&self);
    /// Lets it go on.
    fn resume(&self);
    /// Kills it.
    fn kill(&mut self);
    /// Starts it again with what it has on disk; returns when it answers.
    fn restart(&mut self);
    /// The same without its data.
    fn restart_empty(&mut self);
}

/// Makes a type's own methods those of [`Server`].
macro_rules! server {
    ($server:ty) => {
        impl $crate::local::Server for $server {
            fn addr(&self) -> std::net::SocketAddr {
                self.addr()
            }
            fn pid(&self) -> u32 {
                self.pid()
            }
            fn pause(&self) {
                self.pause();
            }
            fn resume(&self) {
                self.resume();
            }
            fn kill(&mut self) {
                self.kill();
            }
            fn restart(&mut self) {
                self.restart();
            }
            fn restart_empty(&mut self) {
                self.restart_empty();
            }
        }
    };
}
pub(crate) use server;

/// A running store. It ends with its value, and with this process.
#[derive(Debug)]
pub struct Local {
    url: String,
    servers: Box<dyn Servers>,
}

impl Local {
    /// Starts a store for locks of this ttl.
    ///
    /// # Panics
    /// If it does not start; the message says why.
    pub fn start(kind: Kind, ttl: Duration) -> Self {
        let servers = (kind.0.start)(ttl);
        Self { url: servers.url(), servers }
    }

    /// Its URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// How many servers it has.
    pub fn servers(&self) -> usize {
        self.servers.count()
    }

    /// Which servers lead others, where some do. All must run.
    pub fn leaders(&self) -> Vec<usize> {
        self.servers.leaders()
    }

    /// One of its servers.
    pub fn server(&mut self, index: usize) -> &mut dyn Server {
        self.servers.get(index)
    }

    /// Begins a blow at one server.
    pub fn strike(&mut self, blow: Blow, server: usize) {
        self.servers.strike(blow, server);
    }

    /// Whether a blow has its effect on a server right now.
    pub fn feels(&mut self, blow: Blow, server: usize) -> bool {
        self.servers.feels(blow, server)
    }

    /// Ends it. Returns when the server answers.
    ///
    /// # Panics
    /// If it does not.
    pub fn mend(&mut self, blow: Blow, server: usize) {
        self.servers.mend(blow, server);
    }

    /// What the servers have of locks whose names start so, beyond what the store's clients show of holders;
    /// nothing where that cannot be asked.
    pub fn entries(&self, prefix: &str) -> Vec<String> {
        self.servers.entries(prefix)
    }
}
