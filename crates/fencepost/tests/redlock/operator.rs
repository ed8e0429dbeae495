//! What an operator sees of a lock on each node, and taking it away.

use fencepost::{Error, Loss};

use crate::stage::{CALM, LONG, bounded, connect, declared, is_clear, patient, take, until, use_once};

fn reason() -> Loss {
    Loss::ForceReleased { reason: "host is being drained".to_owned() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn show_tells_what_each_node_has() {
    let mut fleet = declared(5, CALM).await;
    let (locks, operator) = (connect(&fleet, CALM).await, connect(&fleet, CALM).await);
    assert_eq!(operator.show("a").await.unwrap(), None);
    fleet[3].kill();
    let guard = patient(&locks, "a").note("nightly").renew(false).acquire().await.unwrap();
    fleet[1].restart_empty();
    let holder = bounded("a view of all nodes", async {
        loop {
            let holder = operator.show("a").await.unwrap().unwrap();
            // It is connected to again after a while.
            let back = holder.nodes[1].trouble.as_ref().is_some_and(|why| why.contains("does not vote"));
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
        assert!(node.node.contains(&fleet[index].addr().to_string()), "{node:?}");
        let fine = ![1, 3].contains(&index);
        assert_eq!((node.holds, node.trouble.is_none()), (fine, fine), "{node:?}");
        assert_eq!(node.counter, fine.then(|| guard.token().get()), "{node:?}");
        assert_eq!(node.expires_in_ms.is_some(), fine, "{node:?}");
    }
    assert!(holder.nodes[3].trouble.as_ref().unwrap().contains("out of reach"), "{holder:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_names_what_a_majority_has_or_may_have() {
    let mut fleet = declared(5, CALM).await;
    let locks = connect(&fleet, CALM).await;
    let guards = [
        patient(&locks, "job:1").acquire().await.unwrap(),
        patient(&locks, "job:2").acquire().await.unwrap(),
        patient(&locks, "other").acquire().await.unwrap(),
    ];
    // A minority of somebody's attempt.
    fleet[0].cli(&["SET", "lock:job:3", "foreign", "PX", "600000"]);
    let names = async |prefix: &str| {
        let holders = locks.list(prefix).await.unwrap();
        holders.iter().map(|holder| holder.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names("job:").await, ["job:1", "job:2"]);
    fleet[1].kill();
    fleet[2].kill();
    assert_eq!(names("").await, ["job:1", "job:2", "job:3", "other"], "two that cannot be asked may have it");
    fleet[3].kill();
    until("no majority", async || locks.list("").await.is_err()).await;
    let error = locks.list("").await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }) && error.nodes().len() == 5, "{error:?}");
    drop(guards);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_asked_back_is_free_when_its_holder_has_let_go() {
    let fleet = declared(5, CALM).await;
    let (locks, operator) = (connect(&fleet, CALM).await, connect(&fleet, CALM).await);
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
    is_clear(&fleet).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_taken_back_at_once_is_free_and_its_holder_is_told() {
    let fleet = declared(5, CALM).await;
    let (locks, operator) = (connect(&fleet, CALM).await, connect(&fleet, CALM).await);
    let victim = take(&locks).await;
    let revoked = operator.force_release_now("a", "host is being drained").await.unwrap().unwrap();
    assert!(revoked.freed && revoked.token > victim.token());
    let next = operator.lock("a").ttl(LONG).acquire().await.unwrap();
    assert!(next.token() > revoked.token);
    assert_eq!(bounded("the victim is told", victim.lost()).await, reason());
    drop(victim);
    next.extend().await.unwrap();
    next.release().await.unwrap();
    is_clear(&fleet).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_taken_back_while_two_of_five_nodes_are_dead() {
    let mut fleet = declared(5, CALM).await;
    let (locks, operator) = (connect(&fleet, CALM).await, connect(&fleet, CALM).await);
    let victim = take(&locks).await;
    fleet[0].kill();
    fleet[4].kill();
    let revoked = operator.force_release("a", "host is being drained").await.unwrap().unwrap();
    assert!(revoked.token > victim.token());
    assert_eq!(bounded("the victim is told", victim.lost()).await, reason());
    drop(victim);
    let next = take(&operator).await;
    assert!(next.token() > revoked.token);
    let again = operator.force_release_now("a", "host is being drained").await.unwrap().unwrap();
    assert!(again.token > next.token());
    assert!(use_once(&locks).await > again.token.get());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_victim_that_hears_nothing_learns_it_at_its_next_renewal() {
    let fleet = declared(3, CALM).await;
    let locks = connect(&fleet, CALM).await;
    let victim = take(&locks).await;
    until("all nodes have it", async || fleet.iter().all(|node| crate::stage::holds(node, "a"))).await;
    // Its subscriptions are gone with its connections.
    for node in fleet.iter() {
        node.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    }
    let operator = connect(&fleet, CALM).await;
    operator.force_release("a", "host is being drained").await.unwrap().unwrap();
    until("it learns it", async || matches!(victim.extend().await, Err(Error::Lost { .. }))).await;
    assert_eq!(victim.lost().await, reason());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_of_a_holder_whose_node_lost_it_can_be_taken_back() {
    let mut fleet = declared(3, CALM).await;
    let (locks, operator) = (connect(&fleet, CALM).await, connect(&fleet, CALM).await);
    let victim = patient(&locks, "a").renew(false).acquire().await.unwrap();
    until("all nodes have it", async || fleet.iter().all(|node| crate::stage::holds(node, "a"))).await;
    fleet[2].restart_empty();
    fleet[1].cli(&["DEL", "lock:a"]);
    let revoked = operator.force_release("a", "host is being drained").await.unwrap().unwrap();
    assert!(revoked.token > victim.token());
    assert_eq!(bounded("the victim is told", victim.lost()).await, reason());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_taken_back_at_once_is_not_brought_back_by_a_victim_that_hears_nothing() {
    let fleet = declared(3, CALM).await;
    let (locks, operator) = (connect(&fleet, CALM).await, connect(&fleet, CALM).await);
    let handle = take(&locks).await.detach().await.unwrap();
    // Its value names the channel of whoever acquired it, so no message reaches this one.
    let victim = operator.lock("a").ttl(LONG).attach(&handle).await.unwrap();
    until("all nodes have it", async || fleet.iter().all(|node| crate::stage::holds(node, "a"))).await;
    operator.force_release_now("a", "host is being drained").await.unwrap().unwrap();
    let error = victim.extend().await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    drop(victim);
    use_once(&locks).await;
    is_clear(&fleet).await;
}
