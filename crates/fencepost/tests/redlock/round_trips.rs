//! What an acquire costs: one request to every node, as long as their counters agree; and how they agree
//! again. Requests of the same turn go together.

use fencepost::{Error, Locks};
use fencepost_testkit::Proxy;
use fencepost_testkit::redis::Nodes;

use crate::harness::{
    CALM, LONG, connect, connect_to_all, counter, declared, holds, patient, take, until, use_once,
};

/// Waits until all nodes have heard of the last grant of `a`, and of its release.
async fn all_heard(nodes: &Nodes, token: u64) {
    let heard = || nodes.iter().all(|node| counter(node) == token && !holds(node, "a"));
    until("all requests are heard", async || heard()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_and_a_release_are_one_request_each_to_every_node() {
    let nodes = declared(5, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    let mut token = 0;
    for _ in 0..51 {
        let guard = take(&locks).await;
        token = guard.token().get();
        guard.release().await.unwrap();
        all_heard(&nodes, token).await;
    }
    assert!(token > 0);
    // One, if the node was so slow that both went together.
    let calls: Vec<_> = nodes.iter().map(|node| node.evalsha_calls()).collect();
    assert!(calls.iter().all(|calls| (51..=102).contains(calls)), "{calls:?}");
}

#[tokio::test]
async fn what_many_tasks_ask_for_in_one_turn_is_one_request() {
    let nodes = declared(3, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    take(&locks).await.release().await.unwrap();
    let before: Vec<_> = nodes.iter().map(|node| node.evalsha_calls()).collect();
    let tasks: Vec<_> = (0..64)
        .map(|index| {
            let lock = patient(&locks, &format!("many:{index}"));
            tokio::spawn(async move {
                for _ in 0..10 {
                    lock.acquire().await.unwrap().release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    // Comes behind all that was sent.
    locks.show("many:0").await.unwrap();
    for (node, before) in nodes.iter().zip(before) {
        let calls = node.evalsha_calls() - before;
        assert!((20..640).contains(&calls), "{calls} requests for 640 cycles");
    }
}

/// What a server refuses to one of those who went together it does not refuse to the others.
#[tokio::test]
async fn a_name_that_is_not_allowed_is_refused_alone() {
    let nodes = declared(3, CALM).await;
    for node in nodes.iter() {
        node.cli(&["ACL", "SETUSER", "some", "on", ">pw", "+@all", "&*", "~{fencepost}:*", "~*ours*"]);
    }
    let hosts = nodes.url();
    let hosts = hosts.strip_prefix("redlock://").unwrap();
    let locks = Locks::connect(&format!("redlock://some:pw@{hosts}?{CALM}")).await.unwrap();
    take_named(&locks, "ours:warm").await.unwrap();
    let ours = (0..20).map(|index| format!("ours:{index}"));
    let theirs = (0..20).map(|index| format!("theirs:{index}"));
    let tasks: Vec<_> = ours
        .zip(theirs)
        .flat_map(|(ours, theirs)| [ours, theirs])
        .map(|name| {
            let locks = locks.clone();
            tokio::spawn(async move { (take_named(&locks, &name).await, name) })
        })
        .collect();
    for task in tasks {
        let (outcome, name) = task.await.unwrap();
        assert_eq!(outcome.is_ok(), name.starts_with("ours"), "{name}: {outcome:?}");
    }
}

async fn take_named(locks: &Locks, name: &str) -> fencepost::Result<()> {
    let guard = locks.lock(name).ttl(LONG).try_acquire().await?;
    guard.expect("a free lock").release().await
}

#[tokio::test]
async fn a_key_of_a_wrong_type_and_a_forgotten_script_spoil_nothing_for_others() {
    let nodes = declared(3, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    take_named(&locks, "warm").await.unwrap();
    for node in nodes.iter() {
        node.cli(&["RPUSH", "lock:list", "x"]);
        node.cli(&["SCRIPT", "FLUSH"]);
    }
    // Found taken when it is sent again, the lock would be granted with an old counter.
    nodes.iter().for_each(|node| drop(node.cli(&["SET", "{lock:text}:fence", "no number"])));
    let names = ["a", "b", "list", "c", "text", "d"];
    let tasks: Vec<_> = names
        .map(|name| {
            let locks = locks.clone();
            tokio::spawn(
                async move { locks.lock(name).ttl(LONG).try_acquire().await.map(|got| got.is_some()) },
            )
        })
        .into();
    for (task, name) in tasks.into_iter().zip(names) {
        let got = task.await.unwrap();
        assert_eq!(matches!(got, Ok(true)), !["list", "text"].contains(&name), "{name}: {got:?}");
    }
    assert!(!nodes.iter().any(|node| holds(node, "text")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_answer_is_one_attempt_also_where_a_node_is_dead() {
    for dead in [0, 1] {
        let mut nodes = declared(3, CALM).await;
        let (locks, others) = (connect(&nodes, CALM).await, connect(&nodes, CALM).await);
        let _guard = take(&locks).await;
        until("all nodes have it", async || nodes.iter().all(|node| holds(node, "a"))).await;
        if dead == 1 {
            nodes[2].kill();
            // Until the client has noticed.
            assert!(others.lock("b").ttl(LONG).try_acquire().await.unwrap().is_some());
            until("it is given back", async || !holds(&nodes[0], "b") && !holds(&nodes[1], "b")).await;
        }
        // A node that is much slower than the other one is not waited for, and all are asked again.
        until("a busy answer is one attempt", async || {
            let before = nodes[0].evalsha_calls();
            assert!(others.lock("a").ttl(LONG).try_acquire().await.unwrap().is_none());
            // Comes behind the attempt and what gives it back, which are one request if the node was slow.
            others.show("a").await.unwrap();
            (before + 1..=before + 2).contains(&nodes[0].evalsha_calls())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_a_counter_is_ahead_the_token_is_larger_and_the_others_follow() {
    let nodes = declared(3, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    let ahead = use_once(&locks).await + 60_000_000;
    nodes[1].cli(&["SET", "{lock:a}:fence", &ahead.to_string()]);
    let mut tokens = Vec::new();
    // Nodes that answer late do not take part in the agreement at once.
    until("the counters agree", async || {
        tokens.push(use_once(&locks).await);
        let last = *tokens.last().unwrap();
        last > ahead && nodes.iter().all(|node| counter(node) == last)
    })
    .await;
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    // From then on an acquire is one request again. A few from before may come late.
    let before: Vec<_> = nodes.iter().map(|node| node.evalsha_calls()).collect();
    let mut last = 0;
    for _ in 0..10 {
        let guard = take(&locks).await;
        last = guard.token().get();
        guard.release().await.unwrap();
    }
    all_heard(&nodes, last).await;
    let calls = || nodes.iter().zip(&before).map(|(node, before)| node.evalsha_calls() - before);
    assert!(calls().all(|calls| calls < 25), "{:?}", calls().collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_missed_grants_catches_up() {
    let mut nodes = declared(3, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    let mut tokens = vec![use_once(&locks).await];
    nodes[2].pause();
    for _ in 0..5 {
        tokens.push(use_once(&locks).await);
    }
    // Far ahead of any clock, so that only what the nodes remember can keep the order.
    let ahead = tokens[5] + 60_000_000;
    for node in [0, 1] {
        nodes[node].cli(&["SET", "{lock:a}:fence", &ahead.to_string()]);
    }
    nodes[2].resume();
    nodes[0].kill();
    tokens.push(use_once(&locks).await);
    assert!(*tokens.last().unwrap() > ahead);
    nodes[0].restart_empty();
    tokens.push(use_once(&connect(&nodes, CALM).await).await);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    assert!(counter(&nodes[2]) >= *tokens.last().unwrap());
}

/// One thread: all have asked before the first answer is read.
#[tokio::test]
async fn many_callers_at_once_are_all_served() {
    let nodes = declared(3, CALM).await;
    let locks = connect_to_all(&nodes, &format!("{CALM}&timeout=30s")).await;
    let callers = (0..1200).map(|number| {
        let lock = locks.lock(format!("job:{number}")).ttl(LONG).without_renewal();
        tokio::spawn(async move { lock.acquire().await })
    });
    let callers: Vec<_> = callers.collect();
    for caller in callers {
        drop(caller.await.unwrap().unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_connects_once_to_a_node_that_refuses_it() {
    let nodes = Nodes::start(3);
    let proxies = nodes.proxies();
    let locks = Locks::connect(&nodes.url_through(&proxies, CALM)).await.unwrap();
    proxies.iter().for_each(Proxy::cut);
    let before: Vec<u64> = proxies.iter().map(Proxy::harm).collect();
    for _ in 0..10 {
        let error = locks.lock("a").try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    }
    for (proxy, before) in proxies.iter().zip(before) {
        // The keeper connects by itself, too.
        assert!(proxy.harm() - before <= 20, "{} connections", proxy.harm() - before);
    }
}
