//! What operators see and do.

use fencepost::{Error, Locks, Loss};
use fencepost_testkit::zookeeper::{Mode, Operation, Relay};

use crate::harness::{Part, bounded, patient, start_waiting, take, until, use_once};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn show_has_the_whole_line() {
    let part = Part::new();
    let (locks, rival) = (part.locks().await, part.locks().await);
    let held = patient(&locks, "a").note("first").acquire().await.unwrap();
    let mut waiters = Vec::new();
    for note in ["second", "third"] {
        let lock = patient(&rival, "a").note(note);
        waiters.push(tokio::spawn(async move { lock.acquire().await.unwrap().release().await }));
        until("it stands in line", async || part.contenders().len() == waiters.len() + 1).await;
    }
    let holder = locks.show("a").await.unwrap().unwrap();
    assert_eq!((holder.owner, holder.note.as_deref()), (Some(held.owner()), Some("first")));
    let queue: Vec<_> = holder.queue.iter().map(|waiting| waiting.note.as_deref()).collect();
    assert_eq!(queue, [Some("second"), Some("third")]);
    assert!(holder.queue.iter().all(|waiting| waiting.token > holder.token));
    assert!(locks.list("").await.unwrap().holders[0].queue.is_empty());
    held.release().await.unwrap();
    for waiter in waiters {
        bounded("all are served", waiter).await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_holder_can_only_be_ended_at_once() {
    let part = Part::new();
    let locks = part.locks().await;
    use_once(&locks).await;
    let mut foreign = part.server.client();
    let stem = format!("{}/fencepost/a/5e1f__lock__", part.chroot);
    let node = foreign.create(&stem, b"me", Mode::EphemeralSequential).unwrap();
    let error = locks.force_release("a", "x").await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }) && error.to_string().contains("--now"), "{error}");
    assert_eq!(foreign.data(&node).unwrap(), Some(b"me".to_vec()), "left alone");
    let revoked = locks.force_release("a", fencepost::ForceRelease::now("x")).await.unwrap().unwrap();
    assert!(revoked.freed && Some(revoked.token) > revoked.holder.token);
    assert!(take(&locks).await.token() > revoked.token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_place_was_taken_away_stands_in_line_again() {
    let part = Part::new();
    let (locks, rival) = (part.locks().await, part.locks().await);
    let held = take(&locks).await;
    let waiter = start_waiting(&rival);
    until("it stands in line", async || part.contenders().len() == 2).await;
    let ours = locks.show("a").await.unwrap().unwrap().queue[0].owner.unwrap().to_string();
    let node = part.contenders().into_iter().find(|node| node.contains(&ours)).unwrap();
    assert!(part.server.client().delete(&format!("{}/fencepost/a/{node}", part.chroot)).unwrap());
    held.release().await.unwrap();
    let guard = bounded("it is served all the same", waiter).await.unwrap().unwrap();
    assert_ne!(guard.owner().to_string(), ours);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_does_not_react_loses_a_lock_that_was_asked_back_when_its_lease_ends() {
    let part = Part::new();
    let (locks, operator) = (part.locks().await, part.locks().await);
    let guard = locks.lock("a").ttl(crate::harness::SHORT).acquire().await.unwrap();
    operator.force_release("a", "drained").await.unwrap().unwrap();
    // The guard lives on, and with it its session; nobody renews a lock that is lost.
    let next = bounded("the lease ends", take(&operator)).await;
    assert_eq!(guard.lost().await, Loss::force_released("drained"));
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_force_release_whose_answer_was_lost_is_not_called_undone() {
    let part = Part::new();
    let locks = part.locks().await;
    let relay = Relay::start(part.server.addr());
    let operator = Locks::connect(&format!("zookeeper://{}{}", relay.addr(), part.chroot)).await.unwrap();
    for now in [false, true] {
        let victim = take(&locks).await;
        relay.lose_answer(if now { Operation::Delete } else { Operation::Write });
        let outcome = match now {
            true => operator.force_release("a", fencepost::ForceRelease::now("drained")).await,
            false => operator.force_release("a", "drained").await,
        };
        // It was made, and whoever repeats it hits the next holder.
        assert!(matches!(outcome, Err(Error::Uncertain { .. })), "{outcome:?}");
        bounded("the victim is told", victim.lost()).await;
        drop(victim);
        part.is_clear().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_force_release_takes_nothing_from_whoever_came_after_the_one_it_found() {
    const NO_NODE: i32 = -101;
    let part = Part::new();
    let (locks, rival) = (part.locks().await, part.locks().await);
    let relay = Relay::start(part.server.addr());
    let operator = Locks::connect(&format!("zookeeper://{}{}", relay.addr(), part.chroot)).await.unwrap();
    let victim = take(&locks).await;
    let waiter = start_waiting(&rival);
    until("it stands in line", async || part.contenders().len() == 2).await;
    // As if the victim had let go between the look and the request.
    relay.answer_with(Operation::Delete, NO_NODE);
    let outcome = operator.force_release("a", fencepost::ForceRelease::now("stuck")).await;
    let next = bounded("the next one is served", waiter).await.unwrap().unwrap();
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::Changed { .. }), "{error}");
    assert_eq!(error.holder().and_then(|holder| holder.token), Some(next.token()));
    next.extend().await.unwrap();
    next.release().await.unwrap();
    drop(victim);
}
