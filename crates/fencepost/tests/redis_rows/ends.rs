//! How a row ends before all have had their turn: the lock is lost, taken away, detached or given back by somebody who is gone.

use std::time::Duration;

use fencepost::{Error, Locks, Loss};
use fencepost_testkit::Proxy;
use fencepost_testkit::redis::Server;
use tokio::task::JoinHandle;

use crate::stage::{Crowd, certain_no_more, connect, lock, pair, poll_once, row, row_of, sixteenth};
use crate::waiting::{bounded, until};

#[tokio::test]
async fn a_lock_that_is_gone_is_gone_for_the_rest_of_a_row() {
    let server = Server::start();
    let (_locks, mut crowd, first) = row(&server, 5).await;
    server.cli(&["FLUSHALL"]);
    let taken = lock(&connect(&server).await).acquire().await.unwrap();
    certain_no_more().await;
    assert!(matches!(first.release().await, Err(Error::Lost { why: Loss::Taken, .. })));
    // Nobody knew yet when it was its turn.
    let second = crowd.next().await;
    assert_eq!(bounded("it is told", second.lost()).await, Loss::Taken);
    assert!(second.token() < taken.token());
    drop(second);
    until("the next one stands in the queue", async || server.cli(&["LLEN", "{lock:a}:queue"]) != "0").await;
    assert!(crowd.served.try_recv().is_err(), "a third one was served");
    let above = taken.token().get();
    taken.release().await.unwrap();
    crowd.rest(above).await;
}

#[tokio::test]
async fn all_who_release_a_lock_that_is_gone_are_told_however_quick_the_next_one_is() {
    let server = Server::start();
    let (_locks, first, second) = pair(&server).await;
    server.cli(&["DEL", "lock:a"]);
    let _taken = lock(&connect(&server).await).acquire().await.unwrap();
    certain_no_more().await;
    let second = tokio::spawn(async move { second.await?.release().await });
    assert!(matches!(first.release().await, Err(Error::Lost { why: Loss::Taken, .. })));
    // If it has not held it when that is known, it waits on.
    assert!(matches!(
        tokio::time::timeout(Duration::from_millis(500), second).await.map(Result::unwrap),
        Ok(Err(Error::Lost { why: Loss::Taken, .. })) | Err(_)
    ));
}

#[tokio::test]
async fn a_renewal_that_finds_the_lock_gone_ends_the_row() {
    let server = Server::start();
    let (_locks, mut crowd, first) = row(&server, 4).await;
    server.cli(&["FLUSHALL"]);
    let taken = lock(&connect(&server).await).acquire().await.unwrap();
    assert!(matches!(first.extend().await, Err(Error::Lost { why: Loss::Taken, .. })));
    drop(first);
    until("the next one stands in the queue", async || server.cli(&["LLEN", "{lock:a}:queue"]) != "0").await;
    assert!(crowd.served.try_recv().is_err(), "a second one was served");
    let above = taken.token().get();
    taken.release().await.unwrap();
    crowd.rest(above).await;
}

#[tokio::test]
async fn a_revocation_reaches_who_of_a_row_has_the_lock() {
    for now in [false, true] {
        let server = Server::start();
        let (locks, mut crowd, first) = row(&server, 4).await;
        certain_no_more().await;
        first.release().await.unwrap();
        let second = crowd.next().await;
        let other = connect(&server).await;
        let revoked = match now {
            true => other.force_release_now("a", "stuck").await,
            false => other.force_release("a", "stuck").await,
        };
        let revoked = revoked.unwrap().unwrap();
        assert_eq!(revoked.holder.owner, Some(second.owner()));
        assert_eq!(
            bounded("it is told", second.lost()).await,
            Loss::ForceReleased { reason: "stuck".to_owned() }
        );
        assert!(second.release().await.is_err());
        crowd.rest(revoked.token.get()).await;
        locks.close().await;
        assert!(server.keys_like("lock:*").is_empty());
    }
}

#[tokio::test]
async fn the_next_of_a_row_asks_the_server_at_once_if_the_lock_is_detached() {
    let server = Server::start();
    let (_locks, first, mut second) = pair(&server).await;
    first.detach().await.unwrap();
    poll_once(&mut second).await;
    until("it stands in the queue", async || server.cli(&["LLEN", "{lock:a}:queue"]).trim() == "1").await;
}

#[tokio::test]
async fn one_of_a_row_can_be_detached_and_nobody_of_it_comes_behind() {
    let server = Server::start();
    let (_locks, mut crowd, first) = row(&server, 4).await;
    let token = first.token();
    let handle = first.detach().await.unwrap();
    assert!(crowd.served.try_recv().is_err(), "another one has it");
    let other = connect(&server).await;
    let shown = other.show("a").await.unwrap().unwrap();
    assert_eq!((shown.owner, shown.token), (Some(handle.owner()), Some(token)));
    let guard = other.attach(&handle).await.unwrap();
    assert_eq!(guard.token(), token);
    guard.extend().await.unwrap();
    guard.release().await.unwrap();
    crowd.rest(token.get()).await;
}

#[tokio::test]
async fn a_row_goes_on_when_its_connections_are_closed() {
    let server = Server::start();
    let (locks, crowd, first) = row(&server, 4).await;
    until("the second one has asked", async || server.cli(&["LLEN", "{lock:a}:queue"]) == "1").await;
    locks.clone().close().await;
    first.extend().await.unwrap();
    let above = first.token().get();
    first.release().await.unwrap();
    crowd.rest(above).await;
    locks.close().await;
    assert!(server.keys_like("lock:*").is_empty());
    assert_eq!(server.cli(&["EXISTS", "{lock:a}:queue"]), "0");
}

/// A release that has handed the lock to a row, and whose answer is held back; and the token of the one before.
async fn unanswered(server: &Server) -> (Proxy, Crowd, u64, JoinHandle<fencepost::Result<()>>) {
    let proxy = Proxy::start(server.addr());
    let locks = Locks::connect(&server.url_at(proxy.addr())).await.unwrap();
    let guard = lock(&locks).acquire().await.unwrap();
    let above = guard.token().get();
    let crowd = Crowd::of(6, &lock(&locks), &locks).await;
    let value = server.cli(&["GET", "lock:a"]);
    proxy.hold_answers();
    let release = tokio::spawn(async move { guard.release().await });
    until("the server has handed it over", async || server.cli(&["GET", "lock:a"]) != value).await;
    (proxy, crowd, above, release)
}

#[tokio::test]
async fn a_row_whose_answer_is_lost_is_given_back() {
    let server = Server::start();
    let (proxy, crowd, above, release) = unanswered(&server).await;
    proxy.cut();
    proxy.pass();
    release.await.unwrap().unwrap();
    // For an hour it would be nobody's, if it were left to its lease.
    crowd.rest(above).await;
}

#[tokio::test]
async fn a_release_that_has_served_another_process_worked_also_if_its_answer_is_lost() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let locks = Locks::connect(&server.url_at(proxy.addr())).await.unwrap();
    let last = sixteenth(&locks).await;
    let crowd = Crowd::of(2, &lock(&locks), &locks).await;
    let theirs = connect(&server).await;
    let mut theirs = Crowd::of(1, &lock(&theirs), &theirs).await;
    until("both processes wait", async || server.cli(&["LLEN", "{lock:a}:queue"]) == "2").await;
    proxy.hold_answers();
    let release = tokio::spawn(async move { last.release().await });
    let other = theirs.next().await;
    proxy.cut();
    proxy.pass();
    release.await.unwrap().unwrap();
    let above = other.token().get();
    other.release().await.unwrap();
    crowd.rest(above).await;
}

#[tokio::test]
async fn who_only_waits_waits_on_when_the_row_has_lost_the_lock() {
    let server = Server::start();
    let (_locks, first, second) = pair(&server).await;
    server.cli(&["DEL", "lock:a"]);
    let above = first.token();
    certain_no_more().await;
    assert!(matches!(first.release().await, Err(Error::Lost { why: Loss::Taken, .. })));
    // Its turn had come, nobody has looked, and it is over.
    let second = bounded("it asks anew", second).await.unwrap();
    assert!(second.token() > above);
    second.extend().await.unwrap();
}

#[tokio::test]
async fn a_release_that_is_dropped_under_way_gives_the_row_back() {
    let server = Server::start();
    let (proxy, crowd, above, release) = unanswered(&server).await;
    release.abort();
    assert!(release.await.unwrap_err().is_cancelled());
    proxy.pass();
    crowd.rest(above).await;
}

#[tokio::test]
async fn a_detach_that_is_dropped_under_way_ends_the_row() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let locks = Locks::connect(&server.url_at(proxy.addr())).await.unwrap();
    let (mut crowd, first) = row_of(&locks, 3).await;
    let owner = first.owner().to_string();
    proxy.hold_answers();
    let detach = tokio::spawn(async move { first.detach().await });
    until("the lock is its own", async || server.cli(&["GET", "lock:a"]).starts_with(&owner)).await;
    detach.abort();
    assert!(detach.await.unwrap_err().is_cancelled());
    proxy.pass();
    let second = crowd.next().await;
    second.extend().await.unwrap();
    let above = second.token().get();
    second.release().await.unwrap();
    crowd.rest(above).await;
}

#[tokio::test]
async fn what_was_passed_on_is_not_given_back_again() {
    let server = Server::start();
    let (locks, mut crowd, first) = row(&server, 3).await;
    certain_no_more().await;
    // The caller goes away when the next one has the lock, and the release goes on in the background.
    let mut release = Box::pin(first.release());
    poll_once(&mut release).await;
    drop(release);
    let second = crowd.next().await;
    until("it is done", async || locks.stats().released == 2).await;
    assert_eq!(server.cli(&["EXISTS", "lock:a"]), "1");
    assert!(crowd.served.try_recv().is_err(), "a third one was served");
    second.extend().await.unwrap();
    let above = second.token().get();
    second.release().await.unwrap();
    crowd.rest(above).await;
}

#[tokio::test]
async fn a_guard_that_outlives_its_max_hold_does_not_touch_the_row_behind_it() {
    for count in [1, 3] {
        let server = Server::start();
        let locks = connect(&server).await;
        let held = lock(&locks).max_hold(Duration::from_millis(500)).acquire().await.unwrap();
        let mut crowd = Crowd::of(count, &lock(&locks), &locks).await;
        assert_eq!(held.lost().await, Loss::MaxHold);
        let first = crowd.next().await;
        let released = locks.stats().released;
        drop(held);
        until("its end is settled", async || locks.stats().released == released + 1).await;
        first.extend().await.unwrap();
        assert!(crowd.served.try_recv().is_err(), "another one has it, too");
        let above = first.token().get();
        first.release().await.unwrap();
        crowd.rest(above).await;
    }
}
