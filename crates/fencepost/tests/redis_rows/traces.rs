//! What members of a row leave at the server: nothing, and what comes there late touches nobody's lock.

use fencepost::{Guard, Locks};
use fencepost_testkit::Proxy;
use fencepost_testkit::redis::Server;
use tokio::runtime::Runtime;

use crate::stage::{connect, lock, row, row_of, sixteenth, waiter, waiters};
use crate::waiting::{bounded, until};

fn queue(server: &Server) -> String {
    server.cli(&["LRANGE", "{lock:a}:queue", "0", "-1"])
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Two of them, and a holder in the first.
fn two_runtimes(server: &Server) -> (Runtime, Runtime, Locks, Guard) {
    let (ours, theirs) = (runtime(), runtime());
    let locks = ours.block_on(connect(server));
    let guard = ours.block_on(lock(&locks).acquire()).unwrap();
    (ours, theirs, locks, guard)
}

/// The one who waits first stood in the queue when the row began, and has its turn in a runtime that stands still then.
#[test]
fn what_is_sent_late_by_a_runtime_does_not_free_a_detached_lock() {
    let server = Server::start();
    let (ours, theirs, locks, guard) = two_runtimes(&server);
    let mut there = theirs.block_on(waiter(&locks));
    theirs.block_on(async {
        tokio::select! {
            _ = &mut there => panic!("it is held"),
            () = until("it stands in the queue", async || !queue(&server).is_empty()) => {}
        }
    });
    let here = ours.block_on(waiter(&locks));
    ours.block_on(guard.release()).unwrap();
    let first = theirs.block_on(there).unwrap();
    let attached = ours.block_on(async {
        let handle = first.detach().await.unwrap();
        connect(&server).await.attach(&handle).await.unwrap()
    });
    // Whatever was put into its connection comes to the server before this does.
    theirs.block_on(async { drop(locks.lock("other").acquire().await.unwrap()) });
    ours.block_on(attached.extend()).unwrap();
    drop(here);
    ours.block_on(attached.release()).unwrap();
    assert_eq!(queue(&server), "");
}

#[tokio::test]
async fn what_the_network_delivers_late_does_not_free_a_detached_lock() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let locks = Locks::connect(&format!("{}?timeout=300ms", server.url_at(proxy.addr()))).await.unwrap();
    let (mut crowd, first) = row_of(&locks, 3).await;
    until("the second one has asked", async || !queue(&server).is_empty()).await;
    proxy.strand();
    // No answer comes, and what is sent later goes over another connection.
    let _ = first.release().await;
    let handle = crowd.next().await.detach().await.unwrap();
    let attached = connect(&server).await.attach(&handle).await.unwrap();
    let owner = handle.owner().to_string();
    until("it has left the queue", async || !queue(&server).contains(&owner)).await;
    let before = server.evalsha_calls();
    proxy.pass();
    until("what was held back has come", async || server.evalsha_calls() > before).await;
    attached.extend().await.unwrap();
    let above = attached.token().get();
    attached.release().await.unwrap();
    crowd.rest(above).await;
}

#[test]
fn who_asks_behind_the_hand_over_leaves_the_queue() {
    let server = Server::start();
    let (ours, theirs, locks, guard) = two_runtimes(&server);
    // Its connection is open, and its request waits for the runtime.
    theirs.block_on(locks.show("a")).unwrap();
    let first = theirs.block_on(waiter(&locks));
    let _second = ours.block_on(waiter(&locks));
    ours.block_on(guard.release()).unwrap();
    assert_eq!(queue(&server), "");
    let first = theirs.block_on(first).unwrap();
    assert_eq!(queue(&server), "");
    theirs.block_on(first.extend()).unwrap();
}

#[tokio::test]
async fn who_has_asked_leaves_the_queue_over_any_connection() {
    for fault in [&["CLIENT", "KILL", "TYPE", "pubsub"][..], &["SCRIPT", "FLUSH"], &["PING"]] {
        let server = Server::start();
        let (_locks, mut crowd, first) = row(&server, 2).await;
        until("the second one has asked", async || !queue(&server).is_empty()).await;
        server.cli(fault);
        first.release().await.unwrap();
        let second = crowd.next().await;
        assert_eq!(queue(&server), "", "after {fault:?}");
        second.extend().await.unwrap();
        second.release().await.unwrap();
        assert_eq!(server.cli(&["EXISTS", "lock:a"]), "0", "after {fault:?}");
    }
}

#[tokio::test]
async fn the_first_of_a_row_that_was_not_to_be_leaves_nothing() {
    let server = Server::start();
    let (locks, other) = (connect(&server).await, connect(&server).await);
    let last = sixteenth(&locks).await;
    let theirs = tokio::spawn({
        let lock = lock(&other);
        async move { lock.acquire().await }
    });
    until("another process waits", async || !queue(&server).is_empty()).await;
    let waiters = waiters(&locks, 2).await;
    last.release().await.unwrap();
    let theirs = bounded("it is another process's turn", theirs).await.unwrap().unwrap();
    // The first one stands in the queue, and does not know. It would stay there for as long as others do.
    assert_eq!(server.cli(&["PERSIST", "{lock:a}:queue"]), "1");
    drop(waiters);
    until("nobody stands in the queue", async || queue(&server).is_empty()).await;
    theirs.release().await.unwrap();
    assert_eq!(server.cli(&["EXISTS", "lock:a"]), "0", "it is nobody's for a second");
}
