//! What the tests of the Redis store share.

use std::time::Duration;

use fencepost::Locks;
use fencepost_testkit::eventually;
use fencepost_testkit::redis::Server;

#[path = "../common/waiting.rs"]
mod waiting;
pub(crate) use waiting::{bounded, until};

pub(crate) fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

pub(crate) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) async fn connect(server: &Server) -> Locks {
    Locks::connect(&server.url()).await.unwrap()
}

pub(crate) fn queue_length(server: &Server, name: &str) -> u64 {
    server.cli(&["LLEN", &format!("{{lock:{name}}}:waiting")]).parse().unwrap()
}

/// Waits until so many stand in the queue.
pub(crate) async fn queues(server: &Server, name: &str, count: u64) {
    until("they stand in the queue", async || queue_length(server, name) == count).await;
}

/// Waits on a condition without keeping the runtime from its work.
pub(crate) async fn wait_until(what: &'static str, condition: impl FnMut() -> bool + Send + 'static) {
    tokio::task::spawn_blocking(move || eventually(what, condition)).await.unwrap();
}

/// Has the lock once, and says its token.
pub(crate) async fn use_once(locks: &Locks, name: &str) -> u64 {
    let guard = bounded("the lock is granted", locks.lock(name).acquire()).await.unwrap();
    let token = guard.token().get();
    guard.release().await.unwrap();
    token
}

/// A master, its replica in sync, and an address that leads to the master.
pub(crate) async fn pair() -> (Server, Server, fencepost_testkit::Proxy) {
    let quick = || Server::config().line("repl-diskless-sync-delay 0");
    let master = quick().start();
    let replica = quick().replica_of(&master).start();
    until("the replica follows", async || follows(&replica)).await;
    let address = fencepost_testkit::Proxy::start(master.addr());
    (master, replica, address)
}

fn follows(replica: &Server) -> bool {
    replica.cli(&["INFO", "replication"]).contains("master_link_status:up")
}

/// Lets two servers change their places, with nothing lost. Links stay open.
pub(crate) async fn swap(master: &Server, replica: &Server) {
    // Writes arrive in order.
    let mark = master.run_id();
    master.cli(&["SET", "mark", &mark]);
    until("the replica has it all", async || replica.cli(&["GET", "mark"]) == mark).await;
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    let addr = replica.addr();
    master.cli(&["REPLICAOF", &addr.ip().to_string(), &addr.port().to_string()]);
    until("it follows its replica", async || follows(master)).await;
}

/// Runs a future as far as it gets.
pub(crate) async fn poll_once<F: Future + Unpin>(future: &mut F) {
    std::future::poll_fn(|context| {
        let _ = std::pin::Pin::new(&mut *future).poll(context);
        std::task::Poll::Ready(())
    })
    .await;
}
