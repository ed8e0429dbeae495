//! Detached locks on several nodes: some of which have lost them, do not answer, or give them to somebody
//! else first.

use std::time::Duration;

use fencepost::{Error, ForceRelease, Guard, Handle, Locks, Loss};
use fencepost_testkit::Proxy;
use fencepost_testkit::redis::{Nodes, Server};

use crate::harness::{
    CALM, LONG, connect_to_all, counter, declared, holds, is_clear, patient, reads, take, until, use_once,
};

async fn detached(nodes: &Nodes, locks: &Locks) -> Handle {
    let guard = take(locks).await;
    until("all nodes have it", async || nodes.iter().all(|node| holds(node, "a"))).await;
    let calls: Vec<u64> = nodes.iter().map(Server::evalsha_calls).collect();
    let handle = guard.detach().await.unwrap();
    // A majority is enough for `detach`: its request to the other nodes may still be on the way.
    until("all nodes have been told", async || {
        nodes.iter().zip(&calls).all(|(node, before)| node.evalsha_calls() > *before)
    })
    .await;
    handle
}

/// Whether a node has the lock under the owner of this handle.
fn is_of(node: &Server, handle: &Handle) -> bool {
    node.cli(&["GET", "lock:a"]).starts_with(&handle.owner().to_string())
}

fn lost<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Lost { .. }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_that_attach_at_once_one_has_it_and_the_other_leaves_nothing() {
    let nodes = declared(5, CALM).await;
    let (locks, others) = (connect_to_all(&nodes, CALM).await, connect_to_all(&nodes, CALM).await);
    for _ in 0..10 {
        let handle = detached(&nodes, &locks).await;
        let (one, two) = (patient(&locks, "a"), patient(&others, "a"));
        let (one, two) = tokio::join!(one.attach(&handle), two.attach(&handle));
        let (winner, loser) = if one.is_ok() { (one, two) } else { (two, one) };
        let winner = winner.unwrap();
        assert!(lost(loser));
        assert_eq!(winner.token(), handle.token());
        winner.extend().await.unwrap();
        winner.release().await.unwrap();
        is_clear(&nodes).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_two_that_attach_share_the_nodes_out_the_lock_is_still_the_handles() {
    let mut nodes = declared(5, CALM).await;
    let (locks, others) = (connect_to_all(&nodes, CALM).await, connect_to_all(&nodes, CALM).await);
    nodes[4].kill();
    for _ in 0..10 {
        let guard = take(&locks).await;
        let handle = guard.detach().await.unwrap();
        let (one, two) = (patient(&locks, "a"), patient(&others, "a"));
        let (one, two) = tokio::join!(one.attach(&handle), two.attach(&handle));
        let guard = match (one, two) {
            (Ok(_), Ok(_)) => panic!("both hold it"),
            (Ok(guard), Err(_)) | (Err(_), Ok(guard)) => guard,
            (Err(_), Err(_)) => {
                until("both have put back what they had", async || {
                    nodes.iter().take(4).filter(|node| is_of(node, &handle)).count() >= 3
                })
                .await;
                patient(&locks, "a").attach(&handle).await.unwrap()
            }
        };
        assert_eq!(guard.token(), handle.token());
        guard.extend().await.unwrap();
        guard.release().await.unwrap();
        nodes.iter().take(4).filter(|node| is_of(node, &handle)).for_each(|node| {
            node.cli(&["DEL", "lock:a"]);
        });
    }
}

/// Two ways to the same nodes.
const NAMED: &str = "max_ttl=20m&deployment=both";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attach_that_is_dropped_or_hears_nothing_puts_back_what_it_moved() {
    let nodes = declared(3, NAMED).await;
    let locks = connect_to_all(&nodes, NAMED).await;
    let handle = detached(&nodes, &locks).await;
    let mut ways = vec![false, true];
    while let Some(dropped) = ways.pop() {
        let proxies = nodes.proxies();
        let url = nodes.url_through(&proxies, &format!("{NAMED}&timeout=5s"));
        let far = Locks::connect(&url).await.unwrap();
        far.check().await.unwrap();
        proxies.iter().for_each(|proxy| proxy.delay(Duration::from_secs(1)));
        let before: Vec<u64> = nodes.iter().map(reads).collect();
        let attaching = tokio::spawn({
            let (lock, handle) = (patient(&far, "a"), handle.clone());
            async move { lock.attach(&handle).await }
        });
        until("it has looked", async || {
            nodes.iter().zip(&before).all(|(node, before)| reads(node) > *before)
        })
        .await;
        // But for what the nodes have said by now.
        proxies.iter().for_each(Proxy::hold_answers);
        if dropped {
            until("a node has moved it, or it gave up", async || {
                attaching.is_finished() || nodes.iter().any(|node| !is_of(node, &handle))
            })
            .await;
            if attaching.is_finished() {
                // What the nodes had said by then was held back, too: once more.
                ways.push(dropped);
                continue;
            }
            attaching.abort();
            assert!(attaching.await.is_err());
        } else {
            let error = attaching.await.unwrap().expect_err("its answers are lost");
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        }
        proxies.iter().for_each(Proxy::pass);
        until("all is put back", async || nodes.iter().all(|node| is_of(node, &handle))).await;
    }
    locks.extend(&handle, LONG).await.unwrap();
    locks.attach(&handle).await.unwrap().release().await.unwrap();
    is_clear(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_a_minority_has_lost_is_renewed_and_taken_over() {
    let mut nodes = declared(5, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    let handle = detached(&nodes, &locks).await;
    nodes[0].kill();
    nodes[1].cli(&["DEL", "lock:a", "{lock:a}:fence"]);
    // If the node that has lost it is not the slowest.
    until("it is made anew", async || {
        locks.extend(&handle, LONG).await.unwrap();
        is_of(&nodes[1], &handle)
    })
    .await;
    nodes[2].cli(&["DEL", "lock:a", "{lock:a}:fence"]);
    let guard = patient(&locks, "a").attach(&handle).await.unwrap();
    assert_eq!(guard.token(), handle.token());
    guard.extend().await.unwrap();
    let owner = guard.owner().to_string();
    until("all that live have it", async || {
        nodes.iter().skip(1).all(|node| {
            node.cli(&["GET", "lock:a"]).starts_with(&owner) && counter(node) == handle.token().get()
        })
    })
    .await;
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_a_majority_has_lost_is_lost_and_nothing_is_written() {
    let nodes = declared(3, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    let handle = detached(&nodes, &locks).await;
    for node in [0, 1] {
        nodes[node].cli(&["DEL", "lock:a"]);
    }
    let calls: Vec<u64> = nodes.iter().map(Server::evalsha_calls).collect();
    for why in [
        locks.extend(&handle, LONG).await.unwrap_err(),
        locks.release(&handle).await.unwrap_err(),
        locks.attach(&handle).await.unwrap_err(),
    ] {
        assert!(matches!(why, Error::Lost { why: Loss::Expired | Loss::Taken, .. }), "{why:?}");
    }
    assert_eq!(nodes.iter().map(Server::evalsha_calls).collect::<Vec<_>>(), calls);
}

/// Whoever gives a lock back by its handle must find all of it, so nothing may follow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_node_does_not_bring_a_detached_lock_back() {
    let nodes = declared(3, NAMED).await;
    let (locks, proxies) = (connect_to_all(&nodes, NAMED).await, nodes.proxies());
    let far = Locks::connect(&nodes.url_through(&proxies, NAMED)).await.unwrap();
    far.check().await.unwrap();
    let guard = take(&far).await;
    until("all nodes have it", async || nodes.iter().all(|node| holds(node, "a"))).await;
    nodes[2].cli(&["DEL", "lock:a"]);
    // Its answer, that it has nothing, comes after the lock was given back.
    proxies[2].hold_answers();
    let handle = guard.detach().await.unwrap();
    locks.release(&handle).await.unwrap();
    is_clear(&nodes).await;
    let calls = nodes[2].evalsha_calls();
    proxies[2].pass();
    // A link that was silent for too long is opened anew.
    until("all was asked", async || {
        take(&far).await.release().await.unwrap();
        nodes[2].evalsha_calls() >= calls + 2
    })
    .await;
    is_clear(&nodes).await;
}

/// The same handle with another token.
fn forged(handle: &Handle, token: u64) -> Handle {
    let text = handle.to_string();
    format!("{token}.{}", text.split_once('.').unwrap().1).parse().unwrap()
}

/// A lock that the last node has granted too late to matter, with a counter that is more: and how much it is.
async fn granted_late(nodes: &Nodes, locks: &Locks) -> (Guard, u64) {
    let first = use_once(locks).await;
    until("all have seen it come and go", async || {
        nodes.iter().all(|node| counter(node) == first && !holds(node, "a"))
    })
    .await;
    // Farther than any clock here: a counter that is behind its clock leaps.
    let ahead = first + 60_000_000;
    nodes[2].cli(&["SET", "{lock:a}:fence", &ahead.to_string()]);
    nodes[2].pause();
    let guard = take(locks).await;
    nodes[2].resume();
    until("the last one has it, too", async || holds(&nodes[2], "a")).await;
    let counters: Vec<u64> = nodes.iter().map(counter).collect();
    let token = guard.token().get();
    assert_eq!(counters, [token, token, ahead + 1]);
    (guard, ahead + 1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_granted_too_late_and_with_more_counts_for_a_handle() {
    let mut nodes = declared(3, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    let (guard, ahead) = granted_late(&nodes, &locks).await;
    let token = guard.token();
    let handle = guard.detach().await.unwrap();
    nodes[1].kill();
    let counters = [counter(&nodes[0]), counter(&nodes[2])];
    assert_eq!(counters, [token.get(), ahead]);
    assert_eq!(locks.show("a").await.unwrap().unwrap().token, Some(token));
    for wrong in [ahead, token.get() + 1, token.get() - 1, (1 << 53) - 2] {
        let forged = forged(&handle, wrong);
        locks.extend(&forged, LONG).await.unwrap_err();
        locks.attach(&forged).await.unwrap_err();
        locks.release(&forged).await.unwrap_err();
    }
    assert_eq!([counter(&nodes[0]), counter(&nodes[2])], counters);
    assert!(is_of(&nodes[0], &handle) && is_of(&nodes[2], &handle));
    locks.extend(&handle, LONG).await.unwrap();
    let guard = patient(&locks, "a").attach(&handle).await.unwrap();
    guard.extend().await.unwrap();
    assert_eq!(guard.token(), token);
    locks.release(&guard.detach().await.unwrap()).await.unwrap();
    until("it is free", async || !holds(&nodes[0], "a") && !holds(&nodes[2], "a")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_a_node_granted_too_late_is_asked_back_from_its_handle() {
    let mut nodes = declared(3, CALM).await;
    let locks = connect_to_all(&nodes, CALM).await;
    let (guard, ahead) = granted_late(&nodes, &locks).await;
    let handle = guard.detach().await.unwrap();
    nodes[1].kill();
    let how = ForceRelease::ask("host is being drained").if_token(handle.token());
    let revoked = locks.force_release("a", how).await.unwrap().unwrap();
    assert_eq!(revoked.holder.token, Some(handle.token()));
    assert!(revoked.token.get() > ahead);
    let why = locks.extend(&handle, LONG).await.unwrap_err();
    assert!(matches!(why, Error::Lost { why: Loss::ForceReleased { .. }, .. }), "{why:?}");
    locks.release(&handle).await.unwrap();
    until("it is free", async || !holds(&nodes[0], "a") && !holds(&nodes[2], "a")).await;
}

/// Something done by a handle through proxies, which has looked and whose next requests are held back.
async fn about_to<T: Send + 'static>(
    nodes: &Nodes,
    proxies: &[Proxy],
    work: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    let before: Vec<u64> = nodes.iter().map(reads).collect();
    proxies.iter().for_each(Proxy::hold_answers);
    let task = tokio::spawn(work);
    until("it has looked", async || nodes.iter().zip(&before).all(|(node, before)| reads(node) > *before))
        .await;
    proxies.iter().for_each(Proxy::hold_requests);
    task
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attach_that_loses_to_a_release_does_not_bring_the_lock_back() {
    let nodes = declared(3, NAMED).await;
    let (locks, proxies) = (connect_to_all(&nodes, NAMED).await, nodes.proxies());
    let far = Locks::connect(&nodes.url_through(&proxies, &format!("{NAMED}&timeout=10s"))).await.unwrap();
    far.check().await.unwrap();
    let handle = detached(&nodes, &locks).await;
    let (lock, again) = (patient(&far, "a"), handle.clone());
    let attaching = about_to(&nodes, &proxies, async move { lock.attach(&again).await }).await;
    proxies[0].pass();
    until("a node has moved it", async || !is_of(&nodes[0], &handle)).await;
    locks.release(&handle).await.unwrap();
    proxies.iter().for_each(Proxy::pass);
    let error = attaching.await.unwrap().expect_err("it was released");
    assert!(matches!(error, Error::Lost { why: Loss::Expired, .. }), "{error:?}");
    is_clear(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extension_that_loses_to_a_release_does_not_bring_the_lock_back() {
    let nodes = declared(3, NAMED).await;
    let (locks, proxies) = (connect_to_all(&nodes, NAMED).await, nodes.proxies());
    let far = Locks::connect(&nodes.url_through(&proxies, &format!("{NAMED}&timeout=10s"))).await.unwrap();
    far.check().await.unwrap();
    let handle = detached(&nodes, &locks).await;
    nodes[2].cli(&["DEL", "lock:a"]);
    let (again, calls) = (handle.clone(), nodes[2].evalsha_calls());
    let extending = about_to(&nodes, &proxies, async move { far.extend(&again, LONG).await }).await;
    proxies[2].pass();
    until("a node has nothing to extend", async || nodes[2].evalsha_calls() > calls).await;
    proxies[2].hold_requests();
    let held_back = proxies[2].harm();
    proxies[..2].iter().for_each(Proxy::pass);
    until("it is to be made anew there", async || proxies[2].harm() > held_back).await;
    locks.release(&handle).await.unwrap();
    proxies[2].pass();
    let error = extending.await.unwrap().expect_err("it was released");
    assert!(matches!(error, Error::Lost { why: Loss::Expired, .. }), "{error:?}");
    is_clear(&nodes).await;
}

/// Lets some others have a node each, as if they were taking the lock over, and puts that back after another
/// look.
async fn in_turn(nodes: &Nodes, handle: &Handle, go: impl FnOnce()) {
    let ours = nodes[2].cli(&["GET", "lock:a"]);
    assert!(ours.starts_with(&handle.owner().to_string()));
    for (node, other) in [(0, "one"), (1, "another")] {
        nodes[node].cli(&["SET", "lock:a", other, "KEEPTTL"]);
    }
    let before = reads(&nodes[2]);
    go();
    until("it has looked again", async || reads(&nodes[2]) > before).await;
    for node in [0, 1] {
        nodes[node].cli(&["SET", "lock:a", &ours, "KEEPTTL"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_nobody_took_over_is_not_called_taken() {
    let nodes = declared(3, NAMED).await;
    let (locks, proxies) = (connect_to_all(&nodes, NAMED).await, nodes.proxies());
    let far = Locks::connect(&nodes.url_through(&proxies, &format!("{NAMED}&timeout=10s"))).await.unwrap();
    far.check().await.unwrap();
    // Others come between the look and what follows it.
    let handle = detached(&nodes, &locks).await;
    let (lock, again) = (patient(&far, "a"), handle.clone());
    let attaching = about_to(&nodes, &proxies, async move { lock.attach(&again).await }).await;
    in_turn(&nodes, &handle, || proxies.iter().for_each(Proxy::pass)).await;
    let handle = attaching.await.unwrap().unwrap().detach().await.unwrap();
    until("all nodes have it", async || nodes.iter().all(|node| is_of(node, &handle))).await;
    // Others were there before the first look.
    let (extend, release) = (far.clone(), far.clone());
    let mut task = None;
    in_turn(&nodes, &handle, || {
        let handle = handle.clone();
        task = Some(tokio::spawn(async move { extend.extend(&handle, LONG).await }));
    })
    .await;
    task.take().unwrap().await.unwrap().unwrap();
    in_turn(&nodes, &handle, || {
        let handle = handle.clone();
        task = Some(tokio::spawn(async move { release.release(&handle).await }));
    })
    .await;
    task.take().unwrap().await.unwrap().unwrap();
    is_clear(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_of_which_others_keep_a_node_each_may_be_anybodys() {
    let nodes = declared(3, CALM).await;
    let locks = connect_to_all(&nodes, &format!("{CALM}&timeout=1s")).await;
    let handle = detached(&nodes, &locks).await;
    for (node, other) in [(0, "one"), (1, "another")] {
        nodes[node].cli(&["SET", "lock:a", other, "KEEPTTL"]);
    }
    let error = locks.attach(&handle).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let error = locks.release(&handle).await.unwrap_err();
    assert!(matches!(error, Error::Uncertain { .. }), "{error:?}");
    assert!(is_of(&nodes[2], &handle));
    nodes[1].cli(&["SET", "lock:a", "one", "KEEPTTL"]);
    let error = locks.attach(&handle).await.unwrap_err();
    assert!(matches!(error, Error::Lost { why: Loss::Taken, .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_that_name_no_ttl_have_one_that_the_deployment_allows() {
    let nodes = declared(3, "max_ttl=5s").await;
    let locks = Locks::connect(&nodes.url_with("max_ttl=5s")).await.unwrap();
    assert_eq!(locks.default_ttl(), Duration::from_secs(5));
    let handle = locks.lock("a").acquire().await.unwrap().detach().await.unwrap();
    locks.extend(&handle, locks.default_ttl()).await.unwrap();
    locks.release(&handle).await.unwrap();
    is_clear(&nodes).await;
    // To give a lock back takes no longer lease than it has.
    let handle = locks.lock("a").ttl(Duration::from_secs(4)).acquire().await.unwrap().detach().await.unwrap();
    locks.release(&handle).await.unwrap();
    is_clear(&nodes).await;
}
