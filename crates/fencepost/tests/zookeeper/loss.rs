//! A lost lock is known to be lost, at once where the server can tell and in time where it cannot.

use fencepost::{Error, Loss};

use crate::harness::{Part, SHORT, bounded, patient, take, until, use_once};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_node_is_a_loss_at_once() {
    let part = Part::new();
    let locks = part.locks().await;
    let guard = patient(&locks, "a").without_renewal().acquire().await.unwrap();
    let node = part.contenders().swap_remove(0);
    assert!(part.server.client().delete(&format!("{}/fencepost/a/{node}", part.chroot)).unwrap());
    // Nobody renews it: only the watch can tell.
    assert_eq!(bounded("it is lost", guard.lost()).await, Loss::Taken);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_during_an_outage_is_told_after_it() {
    let part = Part::new();
    let locks = part.behind_link().await;
    let guard = patient(&locks, "a").without_renewal().acquire().await.unwrap();
    // With this answer its node is watched.
    guard.extend().await.unwrap();
    part.link.cut();
    let node = part.contenders().swap_remove(0);
    assert!(part.server.client().delete(&format!("{}/fencepost/a/{node}", part.chroot)).unwrap());
    part.link.pass();
    assert_eq!(bounded("it is lost", guard.lost()).await, Loss::Taken);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_polite_force_release_is_told_at_once() {
    let part = Part::new();
    let (locks, operator) = (part.locks().await, part.locks().await);
    let guard = patient(&locks, "a").without_renewal().acquire().await.unwrap();
    let revoked = operator.force_release("a", "drained").await.unwrap().unwrap();
    assert!(!revoked.freed && revoked.token > guard.token());
    let reason = Loss::force_released("drained");
    assert_eq!(bounded("it is lost", guard.lost()).await, reason);
    assert_eq!(part.contenders().len(), 1, "not free before the guard is gone");
    drop(guard);
    part.is_clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_token_of_a_force_release_retires_the_victim_and_nobody_who_waits() {
    let part = Part::new();
    let (locks, rival) = (part.locks().await, part.locks().await);
    let victim = take(&locks).await;
    let waiter = crate::harness::start_waiting(&rival);
    until("it stands in line", async || part.contenders().len() == 2).await;
    let revoked = locks.force_release("a", fencepost::ForceRelease::now("drained")).await.unwrap().unwrap();
    let next = bounded("the next has it", waiter).await.unwrap().unwrap();
    assert!(victim.token() < revoked.token && revoked.token <= next.token());
    assert_eq!(bounded("the victim learns it", victim.lost()).await, Loss::Taken);
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_nobody_renews_ends_though_its_session_lives() {
    let part = Part::new();
    let (locks, rival) = (part.locks().await, part.locks().await);
    // Of the same ttl, so of the same session, which its renewals keep alive.
    let other = locks.lock("b").ttl(SHORT).acquire().await.unwrap();
    let guard = locks.lock("a").ttl(SHORT).without_renewal().acquire().await.unwrap();
    let next = bounded("the lease ends", take(&rival)).await;
    assert!(guard.state().is_lost());
    other.check().unwrap();
    next.release().await.unwrap();
    other.release().await.unwrap();
    assert!(matches!(guard.release().await, Err(Error::Lost { why: Loss::Expired, .. })));
    use_once(&rival).await;
}
