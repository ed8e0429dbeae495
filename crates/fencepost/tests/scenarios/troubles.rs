//! Nodes that cannot do what they are asked to at the moment: blocked, full, loading, on the wrong side of a
//! replication. Such a node has no vote, and nobody waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use fencepost::{Error, Locks, Loss};
use fencepost_testkit::Folder;
use fencepost_testkit::redis::{Nodes, Reply, Server};

use crate::redis_nodes::{
    CALM, LONG, bounded, connect, connect_to_all, declare, declared, holds, is_clear, ms, take, until,
    use_once,
};

/// Whoever waited for an answer would wait for longer than a test may take.
const PATIENT: &str = "max_ttl=20m&timeout=10m";

/// Shows that one node of five is not missed, by those who know it from before nor by new ones.
async fn is_not_missed(nodes: &Nodes, before: &Locks) {
    bounded("a client that was connected", use_once(before)).await;
    bounded("a new one", async { use_once(&connect(nodes, PATIENT).await).await }).await;
}

/// Sends the first node a command that keeps it busy.
fn in_background(nodes: &Arc<Nodes>, words: &'static [&'static str]) -> JoinHandle<Reply> {
    let nodes = nodes.clone();
    thread::spawn(move || nodes[0].call(words))
}

/// Asks the first node for something until it refuses; how often it has answered by then.
fn asked_again_and_again(nodes: &Arc<Nodes>) -> (Arc<AtomicUsize>, JoinHandle<()>) {
    let (nodes, answers) = (nodes.clone(), Arc::<AtomicUsize>::default());
    let count = answers.clone();
    let asks = move || {
        while !matches!(nodes[0].call(&["GET", "anything"]), Reply::Error(_)) {
            count.fetch_add(1, Ordering::SeqCst);
        }
    };
    (answers, thread::spawn(asks))
}

/// What a node says when it is asked to run a script.
fn says(node: &Server) -> String {
    match node.call(&["EVAL", "return redis.call('SET', 'probe', '1')", "0"]) {
        Reply::Error(error) => error,
        other => format!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s21_a_node_that_a_script_keeps_busy_is_not_waited_for() {
    let nodes = Arc::new(Nodes::start_with(5, |config| config.line("busy-reply-threshold 8000")));
    declare(&nodes, PATIENT).await;
    let locks = connect(&nodes, PATIENT).await;
    use_once(&locks).await;
    // First it says nothing, and then `BUSY` to everything.
    let busy = in_background(&nodes, &["EVAL", "while true do end", "0"]);
    let (answers, refused) = asked_again_and_again(&nodes);
    until("it is silent", async || {
        let before = answers.load(Ordering::SeqCst);
        tokio::time::sleep(ms(100)).await;
        answers.load(Ordering::SeqCst) == before
    })
    .await;
    is_not_missed(&nodes, &locks).await;
    assert!(!refused.is_finished(), "it has said nothing all the while");
    until("it says that it is busy", async || says(&nodes[0]).starts_with("BUSY")).await;
    is_not_missed(&nodes, &locks).await;
    assert_eq!(nodes[0].cli(&["SCRIPT", "KILL"]), "OK");
    assert!(matches!(busy.join().unwrap(), Reply::Error(_)));
    until("it takes part again", async || {
        let guard = take(&locks).await;
        guard.extend().await.unwrap();
        let part = holds(&nodes[0], "a");
        guard.release().await.unwrap();
        part
    })
    .await;
    is_clear(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s22_a_node_that_is_out_of_memory_has_no_vote_and_lets_go() {
    let nodes = declared(5, PATIENT).await;
    let locks = connect_to_all(&nodes, PATIENT).await;
    let guard = take(&locks).await;
    until("all nodes have it", async || nodes.iter().all(|node| holds(node, "a"))).await;
    nodes[0].cli(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(says(&nodes[0]).contains("OOM"), "{}", says(&nodes[0]));
    guard.extend().await.unwrap();
    guard.release().await.unwrap();
    // A node that has no room for new keys can still delete one.
    is_clear(&nodes).await;
    is_not_missed(&nodes, &locks).await;
    assert!(!holds(&nodes[0], "a"));
    let next = take(&locks).await;
    let found = locks.show("a").await.unwrap().unwrap().nodes;
    assert!(!found[0].holds, "{found:?}");
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s22_a_majority_that_is_out_of_memory_is_named() {
    let nodes = declared(3, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    for node in [0, 1] {
        nodes[node].cli(&["CONFIG", "SET", "maxmemory", "1"]);
    }
    let error = locks.lock("a").ttl(LONG).try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("OOM"), "{error:?}");
    is_clear(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s22_a_node_that_cannot_save_has_no_vote() {
    let nodes = Nodes::start_with(5, |config| config.line("enable-protected-configs yes"));
    declare(&nodes, PATIENT).await;
    let locks = connect(&nodes, PATIENT).await;
    let guard = take(&locks).await;
    until("all nodes have it", async || nodes.iter().all(|node| holds(node, "a"))).await;
    let folder = Folder::new("troubles");
    nodes[0].cli(&["CONFIG", "SET", "save", "3600 1", "dir", folder.path().to_str().unwrap()]);
    drop(folder);
    nodes[0].cli(&["BGSAVE"]);
    until("it says that it cannot save", async || says(&nodes[0]).contains("MISCONF")).await;
    guard.extend().await.unwrap();
    guard.release().await.unwrap();
    is_not_missed(&nodes, &locks).await;
    // It refuses all writes, also deletions: what it has ends with its lease, or is given back when it can.
    nodes[0].cli(&["CONFIG", "SET", "save", ""]);
    until("it writes again", async || !says(&nodes[0]).contains("MISCONF")).await;
    use_once(&locks).await;
    is_clear(&nodes).await;
}

/// Fills a server until it has evicted the lock `a`.
fn evict(server: &Server) {
    let filler = "x".repeat(100_000);
    for number in 0.. {
        server.cli(&["SET", &format!("filler:{number}"), &filler, "EX", "1000"]);
        if !holds(server, "a") {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s23_tokens_grow_where_eviction_was_accepted_and_took_a_lock() {
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let server =
            Server::config().line("maxmemory 4mb").line(format!("maxmemory-policy {policy}")).start();
        let error = Locks::connect(&server.url()).await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }) && error.to_string().contains("evicting"), "{error}");
        let locks = Locks::connect(&format!("{}?allow=evicting", server.url())).await.unwrap();
        let mut last = None;
        for _ in 0..3 {
            let guard = locks.lock("a").ttl(LONG).acquire().await.unwrap();
            assert!(Some(guard.token()) > last, "{:?} after {last:?}", guard.token());
            tokio::task::block_in_place(|| evict(&server));
            // Exclusion is gone, as was accepted; the old holder learns it at its next renewal.
            let next = locks.lock("a").ttl(LONG).try_acquire().await.unwrap().unwrap();
            assert!(next.token() > guard.token());
            last = Some(next.token());
            let error = guard.extend().await.unwrap_err();
            assert!(matches!(error, Error::Lost { why: Loss::Taken, .. }), "{error:?}");
            next.release().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s24_tokens_grow_where_a_lock_was_deleted_by_hand() {
    let nodes = declared(3, CALM).await;
    let (locks, rival) = (connect_to_all(&nodes, CALM).await, connect_to_all(&nodes, CALM).await);
    let mut last = None;
    for _ in 0..5 {
        let guard = take(&locks).await;
        assert!(Some(guard.token()) > last);
        until("all nodes have it", async || nodes.iter().all(|node| holds(node, "a"))).await;
        nodes.iter().for_each(|node| drop(node.cli(&["DEL", "lock:a"])));
        let next = take(&rival).await;
        assert!(next.token() > guard.token(), "the counters were not deleted");
        last = Some(next.token());
        let error = guard.extend().await.unwrap_err();
        assert!(matches!(error, Error::Lost { why: Loss::Taken, .. }), "{error:?}");
        next.check().unwrap();
        next.release().await.unwrap();
        is_clear(&nodes).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s27_a_node_that_loads_its_data_is_not_waited_for() {
    let nodes = Arc::new(Nodes::start_with(5, |config| config.line("enable-debug-command yes")));
    declare(&nodes, PATIENT).await;
    let locks = connect(&nodes, PATIENT).await;
    use_once(&locks).await;
    nodes[0].cli(&["DEBUG", "POPULATE", "3000"]);
    // Each key takes it this many microseconds, and now and then it looks who asks.
    let slow = ["key-load-delay", "20000", "loading-process-events-interval-bytes", "1024"];
    nodes[0].cli(&[&["CONFIG", "SET"], &slow[..]].concat());
    let loading = in_background(&nodes, &["DEBUG", "RELOAD"]);
    until("it says that it loads", async || says(&nodes[0]).contains("LOADING")).await;
    is_not_missed(&nodes, &locks).await;
    assert!(says(&nodes[0]).contains("LOADING"), "it has loaded all the while");
    nodes[0].cli(&["CONFIG", "SET", "key-load-delay", "0"]);
    loading.join().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s27_a_replica_that_lost_its_master_has_no_vote() {
    let nodes = declared(5, PATIENT).await;
    let locks = connect_to_all(&nodes, PATIENT).await;
    use_once(&locks).await;
    nodes[0].cli(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    // Nobody listens there.
    nodes[0].cli(&["REPLICAOF", "127.0.0.1", "1"]);
    assert!(says(&nodes[0]).contains("MASTERDOWN"), "{}", says(&nodes[0]));
    is_not_missed(&nodes, &locks).await;
    let guard = take(&locks).await;
    let found = locks.show("a").await.unwrap().unwrap().nodes;
    assert!(found[0].problem.is_some() && !found[0].holds, "{found:?}");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s28_a_node_of_a_cluster_is_refused() {
    let mut first = true;
    let nodes = Nodes::start_with(3, |config| match std::mem::take(&mut first) {
        true => config.line("cluster-enabled yes"),
        false => config,
    });
    let refusals = [
        Locks::connect(&nodes[0].url()).await.unwrap_err(),
        Locks::init(&nodes.url_with(CALM)).await.unwrap_err(),
    ];
    for error in refusals {
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        assert!(error.to_string().contains("Redis Cluster"), "{error}");
    }
}
