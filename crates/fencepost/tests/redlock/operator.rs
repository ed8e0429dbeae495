//! What an operator sees of a lock on each node, and taking it away.

use std::time::Duration;

use fencepost::{Error, ForceRelease, Locks, Loss};
use fencepost_testkit::Proxy;
use fencepost_testkit::redis::Nodes;

use crate::harness::{
    CALM, LONG, bounded, connect, connect_to_all, declared, is_clear, ms, patient, reads, take, until,
    use_once,
};

fn reason() -> Loss {
    Loss::force_released("host is being drained")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn show_tells_what_each_node_has() {
    let mut nodes = declared(5, CALM).await;
    let (locks, operator) = (connect_to_all(&nodes, CALM).await, connect_to_all(&nodes, CALM).await);
    assert_eq!(operator.show("a").await.unwrap(), None);
    nodes[3].kill();
    let guard = patient(&locks, "a").note("nightly").without_renewal().acquire().await.unwrap();
    nodes[1].restart_empty();
    let holder = bounded("a view of all nodes", async {
        loop {
            let holder = operator.show("a").await.unwrap().unwrap();
            // It is connected to again after a while.
            let back = holder.nodes[1].problem.as_ref().is_some_and(|why| why.contains("does not vote"));
            if back && holder.nodes[0].holds && holder.nodes[2].holds && holder.nodes[4].holds {
                return holder;
            }
        }
    })
    .await;
    assert_eq!((holder.owner, holder.note.as_deref()), (Some(guard.owner()), Some("nightly")));
    assert_eq!(holder.token, Some(guard.token()));
    assert!(holder.expires_in.is_some_and(|left| left <= LONG), "{holder:?}");
    for (index, node) in holder.nodes.iter().enumerate() {
        assert!(node.node.contains(&nodes[index].addr().to_string()), "{node:?}");
        let fine = ![1, 3].contains(&index);
        assert_eq!((node.holds, node.problem.is_none()), (fine, fine), "{node:?}");
        assert_eq!(node.counter, fine.then(|| guard.token().get()), "{node:?}");
        assert_eq!(node.expires_in_ms.is_some(), fine, "{node:?}");
    }
    assert!(holder.nodes[3].problem.as_ref().unwrap().contains("does not answer"), "{holder:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn show_tells_who_waits_by_the_queues_of_all_nodes() {
    const QUEUE: &str = "{lock:a}:waiters";
    let nodes = declared(3, CALM).await;
    let (locks, others) = (connect_to_all(&nodes, CALM).await, connect_to_all(&nodes, CALM).await);
    let _guard = take(&locks).await;
    let lock = patient(&others, "a").note("alive");
    let waiter = tokio::spawn(async move { lock.acquire().await.map(drop) });
    until("it stands in a queue", async || nodes.iter().any(|node| node.cli(&["LLEN", QUEUE]) == "1")).await;
    let entries = nodes.iter().map(|node| node.cli(&["LINDEX", QUEUE, "0"]));
    let entry = entries.into_iter().find(|entry| !entry.is_empty()).unwrap();
    let [channel, owner, _] = entry.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{entry}") };
    // On a node of its own each: a client of an earlier version, one that was killed, and what is no entry.
    let earlier = "31d52854-f76f-8be1-bb89-4bb8ea83f017";
    nodes[0].cli(&["RPUSH", QUEUE, &format!("{channel} {earlier}")]);
    let killed = entry.replace(channel, "0123456789abcdef").replace(owner, &earlier.replace('3', "4"));
    nodes[1].cli(&["RPUSH", QUEUE, &killed]);
    nodes[2].cli(&["RPUSH", QUEUE, "no entry"]);
    let queue = locks.show("a").await.unwrap().unwrap().queue;
    let known: Vec<_> = queue.iter().map(|waiter| (waiter.note.as_deref(), waiter.pid)).collect();
    assert_eq!(known, [(Some("alive"), Some(std::process::id())), (None, None)]);
    assert_eq!((queue[1].owner.unwrap().to_string(), &queue[1].host), (earlier.to_owned(), &None));
    nodes[2].cli(&["SET", QUEUE, "of another type"]);
    assert_eq!(locks.show("a").await.unwrap().unwrap().queue.len(), 2);
    waiter.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_names_what_a_majority_has_or_may_have() {
    let mut nodes = declared(5, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    let guards = [
        patient(&locks, "job:1").acquire().await.unwrap(),
        patient(&locks, "job:2").acquire().await.unwrap(),
        patient(&locks, "other").acquire().await.unwrap(),
    ];
    // A minority of somebody's attempt.
    nodes[0].cli(&["SET", "lock:job:3", "foreign", "PX", "600000"]);
    let names = async |prefix: &str| {
        let holders = locks.list(prefix).await.unwrap().holders;
        holders.iter().map(|holder| holder.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names("job:").await, ["job:1", "job:2"]);
    nodes[1].kill();
    nodes[2].kill();
    assert_eq!(names("").await, ["job:1", "job:2", "job:3", "other"], "two that cannot be asked may have it");
    nodes[3].kill();
    until("no majority", async || locks.list("").await.is_err()).await;
    let error = locks.list("").await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }) && error.nodes().len() == 5, "{error:?}");
    drop(guards);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_asked_back_is_free_when_its_holder_has_let_go() {
    let nodes = declared(5, CALM).await;
    let (locks, operator) = (connect_to_all(&nodes, CALM).await, connect_to_all(&nodes, CALM).await);
    let victim = take(&locks).await;
    let token = victim.token();
    let revoked = operator.force_release("a", "host is being drained").await.unwrap().unwrap();
    assert_eq!((revoked.freed, revoked.holder.owner), (false, Some(victim.owner())));
    assert!(revoked.token > token);
    assert_eq!(bounded("the victim is told", victim.lost()).await, reason());
    assert!(operator.lock("a").ttl(LONG).try_acquire().await.unwrap().is_none());
    assert_eq!(operator.show("a").await.unwrap().unwrap().revoked.as_deref(), Some("host is being drained"));
    drop(victim);
    let next = take(&operator).await;
    assert!(next.token() > revoked.token);
    next.release().await.unwrap();
    is_clear(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_taken_back_at_once_is_free_and_its_holder_is_told() {
    let nodes = declared(5, CALM).await;
    let (locks, operator) = (connect_to_all(&nodes, CALM).await, connect_to_all(&nodes, CALM).await);
    let victim = take(&locks).await;
    let revoked = operator
        .force_release("a", fencepost::ForceRelease::now("host is being drained"))
        .await
        .unwrap()
        .unwrap();
    assert!(revoked.freed && revoked.token > victim.token());
    let next = operator.lock("a").ttl(LONG).acquire().await.unwrap();
    assert!(next.token() > revoked.token);
    assert_eq!(bounded("the victim is told", victim.lost()).await, reason());
    drop(victim);
    next.extend().await.unwrap();
    next.release().await.unwrap();
    is_clear(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_taken_back_while_two_of_five_nodes_are_dead() {
    let mut nodes = declared(5, CALM).await;
    let (locks, operator) = (connect_to_all(&nodes, CALM).await, connect_to_all(&nodes, CALM).await);
    let victim = take(&locks).await;
    nodes[0].kill();
    nodes[4].kill();
    let revoked = operator.force_release("a", "host is being drained").await.unwrap().unwrap();
    assert!(revoked.token > victim.token());
    assert_eq!(bounded("the victim is told", victim.lost()).await, reason());
    drop(victim);
    let next = take(&operator).await;
    assert!(next.token() > revoked.token);
    let again = operator
        .force_release("a", fencepost::ForceRelease::now("host is being drained"))
        .await
        .unwrap()
        .unwrap();
    assert!(again.token > next.token());
    assert!(use_once(&locks).await > again.token.get());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_victim_that_hears_nothing_learns_it_at_its_next_renewal() {
    let nodes = declared(3, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    let victim = take(&locks).await;
    until("all nodes have it", async || nodes.iter().all(|node| crate::harness::holds(node, "a"))).await;
    // Its subscriptions are gone with its connections.
    for node in nodes.iter() {
        node.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    }
    let operator = connect(&nodes, CALM).await;
    operator.force_release("a", "host is being drained").await.unwrap().unwrap();
    until("it learns it", async || matches!(victim.extend().await, Err(Error::Lost { .. }))).await;
    assert_eq!(victim.lost().await, reason());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_of_a_holder_whose_node_lost_it_can_be_taken_back() {
    let mut nodes = declared(3, CALM).await;
    let (locks, operator) = (connect_to_all(&nodes, CALM).await, connect_to_all(&nodes, CALM).await);
    let victim = patient(&locks, "a").without_renewal().acquire().await.unwrap();
    until("all nodes have it", async || nodes.iter().all(|node| crate::harness::holds(node, "a"))).await;
    nodes[2].restart_empty();
    nodes[1].cli(&["DEL", "lock:a"]);
    let revoked = operator.force_release("a", "host is being drained").await.unwrap().unwrap();
    assert!(revoked.token > victim.token());
    assert_eq!(bounded("the victim is told", victim.lost()).await, reason());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_taken_back_at_once_is_not_brought_back_by_a_victim_that_hears_nothing() {
    let nodes = declared(3, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    let handle = take(&locks).await.detach().await.unwrap();
    let victim = locks.lock("a").ttl(LONG).attach(&handle).await.unwrap();
    until("all nodes have it", async || nodes.iter().all(|node| crate::harness::holds(node, "a"))).await;
    // Its subscriptions are gone with its connections.
    for node in nodes.iter() {
        node.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    }
    let operator = connect(&nodes, CALM).await;
    operator
        .force_release("a", fencepost::ForceRelease::now("host is being drained"))
        .await
        .unwrap()
        .unwrap();
    until("it learns it", async || matches!(victim.extend().await, Err(Error::Lost { .. }))).await;
    drop(victim);
    use_once(&operator).await;
    is_clear(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_gets_the_lock_while_an_operator_takes_it_from_another_keeps_it() {
    const NAMED: &str = "max_ttl=20m&deployment=both&timeout=20s";
    let nodes = declared(3, NAMED).await;
    let (locks, proxies) = (connect_to_all(&nodes, NAMED).await, nodes.proxies());
    let operator = Locks::connect(&nodes.url_through(&proxies, NAMED)).await.unwrap();
    operator.check().await.unwrap();
    for now in [false, true] {
        let victim = take(&locks).await;
        proxies.iter().for_each(|proxy| proxy.delay(Duration::from_secs(1)));
        let before: Vec<u64> = nodes.iter().map(reads).collect();
        let asked = tokio::spawn({
            let operator = operator.clone();
            let how = if now { ForceRelease::now("stuck") } else { ForceRelease::ask("stuck") };
            async move { operator.force_release("a", how).await }
        });
        until("it has seen the holder", async || {
            nodes.iter().zip(&before).all(|(node, before)| reads(node) > *before)
        })
        .await;
        victim.release().await.unwrap();
        let next = take(&locks).await;
        let error = bounded("the operator is told", asked).await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Changed { .. }), "{error:?}");
        assert_eq!(error.holder().and_then(|holder| holder.owner), Some(next.owner()));
        proxies.iter().for_each(Proxy::pass);
        next.extend().await.unwrap();
        next.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_asked_back_can_be_taken_at_once_by_the_token_of_its_holder() {
    let nodes = declared(3, CALM).await;
    let (locks, operator) = (connect_to_all(&nodes, CALM).await, connect_to_all(&nodes, CALM).await);
    let victim = take(&locks).await;
    let token = victim.token();
    operator.force_release("a", ForceRelease::ask("drained").if_token(token)).await.unwrap().unwrap();
    assert_eq!(operator.show("a").await.unwrap().unwrap().token, Some(token));
    let revoked = operator.force_release("a", ForceRelease::now("drained").if_token(token)).await.unwrap();
    assert!(revoked.unwrap().freed);
    assert!(use_once(&locks).await > token.get());
}

/// A second user, whose rights change while it is connected.
async fn as_user(nodes: &Nodes, parameters: &str) -> Locks {
    for node in nodes.iter() {
        node.cli(&["ACL", "SETUSER", "some", "on", ">pw", "+@all", "&*", "~*"]);
    }
    let url = nodes.url_with(parameters).replace("redlock://", "redlock://some:pw@");
    Locks::connect(&url).await.unwrap()
}

fn restrict(nodes: &Nodes) {
    for node in nodes.iter() {
        node.cli(&["ACL", "SETUSER", "some", "resetkeys", "~*ours*", "~{fencepost}*"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_cannot_be_read_hides_no_other() {
    let nodes = declared(3, CALM).await;
    let locks = as_user(&nodes, CALM).await;
    let _guards = [
        patient(&locks, "ours").acquire().await.unwrap(),
        patient(&locks, "theirs").acquire().await.unwrap(),
    ];
    for node in nodes.iter() {
        node.cli(&["RPUSH", "lock:list", "x"]);
        node.cli(&["SET", "lock:", "no name"]);
    }
    restrict(&nodes);
    let holders = locks.list("").await.unwrap().holders;
    let shown: Vec<_> = holders.iter().map(|one| (one.name.as_str(), one.owner.is_some())).collect();
    assert_eq!(shown, [("list", false), ("ours", true), ("theirs", false)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_may_not_be_renewed_any_more_costs_no_other() {
    let nodes = declared(3, CALM).await;
    let locks = as_user(&nodes, CALM).await;
    let hold = |name: &str| {
        let lock = locks.lock(name).ttl(ms(2000)).renew_every(ms(200));
        async move { lock.acquire().await.unwrap() }
    };
    let ours = [hold("ours:1").await, hold("ours:2").await];
    // Without renewals it is lost last.
    let theirs = hold("theirs").await;
    restrict(&nodes);
    bounded("it is lost", theirs.lost()).await;
    for guard in ours {
        guard.check().unwrap();
        guard.release().await.unwrap();
    }
}
