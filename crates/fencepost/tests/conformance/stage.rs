//! The stores that the promises are tested on, and how to break each.

#[path = "../common/waiting.rs"]
mod waiting;

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fencepost::{Guard, Lock, Locks, blocking, memory};
use fencepost_testkit::{Folder, LIMIT, Proxy, etcd, postgres, redis, zookeeper};

pub(crate) use self::waiting::{bounded, until};

/// A ttl that does not end while a test runs: what becomes free before, became free by a release.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// What the nodes of a Redlock are told: that such locks are fine.
pub(crate) const REDLOCK: &str = "max_ttl=20m";

/// A ttl to wait the end of. An answer that takes longer grants nothing, on several nodes half of it.
pub(crate) const SHORT: Duration = Duration::from_millis(1500);

/// A wait for a lock that stays held. The store must have said by then who holds it.
pub(crate) const IN_VAIN: Duration = Duration::from_secs(2);

pub(crate) fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// One store, empty at the start and gone at the end.
pub(crate) enum Stage {
    Memory(memory::Store),
    File(Folder),
    Redis(Box<redis::Server>),
    Redlock(Box<redis::Fleet>),
    Zookeeper(Zookeeper),
    Postgres(Box<Database>),
    Etcd { cluster: Arc<etcd::Cluster>, prefix: String },
}

/// A part of a server that all tests share, over a link of its own.
pub(crate) struct Zookeeper {
    server: &'static zookeeper::Server,
    chroot: String,
    link: Proxy,
}

impl Zookeeper {
    pub(crate) fn url(&self) -> String {
        format!("zookeeper://{}{}", self.link.addr(), self.chroot)
    }

    /// The nodes that contend for locks.
    fn contenders(&self) -> Vec<String> {
        let mut nodes = self.server.client().tree(&self.chroot);
        nodes.retain(|node| node.contains("-lock-"));
        nodes
    }
}

/// A database of its own on the server that all tests share. What a test stops is its link to it.
pub(crate) struct Database {
    server: &'static postgres::Server,
    name: String,
    proxy: Proxy,
}

impl Database {
    pub(crate) fn url(&self) -> String {
        // Longer than the default, so that a busy machine does not exceed it.
        format!("{}?timeout=10s", self.server.url_at(self.proxy.addr(), &self.name))
    }

    pub(crate) fn psql(&self, sql: &str) -> String {
        self.server.psql(&self.name, sql)
    }
}

impl Stage {
    pub(crate) fn memory() -> Self {
        Self::Memory(memory::Store::new())
    }

    pub(crate) fn file() -> Self {
        Self::File(Folder::new("file"))
    }

    pub(crate) fn redis() -> Self {
        Self::Redis(Box::new(redis::Server::start()))
    }

    pub(crate) fn redlock() -> Self {
        let fleet = redis::Fleet::start(3);
        let url = fleet.url_with(REDLOCK);
        let init = std::thread::spawn(move || blocking::Locks::init(&url));
        assert_eq!(init.join().unwrap().unwrap().len(), 3);
        Self::Redlock(Box::new(fleet))
    }

    pub(crate) fn zookeeper() -> Self {
        // Ends with the test process: its supervisor sees to that.
        static SERVER: OnceLock<zookeeper::Server> = OnceLock::new();
        static TEST: AtomicU32 = AtomicU32::new(0);
        let server = SERVER.get_or_init(zookeeper::Server::start);
        let chroot = format!("/test-{}", TEST.fetch_add(1, Ordering::Relaxed));
        Self::Zookeeper(Zookeeper { server, chroot, link: Proxy::start(server.addr()) })
    }

    pub(crate) fn postgres() -> Self {
        let server = postgres::Server::shared();
        let (name, proxy) = (server.create_database(), Proxy::start(server.addr()));
        Self::Postgres(Box::new(Database { server, name, proxy }))
    }

    /// A part of the one cluster that all tests share which do not break it.
    pub(crate) fn etcd() -> Self {
        static SHARED: OnceLock<Arc<etcd::Cluster>> = OnceLock::new();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let cluster = SHARED.get_or_init(|| Arc::new(etcd::Cluster::start(1))).clone();
        Self::Etcd { cluster, prefix: format!("test {}:", NEXT.fetch_add(1, Ordering::Relaxed)) }
    }

    /// A cluster of its own, to be stopped.
    pub(crate) fn etcd_alone() -> Self {
        Self::Etcd { cluster: Arc::new(etcd::Cluster::start(1)), prefix: String::new() }
    }

    pub(crate) fn etcd_url(cluster: &etcd::Cluster, prefix: &str) -> String {
        format!("{}?prefix={}", cluster.url(), prefix.replace(' ', "%20"))
    }

    /// The locks of this store, over a connection of their own.
    pub(crate) async fn locks(&self) -> Locks {
        match self {
            Self::Memory(store) => store.locks().unwrap(),
            Self::File(folder) => Locks::connect(&file_url(folder.path())).await.unwrap(),
            Self::Redis(server) => Locks::connect(&server.url()).await.unwrap(),
            Self::Redlock(fleet) => Locks::connect(&fleet.url_with(REDLOCK)).await.unwrap(),
            Self::Zookeeper(part) => Locks::connect(&part.url()).await.unwrap(),
            Self::Postgres(database) => Locks::connect(&database.url()).await.unwrap(),
            Self::Etcd { cluster, prefix } => Locks::connect(&Self::etcd_url(cluster, prefix)).await.unwrap(),
        }
    }

    pub(crate) fn server(&self) -> &redis::Server {
        match self {
            Self::Redis(server) => server,
            _ => panic!("a test for Redis"),
        }
    }

    pub(crate) fn server_mut(&mut self) -> &mut redis::Server {
        match self {
            Self::Redis(server) => server,
            _ => panic!("a test for Redis"),
        }
    }

    /// Stops the store: it answers nothing until [`resume`](Self::resume).
    pub(crate) fn stop(&self) {
        match self {
            Self::Memory(store) => store.freeze(),
            Self::File(_) => panic!("a file store cannot be stopped"),
            Self::Redis(server) => server.pause(),
            Self::Redlock(fleet) => fleet.iter().for_each(redis::Server::pause),
            Self::Zookeeper(part) => part.link.stall(),
            Self::Postgres(database) => database.proxy.stall(),
            Self::Etcd { cluster, .. } => cluster.iter().for_each(etcd::Member::pause),
        }
    }

    pub(crate) fn resume(&self) {
        match self {
            Self::Memory(store) => store.thaw(),
            Self::File(_) => {}
            Self::Redis(server) => server.resume(),
            Self::Redlock(fleet) => fleet.iter().for_each(redis::Server::resume),
            Self::Zookeeper(part) => part.link.pass(),
            Self::Postgres(database) => database.proxy.pass(),
            Self::Etcd { cluster, .. } => cluster.iter().for_each(etcd::Member::resume),
        }
    }

    /// Removes the entry of a held lock behind everybody's back.
    pub(crate) fn remove(&self, name: &str) {
        match self {
            Self::Memory(store) => assert!(store.expire(name)),
            Self::File(_) => panic!("the kernel keeps a file lock"),
            Self::Redis(server) => assert_eq!(server.cli(&["DEL", &format!("lock:{name}")]), "1"),
            Self::Redlock(fleet) => {
                let key = format!("lock:{name}");
                // A majority is enough for a grant: the request to another node may still be on the way.
                let held = |node: &redis::Server| !node.keys_like(&key).is_empty();
                fencepost_testkit::eventually("every node has it", || fleet.iter().all(held));
                for node in fleet.iter() {
                    node.cli(&["DEL", &key]);
                }
            }
            Self::Zookeeper(part) => {
                let folder = format!("{}/fencepost/{name}", part.chroot);
                let mut client = part.server.client();
                // The first to come has the smallest number, which its name ends with.
                let mut children = client.children(&folder).unwrap();
                children.sort_by_key(|child| child[child.len() - 10..].to_owned());
                let first = children.swap_remove(0);
                assert!(client.delete(&format!("{folder}/{first}")).unwrap());
            }
            Self::Postgres(database) => {
                let sql = format!("DELETE FROM fencepost.locks WHERE name = '{name}' RETURNING 1");
                assert_eq!(database.psql(&sql), "1");
            }
            Self::Etcd { cluster, prefix } => {
                // The first to come, and nobody who waits for it.
                let keys = cluster.etcdctl(&[
                    "get",
                    "--prefix",
                    &format!("{prefix}{name}/"),
                    "--keys-only",
                    "--sort-by=CREATE",
                ]);
                assert_eq!(cluster.etcdctl(&["del", keys.lines().next().unwrap()]), "1");
            }
        }
    }

    /// Waits until the store has no trace of a held lock.
    pub(crate) async fn is_clear(&self) {
        match self {
            Self::Memory(store) => until("no lock is held", async || store.held() == 0).await,
            Self::File(_) => {
                let locks = self.locks().await;
                until("no lock is held", async || locks.list("").await.unwrap().holders.is_empty()).await;
            }
            Self::Redis(server) => {
                until("no key is left", async || server.keys_like("lock:*").is_empty()).await
            }
            Self::Redlock(fleet) => {
                let none = || fleet.iter().all(|node| node.keys_like("lock:*").is_empty());
                until("no key is left", async || none()).await;
            }
            Self::Zookeeper(part) => {
                until("no contender is left", async || part.contenders().is_empty()).await
            }
            Self::Postgres(database) => {
                let sql = "SELECT (SELECT count(*) FROM fencepost.locks WHERE owner IS NOT NULL) + (SELECT \
                count(*) \
                           FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
                           WHERE l.locktype = 'advisory' AND d.datname = current_database())";
                until("no row and no advisory lock is left", async || database.psql(sql) == "0").await;
            }
            Self::Etcd { cluster, prefix } => {
                until("no key is left", async || cluster.keys(prefix).is_empty()).await;
            }
        }
    }
}

pub(crate) fn file_url(folder: &Path) -> String {
    format!("file://{}", folder.display())
}

/// A lock whose acquire fails the test if it does not come.
pub(crate) fn patient(locks: &Locks, name: &str) -> Lock {
    locks.lock(name).ttl(LONG).wait(LIMIT)
}

/// Acquires, or fails the test.
pub(crate) async fn take(locks: &Locks, name: &str) -> Guard {
    patient(locks, name).acquire().await.unwrap()
}

/// Shows that a lock is free, or becomes so before any lease of this test ends.
pub(crate) async fn becomes_free(locks: &Locks, name: &str) {
    take(locks, name).await.release().await.unwrap();
}

/// Makes each `async fn(Stage)` a test on each of the stores.
macro_rules! on_every_store {
    ($($test:ident),+ $(,)?) => { $( on_stores!($test: memory, file, redis, redlock, postgres, etcd, zookeeper); )+ };
}

/// The same where locks are leases, that is, where they can end by time.
macro_rules! on_stores_with_leases {
    ($($test:ident),+ $(,)?) => { $( on_stores!($test: memory, redis, redlock, postgres, etcd_alone, zookeeper); )+ };
}

/// The same where a lock can outlive its process.
macro_rules! on_stores_that_detach {
    ($($test:ident),+ $(,)?) => { $( on_stores!($test: memory, file, redis, redlock, postgres, etcd); )+ };
}

/// The same on Redis alone.
macro_rules! on_redis {
    ($($test:ident),+ $(,)?) => { $( on_stores!($test: redis); )+ };
}

macro_rules! on_stores {
    ($test:ident: $($store:ident),+) => {
        mod $test {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $store() {
                    super::$test($crate::stage::Stage::$store()).await;
                }
            )+
        }
    };
}
