//! Real clients of other make on the same keys: redis-py's `Lock`, redlock-py, `etcdctl lock` and kazoo's
//! `Lock` exclude us, and we them.

#![allow(clippy::unwrap_used)]
#![cfg(feature = "redis")]

#[cfg(feature = "etcd")]
mod etcdctl;
#[cfg(feature = "zookeeper")]
mod kazoo;
#[cfg(feature = "redlock")]
mod nodes;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use fencepost::{Error, Locks};
use fencepost_testkit::{LIMIT, redis::Server};

const LONG: Duration = Duration::from_secs(600);

/// A Python process with a lock of its own. It ends with this value, and with the test by the end of its
/// stdin.
struct Peer {
    process: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    fn start(package: &str, server: &Server, name: &str, ttl: Duration) -> Self {
        Self::start_on(package, &server.addr().port().to_string(), name, ttl)
    }

    /// With a lock on several servers, whose ports are given with commas in between.
    fn start_on(package: &str, ports: &str, name: &str, ttl: Duration) -> Self {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let python = std::env::var_os("FENCEPOST_PEERS_PYTHON")
            .map_or_else(|| here.join("../../target/peers-venv/bin/python"), PathBuf::from);
        let mut process = Command::new(&python)
            .arg(here.join("tests/peers/peer.py"))
            .args([package, ports, name, &ttl.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}; run `make deps`", python.display()));
        let commands = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Self { process, commands, answers }
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.commands.as_mut().unwrap(), "{command}").unwrap();
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.commands.take());
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Makes each `async fn(package)` a test with each of the packages.
macro_rules! with_every_peer {
    ($($test:ident),+ $(,)?) => { $(
        mod $test {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn redis_py() {
                super::$test("redis").await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn redlock_py() {
                super::$test("redlock").await;
            }
        }
    )+ };
}

with_every_peer!(
    a_peer_cannot_have_what_we_hold,
    we_cannot_have_what_a_peer_holds,
    a_waiter_of_ours_gets_the_lock_when_a_peer_releases,
    a_waiter_of_ours_gets_the_lock_when_a_peers_lease_ends,
    a_waiting_peer_gets_the_lock_when_we_release,
    a_peers_late_release_does_not_touch_our_lock,
);

async fn a_peer_cannot_have_what_we_hold(package: &str) {
    let server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let mut peer = Peer::start(package, &server, "a", LONG);
    let guard = locks.lock("a").ttl(LONG).acquire().await.unwrap();
    assert_eq!(peer.ask("try"), "busy");
    guard.extend().await.unwrap();
    assert_eq!(peer.ask("try"), "busy");
    guard.release().await.unwrap();
    assert_eq!(peer.ask("try"), "held");
}

async fn we_cannot_have_what_a_peer_holds(package: &str) {
    let server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let mut peer = Peer::start(package, &server, "a", LONG);
    assert_eq!(peer.ask("try"), "held");
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    let error = locks.lock("a").wait(Duration::from_secs(2)).acquire().await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!(error.to_string().contains("foreign client"), "{error}");
    let holder = locks.show("a").await.unwrap().unwrap();
    assert!(holder.owner.is_none() && holder.expires_in.is_some_and(|left| left <= LONG), "{holder:?}");
    assert!(holder.to_string().contains("foreign client"), "{holder}");
    assert_eq!(locks.list("").await.unwrap().holders.len(), 1);
    assert_eq!(peer.ask("release"), "released");
    locks.lock("a").try_acquire().await.unwrap().unwrap().release().await.unwrap();
}

async fn a_waiter_of_ours_gets_the_lock_when_a_peer_releases(package: &str) {
    let server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let mut peer = Peer::start(package, &server, "a", LONG);
    assert_eq!(peer.ask("try"), "held");
    let waiter = tokio::spawn({
        let lock = locks.lock("a").ttl(LONG).wait(LIMIT);
        async move { lock.acquire().await.unwrap() }
    });
    while locks.stats().waiting_now == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(peer.ask("release"), "released");
    waiter.await.unwrap().release().await.unwrap();
}

async fn a_waiter_of_ours_gets_the_lock_when_a_peers_lease_ends(package: &str) {
    let server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let mut peer = Peer::start(package, &server, "a", Duration::from_secs(2));
    assert_eq!(peer.ask("try"), "held");
    locks.lock("a").ttl(LONG).wait(LIMIT).acquire().await.unwrap().release().await.unwrap();
}

async fn a_waiting_peer_gets_the_lock_when_we_release(package: &str) {
    let server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let mut peer = Peer::start(package, &server, "a", LONG);
    let guard = locks.lock("a").ttl(LONG).acquire().await.unwrap();
    assert_eq!(peer.ask("try"), "busy");
    peer.tell("wait");
    guard.release().await.unwrap();
    assert_eq!(peer.answer(), "held");
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
}

async fn a_peers_late_release_does_not_touch_our_lock(package: &str) {
    let server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let mut peer = Peer::start(package, &server, "a", Duration::from_secs(2));
    assert_eq!(peer.ask("try"), "held");
    let guard = locks.lock("a").ttl(LONG).wait(LIMIT).acquire().await.unwrap();
    // Only redis-py notices.
    assert_eq!(peer.ask("release"), if package == "redis" { "lost" } else { "released" });
    guard.extend().await.unwrap();
    guard.release().await.unwrap();
}
