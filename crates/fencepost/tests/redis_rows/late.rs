//! Rows in which somebody learns late what has become of the lock.

use std::pin::Pin;
use std::time::Duration;

use fencepost::{Guard, Locks};
use fencepost_testkit::Proxy;
use fencepost_testkit::redis::Server;
use tokio::runtime::Runtime;

use crate::stage::{
    Waiter, certain_no_more, connect, lock, pair, poll_once, release, row, waiter, waiters, waiters_for,
};
use crate::waiting::{bounded, until};

/// The server has served the first who waits, and then has the lock for the one before it again, as after an operator has
/// freed it and that one took it anew.
async fn served_and_forgotten(server: &Server, locks: &Locks) -> (Guard, Waiter, String) {
    let guard = lock(locks).acquire().await.unwrap();
    let before = server.cli(&["GET", "lock:a"]);
    server.cli(&["DEL", "lock:a"]);
    let first = waiter(locks).await;
    until("it is served", async || !server.cli(&["GET", "lock:a"]).is_empty()).await;
    let own = server.cli(&["GET", "lock:a"]);
    server.cli(&["SET", "lock:a", &before, "PX", "3600000"]);
    (guard, first, own)
}

#[tokio::test]
async fn one_that_hears_no_more_of_a_hand_over_asks_the_server() {
    let server = Server::start();
    let locks = connect(&server).await;
    let guard = lock(&locks).acquire().await.unwrap();
    let (before, first) = (guard.token(), waiter(&locks).await);
    let unfinished = release(guard, &server).await;
    let first = bounded("it is served though nobody looks at the release", first).await.unwrap();
    assert!(first.token() > before);
    first.extend().await.unwrap();
    first.release().await.unwrap();
    unfinished.await.unwrap();
    assert_eq!(server.cli(&["EXISTS", "lock:a"]), "0");
}

#[tokio::test]
async fn a_hand_over_that_was_lost_before_it_was_looked_at_is_not_taken() {
    let server = Server::start();
    let locks = connect(&server).await;
    let guard = lock(&locks).acquire().await.unwrap();
    let (before, mut first) = (guard.token().get(), waiter(&locks).await);
    let release = release(guard, &server).await;
    server.cli(&["SET", "lock:a", "somebody else", "PX", "3600000"]);
    until("it asks, and is told so", async || {
        poll_once(&mut first).await;
        server.cli(&["LLEN", "{lock:a}:queue"]) == "1"
    })
    .await;
    release.await.unwrap();
    poll_once(&mut first).await;
    server.cli(&["DEL", "lock:a"]);
    let first = bounded("it asks again", first).await.unwrap();
    assert_eq!(first.token().get(), before + 2, "the token after the one that was handed over");
}

#[tokio::test]
async fn one_that_is_chosen_alone_takes_no_grant_that_is_older() {
    let server = Server::start();
    let locks = connect(&server).await;
    let (guard, mut first, _own) = served_and_forgotten(&server, &locks).await;
    let handed_over = guard.token().get() + 2;
    let release = release(guard, &server).await;
    poll_once(&mut first).await;
    release.await.unwrap();
    let first = bounded("it looks at its answer", first).await.unwrap();
    assert_eq!(first.token().get(), handed_over);
    first.release().await.unwrap();
    assert_eq!(server.cli(&["EXISTS", "lock:a"]), "0");
}

#[tokio::test]
async fn a_row_does_not_begin_if_its_first_was_served_by_the_server() {
    let server = Server::start();
    let locks = connect(&server).await;
    let (guard, first, own) = served_and_forgotten(&server, &locks).await;
    let mut second = waiter(&locks).await;
    let release = release(guard, &server).await;
    // The row loses the lock, and its first gets it.
    server.cli(&["SET", "lock:a", &own, "PX", "3600000"]);
    let first = bounded("it looks at its answer", first).await.unwrap();
    release.await.unwrap();
    poll_once(&mut second).await;
    first.extend().await.unwrap();
}

#[tokio::test]
async fn a_turn_of_one_that_was_served_otherwise_is_given_back() {
    let server = Server::start();
    let locks = connect(&server).await;
    let (guard, first, _own) = served_and_forgotten(&server, &locks).await;
    let second = waiter(&locks).await;
    guard.release().await.unwrap();
    // Its turn has come, and then the old answer.
    let first = bounded("it looks at its answer", first).await.unwrap();
    let second = bounded("the next one is served", second).await.unwrap();
    assert!(second.token() > first.token());
    second.extend().await.unwrap();
}

#[tokio::test]
async fn others_see_who_has_the_lock_if_the_first_of_a_row_was_gone() {
    let server = Server::start();
    let locks = connect(&server).await;
    let guard = lock(&locks).acquire().await.unwrap();
    let mut waiters = waiters(&locks, 3).await;
    let release = release(guard, &server).await;
    drop(waiters.remove(0));
    release.await.unwrap();
    let second = bounded("it is its turn", waiters.remove(0)).await.unwrap();
    let (owner, token) = (Some(second.owner()), Some(second.token()));
    until("it is named", async || {
        let shown = locks.show("a").await.unwrap().unwrap();
        (shown.owner, shown.token) == (owner, token)
    })
    .await;
}

/// A row of two, each in a runtime of its own, and its first in the middle of its release.
struct Apart {
    ours: Runtime,
    theirs: Runtime,
    last: Waiter,
    release: Pin<Box<dyn Future<Output = fencepost::Result<()>>>>,
}

fn apart(server: &Server) -> Apart {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (ours, theirs) = (runtime(), runtime());
    let (locks, guard) = ours.block_on(async {
        let locks = Locks::connect(&format!("{}?timeout=300ms", server.url())).await.unwrap();
        let guard = lock(&locks).acquire().await.unwrap();
        (locks, guard)
    });
    let here = ours.block_on(waiter(&locks));
    let last = theirs.block_on(waiter(&locks));
    ours.block_on(guard.release()).unwrap();
    let first = ours.block_on(here).unwrap();
    ours.block_on(certain_no_more());
    let mut release: Pin<Box<dyn Future<Output = _>>> = Box::pin(first.release());
    // It has asked, and its runtime may not have sent it.
    ours.block_on(poll_once(&mut release));
    Apart { ours, theirs, last, release }
}

#[test]
fn a_release_is_answered_truly_if_the_lock_goes_on_before_it_comes_to_the_server() {
    let server = Server::start();
    let Apart { ours, theirs, last, release } = apart(&server);
    let value = server.cli(&["GET", "lock:a"]);
    theirs.block_on(async { last.await.unwrap().detach().await.unwrap() });
    assert_ne!(server.cli(&["GET", "lock:a"])[..36], value[..36], "it is not the row's any more");
    ours.block_on(release).unwrap();
}

#[test]
fn a_release_does_not_depend_on_a_runtime_that_stands_still() {
    let server = Server::start();
    let Apart { ours, theirs, last, release } = apart(&server);
    // The last one begins to give it back, and gets no further.
    let mut last = Box::pin(theirs.block_on(last).unwrap().release());
    theirs.block_on(poll_once(&mut last));
    ours.block_on(release).unwrap();
    theirs.block_on(last).unwrap();
}

#[tokio::test]
async fn an_operator_learns_whom_of_a_row_it_has_revoked() {
    let server = Server::start();
    let (_locks, mut crowd, first) = row(&server, 3).await;
    let proxy = Proxy::start(server.addr());
    let operator = Locks::connect(&server.url_at(proxy.addr())).await.unwrap();
    operator.show("a").await.unwrap().unwrap();
    let before = proxy.harm();
    proxy.hold_answers();
    let revoking = tokio::spawn(async move { operator.force_release("a", "stuck").await });
    until("the operator has looked", async || proxy.harm() > before).await;
    certain_no_more().await;
    first.release().await.unwrap();
    let second = crowd.next().await;
    proxy.pass();
    let revoked = revoking.await.unwrap().unwrap().unwrap();
    assert_eq!((revoked.holder.owner, revoked.holder.token), (Some(second.owner()), Some(second.token())));
    bounded("it is told", second.lost()).await;
}

#[test]
fn a_release_that_worked_says_so_though_one_behind_it_was_made_twice() {
    let server = Server::start();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (ours, theirs) = (runtime(), runtime());
    let (locks, first, second) = ours.block_on(pair(&server));
    ours.block_on(certain_no_more());
    // It has asked, and its runtime has not sent it.
    let mut one = Box::pin(first.release());
    ours.block_on(poll_once(&mut one));
    let third = theirs.block_on(async {
        let second = second.await.unwrap();
        // For a connection of this runtime.
        locks.show("a").await.unwrap();
        let third = waiter(&locks).await;
        drop(release(second, &server).await);
        until("it was made again", async || locks.stats().released == 2).await;
        third.await.unwrap()
    });
    ours.block_on(one).unwrap();
    theirs.block_on(third.release()).unwrap();
}

#[tokio::test]
async fn a_turn_that_is_slept_through_does_not_end_the_wait() {
    let server = Server::start();
    let locks = connect(&server).await;
    let lock = locks.lock("a").ttl(Duration::from_secs(2));
    let guard = lock.acquire().await.unwrap();
    let mut waiters = waiters_for(&lock, 2).await;
    guard.release().await.unwrap();
    let first = waiters.remove(0).await.unwrap();
    let token = first.token();
    first.release().await.unwrap();
    until("nobody has looked at the second for too long", async || server.cli(&["GET", "lock:a"]).is_empty())
        .await;
    let second = bounded("it waits on", waiters.remove(0)).await.unwrap();
    assert!(second.token() > token);
    second.release().await.unwrap();
    until("nothing is left", async || server.cli(&["EXISTS", "lock:a", "{lock:a}:queue"]).trim() == "0")
        .await;
}
