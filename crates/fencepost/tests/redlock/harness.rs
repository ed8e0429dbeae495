//! The servers that these tests break, and what they have of a lock.

#[path = "../common/waiting.rs"]
mod waiting;

use std::collections::BTreeSet;
use std::time::Duration;

use fencepost::{Guard, Lock, Locks, Verdict};
use fencepost_testkit::LIMIT;
use fencepost_testkit::redis::{Nodes, Server};

pub(crate) use self::waiting::{bounded, until};

/// A ttl that does not end while a test runs.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// A deployment that is fine with such locks.
pub(crate) const CALM: &str = "max_ttl=20m";

/// Short leases, and about the shortest quarantine that goes with them.
pub(crate) const QUICK: &str = "max_ttl=1s&quarantine=3s";

pub(crate) fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Starts servers and declares them a deployment, so that they vote at once.
pub(crate) async fn declared(count: usize, parameters: &str) -> Nodes {
    let nodes = Nodes::start(count);
    declare(&nodes, parameters).await;
    nodes
}

pub(crate) async fn declare(nodes: &Nodes, parameters: &str) {
    assert_eq!(Locks::init(&nodes.url_with(parameters)).await.unwrap().len(), nodes.len());
}

pub(crate) async fn connect(nodes: &Nodes, parameters: &str) -> Locks {
    let locks = Locks::connect(&nodes.url_with(parameters)).await.unwrap();
    // To all nodes, whether they vote or not: a lock that is taken before is held by a majority alone.
    let _ = locks.check().await;
    locks
}

/// The same where all nodes are up: returns when each of them is connected to.
pub(crate) async fn connect_to_all(nodes: &Nodes, parameters: &str) -> Locks {
    let channels = |node: &Server| -> BTreeSet<String> {
        node.cli(&["PUBSUB", "CHANNELS", "????????????????"]).lines().map(str::to_owned).collect()
    };
    let before: Vec<_> = nodes.iter().map(channels).collect();
    let locks = connect(nodes, parameters).await;
    until("all nodes are connected to", async || {
        let _ = locks.check().await;
        nodes.iter().zip(&before).all(|(node, before)| !channels(node).is_subset(before))
    })
    .await;
    // Reads the answers to the greetings.
    let _ = locks.check().await;
    locks
}

/// A lock whose acquire fails the test if it does not come.
pub(crate) fn patient(locks: &Locks, name: &str) -> Lock {
    locks.lock(name).ttl(LONG).wait(LIMIT)
}

/// Acquires the lock `a`, or fails the test.
pub(crate) async fn take(locks: &Locks) -> Guard {
    patient(locks, "a").acquire().await.unwrap()
}

/// Acquires, extends and releases the lock `a`; its token.
pub(crate) async fn use_once(locks: &Locks) -> u64 {
    let guard = take(locks).await;
    guard.extend().await.unwrap();
    let token = guard.token().get();
    guard.release().await.unwrap();
    token
}

/// The clock of the suspend-aware kind, which guards count by.
pub(crate) fn boottime() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap())
}

// --- what a node has
// ------------------------------------------------------------------------------------------

/// The key that says whether a node votes.
pub(crate) const NODE: &str = "{fencepost}:node";

/// When the quarantine of a node ends, in microseconds of its clock; `None` if it votes.
pub(crate) fn ready(node: &Server) -> Option<u64> {
    node.cli(&["GET", NODE]).split(' ').nth(4).map(|ready| ready.parse().unwrap())
}

/// Its clock, in microseconds.
pub(crate) fn clock(node: &Server) -> u64 {
    let time = node.cli(&["TIME"]);
    let (seconds, micros) = time.split_once('\n').unwrap();
    seconds.parse::<u64>().unwrap() * 1_000_000 + micros.parse::<u64>().unwrap()
}

/// The counter of the lock `a`.
pub(crate) fn counter(node: &Server) -> u64 {
    node.cli(&["GET", "{lock:a}:fence"]).parse().unwrap_or(0)
}

/// How often somebody asked a node what it has of a lock.
pub(crate) fn reads(node: &Server) -> u64 {
    let stats = node.cli(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_pttl:calls="));
    line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

pub(crate) fn holds(node: &Server, name: &str) -> bool {
    !node.keys_like(&format!("lock:{name}")).is_empty()
}

/// Everything on a node that belongs to a lock or to a waiter, but the counters.
fn leftovers(node: &Server) -> Vec<String> {
    node.keys_like("*lock:*").into_iter().filter(|key| !key.ends_with(":fence")).collect()
}

/// Waits until no node has a trace of a lock or of a waiter. With long leases: because it was given back.
pub(crate) async fn is_clear(nodes: &Nodes) {
    let mut left = Vec::new();
    let wait = async {
        loop {
            left = nodes.iter().flat_map(leftovers).collect();
            if left.is_empty() {
                return;
            }
            tokio::time::sleep(ms(5)).await;
        }
    };
    if tokio::time::timeout(LIMIT / 4, wait).await.is_err() {
        panic!("left behind: {left:?}");
    }
}

// --- what an error says
// ---------------------------------------------------------------------------------------

pub(crate) fn quarantined(verdict: &Verdict, because: &str) -> bool {
    matches!(verdict, Verdict::Quarantined { why, .. } if why.contains(because))
}
