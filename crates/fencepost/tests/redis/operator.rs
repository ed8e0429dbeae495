//! What an operator sees and does.

use fencepost::{Error, ForceRelease, Loss};
use fencepost_testkit::redis::Server;

use crate::harness::{connect, queues, secs};

#[tokio::test]
async fn a_force_release_takes_the_lock_from_the_holder_that_was_meant_and_from_no_other() {
    let server = Server::start();
    let (locks, operator) = (connect(&server).await, connect(&server).await);
    let first = locks.lock("a").acquire().await.unwrap();
    let seen = first.token();
    first.release().await.unwrap();
    let next = locks.lock("a").acquire().await.unwrap();
    for how in [ForceRelease::ask("stuck"), ForceRelease::now("stuck")] {
        let error = operator.force_release("a", how.if_token(seen)).await.unwrap_err();
        assert!(matches!(&error, Error::Changed { .. }), "{error:?}");
        assert_eq!(error.holder().unwrap().token, Some(next.token()));
    }
    next.extend().await.unwrap();
    let revoked = operator.force_release("a", ForceRelease::now("stuck").if_token(next.token())).await;
    assert!(revoked.unwrap().unwrap().token > next.token());
    assert!(next.extend().await.is_err());
}

/// A repeated request, and one of another operator, find the holder that was asked already.
#[tokio::test]
async fn a_holder_can_be_asked_twice_and_then_cut_off() {
    let server = Server::start();
    let (locks, operator) = (connect(&server).await, connect(&server).await);
    let guard = locks.lock("a").ttl(secs(60)).acquire().await.unwrap();
    let mut last = guard.token();
    for how in [ForceRelease::ask("first"), ForceRelease::ask("second"), ForceRelease::now("now")] {
        let revoked = operator.force_release("a", how.if_token(guard.token())).await.unwrap().unwrap();
        assert!(revoked.token > last);
        assert_eq!(revoked.holder.token, Some(guard.token()));
        last = revoked.token;
    }
    assert!(matches!(guard.lost().await, Loss::ForceReleased { .. }));
    assert!(locks.lock("a").acquire().await.unwrap().token() > last);
}

#[tokio::test]
async fn show_tells_who_waits_and_in_which_order() {
    let server = Server::start();
    let locks = connect(&server).await;
    let guard = locks.lock("a").note("works").acquire().await.unwrap();
    let waiters: Vec<_> =
        ["one", "two", "three"].map(|note| locks.lock("a").note(note)).into_iter().collect();
    let mut tasks = Vec::new();
    for (count, lock) in waiters.into_iter().enumerate() {
        tasks.push(tokio::spawn(async move { lock.acquire().await.map(drop) }));
        queues(&server, "a", count as u64 + 1).await;
    }
    let holder = locks.show("a").await.unwrap().unwrap();
    assert_eq!((holder.note.as_deref(), holder.token), (Some("works"), Some(guard.token())));
    let notes: Vec<_> = holder.queue.iter().filter_map(|waiter| waiter.note.as_deref()).collect();
    assert_eq!(notes, ["one", "two", "three"]);
    let process = std::process::id();
    assert!(holder.queue.iter().all(|waiter| waiter.pid == Some(process) && waiter.since.is_some()));
    assert!(holder.queue.iter().all(|waiter| waiter.host == holder.host && waiter.owner != holder.owner));
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
}

/// The entry of a client that was killed stays in the queue until a release comes across it.
#[tokio::test]
async fn a_waiter_that_does_not_listen_any_more_is_not_shown() {
    let server = Server::start();
    server.cli(&["ACL", "SETUSER", "some", "on", ">pw", "+@all", "&*", "~*", "-pubsub"]);
    let locks = connect(&server).await;
    let _guard = locks.lock("a").acquire().await.unwrap();
    let lock = locks.lock("a").note("alive");
    let waiter = tokio::spawn(async move { lock.acquire().await.map(drop) });
    queues(&server, "a", 1).await;
    let entry = server.cli(&["LRANGE", "{lock:a}:waiting", "0", "0"]);
    let channel = &entry[37..53];
    server.cli(&["LPUSH", "{lock:a}:waiting", &entry.replace(channel, "0123456789abcdef"), "no entry"]);
    let notes = |holder: fencepost::Holder| {
        holder.queue.into_iter().map(|waiter| waiter.note.unwrap_or_default()).collect::<Vec<_>>()
    };
    assert_eq!(notes(locks.show("a").await.unwrap().unwrap()), ["alive"]);
    // Who may not ask who listens.
    let some = fencepost::Locks::connect(&server.url().replace("://", "://some:pw@")).await.unwrap();
    assert_eq!(notes(some.show("a").await.unwrap().unwrap()), ["", "alive", "alive"]);
    waiter.abort();
}

#[tokio::test]
async fn one_odd_key_does_not_hide_the_other_locks() {
    let server = Server::start();
    server.cli(&["ACL", "SETUSER", "some", "on", ">pw", "+@all", "&*", "~lock:a*", "~{lock:a*"]);
    let locks = fencepost::Locks::connect(&server.url().replace("://", "://some:pw@")).await.unwrap();
    let _guard = locks.lock("a").acquire().await.unwrap();
    server.cli(&["SET", "lock:forbidden", "x"]);
    server.cli(&["RPUSH", "lock:a-list", "x"]);
    server.cli(&["EVAL", "return redis.call('SET', 'lock:a' .. string.char(255), 'x')", "0"]);
    server.cli(&["SET", "lock:a}b", "x"]);
    // Longer than any reply may be.
    server.cli(&["SETRANGE", "lock:a-long", "9000000", "x"]);
    let listing = locks.list("").await.unwrap();
    let names: Vec<_> = listing.holders.iter().map(|holder| holder.name.to_string()).collect();
    assert_eq!(names, ["a", "a-list", "a-long", "a}b"]);
    assert!(matches!(listing.unreadable[..], [Error::Config { .. }]), "{listing:?}");
    assert!(locks.show("a-long").await.unwrap().is_some_and(|holder| holder.owner.is_none()));
    server.cli(&["ACL", "SETUSER", "some", "resetkeys", "~none"]);
    let listing = locks.list("").await.unwrap();
    assert_eq!((listing.holders.len(), listing.unreadable.len()), (0, 5));
}

/// It is pushed to the holder and stays in the lock's value: one that no reply may be as long as would end
/// connections.
#[tokio::test]
async fn a_reason_is_bounded_as_a_note_is() {
    let server = Server::start();
    let locks = connect(&server).await;
    let guard = locks.lock("a").acquire().await.unwrap();
    let value = server.cli(&["GET", "lock:a"]);
    for how in [ForceRelease::ask("x".repeat(1025)), ForceRelease::now("x".repeat(1025))] {
        let error = locks.force_release("a", how).await.unwrap_err();
        assert!(matches!(&error, Error::Invalid { .. }), "{error:?}");
    }
    assert_eq!(server.cli(&["GET", "lock:a"]), value);
    assert!(locks.force_release("a", ForceRelease::ask("x".repeat(1024))).await.unwrap().is_some());
    drop(guard);
}
