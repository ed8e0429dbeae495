//! The servers that these tests break, and what they have of a lock.

#[path = "../common/waiting.rs"]
mod waiting;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fencepost::{Guard, Lock, Locks};
use fencepost_testkit::zookeeper::Server;
use fencepost_testkit::{LIMIT, Proxy};

pub(crate) use self::waiting::{bounded, until};

/// A ttl that does not end while a test runs.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// A ttl to wait the end of.
pub(crate) const SHORT: Duration = Duration::from_secs(3);

pub(crate) fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A part of a server that tests share, with a link to it that can be broken.
pub(crate) struct Part {
    pub(crate) server: &'static Server,
    pub(crate) link: Proxy,
    pub(crate) chroot: String,
}

impl Part {
    pub(crate) fn new() -> Self {
        // Ends with the test process: its supervisor sees to that.
        static SERVER: OnceLock<Server> = OnceLock::new();
        static TEST: AtomicU32 = AtomicU32::new(0);
        let server = SERVER.get_or_init(Server::start);
        let chroot = format!("/test-{}", TEST.fetch_add(1, Ordering::Relaxed));
        Self { server, link: Proxy::start(server.addr()), chroot }
    }

    /// Locks over the link.
    pub(crate) async fn behind_link(&self) -> Locks {
        Locks::connect(&format!("zookeeper://{}{}", self.link.addr(), self.chroot)).await.unwrap()
    }

    /// The same locks, past it.
    pub(crate) async fn locks(&self) -> Locks {
        Locks::connect(&format!("{}{}", self.server.url(), self.chroot)).await.unwrap()
    }

    /// The nodes that contend for the lock `a`, by name.
    pub(crate) fn contenders(&self) -> Vec<String> {
        contenders(self.server, &self.chroot)
    }

    pub(crate) async fn is_clear(&self) {
        until("no contender is left", async || self.contenders().is_empty()).await;
    }
}

/// The nodes that contend for the lock `a` under a chroot, by name.
pub(crate) fn contenders(server: &Server, chroot: &str) -> Vec<String> {
    server.client().children(&format!("{chroot}/fencepost/a")).unwrap()
}

/// A lock whose acquire fails the test if it does not come.
pub(crate) fn patient(locks: &Locks, name: &str) -> Lock {
    locks.lock(name).ttl(LONG).wait(LIMIT)
}

/// Acquires the lock `a`, or fails the test.
pub(crate) async fn take(locks: &Locks) -> Guard {
    patient(locks, "a").acquire().await.unwrap()
}

/// Acquires and releases the lock `a`; its token.
pub(crate) async fn use_once(locks: &Locks) -> u64 {
    let guard = take(locks).await;
    let token = guard.token().get();
    guard.release().await.unwrap();
    token
}

/// Starts to wait for the lock `a`.
pub(crate) fn start_waiting(locks: &Locks) -> tokio::task::JoinHandle<fencepost::Result<Guard>> {
    let lock = patient(locks, "a");
    tokio::spawn(async move { lock.acquire().await })
}
