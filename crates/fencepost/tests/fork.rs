//! A forked child holds nothing of what its parent holds, says so, and leaves it alone.

#![allow(clippy::unwrap_used)]
#![cfg(feature = "redis")]

use std::process::{Command, Stdio};
use std::time::Duration;

use fencepost::{Error, Loss, State, blocking};
use fencepost_testkit::{eventually, redis::Server};

#[test]
fn a_forked_child_leaves_its_parents_locks_alone() {
    let server = Server::start();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "parent", "--nocapture"])
        .env("FENCEPOST_FORK", server.url())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(server.keys_like("lock:*"), [""; 0]);
}

/// Workers that connect after they were forked have nothing in common, also not what chance has given their
/// parent.
#[test]
fn forked_workers_are_told_of_different_things() {
    let server = Server::start();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "parent_of_workers", "--nocapture"])
        .env("FENCEPOST_FORK", server.url())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let channel = |worker: u32| server.cli(&["GET", &format!("lock:worker:{worker}")])[37..53].to_owned();
    let channels: std::collections::BTreeSet<_> = (0..3).map(channel).collect();
    assert_eq!(channels.len(), 3, "{channels:?}");
}

/// Not a test of its own: a server that forks its workers.
#[test]
fn parent_of_workers() {
    let Ok(url) = std::env::var("FENCEPOST_FORK") else { return };
    // What is drawn by chance on this thread goes on in each child from the same point.
    let _ = std::hash::RandomState::new();
    for worker in 0..3 {
        in_a_child(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let locks = fencepost::Locks::connect(&url).await.unwrap();
                let lock = locks.lock(format!("worker:{worker}")).ttl(Duration::from_secs(60));
                let _handle = lock.acquire().await.unwrap().detach().await.unwrap();
            });
        });
    }
}

/// Not a test of its own: what the process does that forks.
#[test]
fn parent() {
    let Ok(url) = std::env::var("FENCEPOST_FORK") else { return };
    let locks = blocking::Locks::connect(&url).unwrap();
    let guard = locks.lock("job").ttl(Duration::from_secs(3)).acquire().unwrap();
    let mut held = Some((locks, guard));
    for _ in 0..3 {
        in_a_child(|| use_what_is_inherited(&url, held.take().unwrap()));
    }
    let (locks, guard) = held.unwrap();
    // The child has closed what it had inherited; the timer and the sockets of this process still work.
    let before = locks.stats().renewed;
    eventually("renewals go on", || locks.stats().renewed >= before + 4);

    // Others wait in this process.
    let (served, turns) = std::sync::mpsc::channel();
    for already in 0..2 {
        let (served, waiter) = (served.clone(), locks.lock("job"));
        std::thread::spawn(move || served.send(waiter.acquire().unwrap()));
        eventually("one more waits", || locks.stats().waiting_now == already + 1);
    }
    guard.release().unwrap();
    let first = turns.recv().unwrap();
    let token = first.token();
    let mut held = Some((locks, first));
    in_a_child(|| use_what_is_inherited(&url, held.take().unwrap()));
    let (_locks, first) = held.unwrap();
    assert!(turns.try_recv().is_err(), "the child has passed it on");
    assert!(!first.state().is_lost());
    first.release().unwrap();
    let second = turns.recv().unwrap();
    assert!(second.token() > token);
    second.release().unwrap();
}

/// Runs something in a forked child, with copies of what this process has, and waits until it has worked.
fn in_a_child(work: impl FnOnce()) {
    // SAFETY: the only other threads are the library's and those that wait in it, and the child uses what it
    // may use by its contract.
    #[allow(unsafe_code)]
    let child = unsafe { libc::fork() };
    if child == 0 {
        let fine = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: ends the process without running anything else.
        #[allow(unsafe_code)]
        unsafe {
            libc::_exit(i32::from(fine.is_err()))
        };
    }
    let mut status = 0;
    // SAFETY: waits for the child above.
    #[allow(unsafe_code)]
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0));
}

fn use_what_is_inherited(url: &str, (locks, guard): (blocking::Locks, blocking::Guard)) {
    assert_eq!(guard.state(), State::Lost(Loss::Forked));
    assert_eq!(guard.valid_for(), Some(Duration::ZERO));
    assert!(matches!(guard.extend(), Err(Error::Lost { why: Loss::Forked, .. })));
    assert!(matches!(guard.release(), Err(Error::Lost { why: Loss::Forked, .. })));
    let refused = locks.lock("own").try_acquire().unwrap_err();
    assert!(
        matches!(refused, Error::Unsupported { .. }) && refused.to_string().contains("connect anew"),
        "{refused}"
    );
    assert!(matches!(locks.list(""), Err(Error::Unsupported { .. })));
    drop(locks);
    let own = blocking::Locks::connect(url).unwrap();
    assert!(own.lock("job").try_acquire().unwrap().is_none());
    own.lock("own").acquire().unwrap().release().unwrap();
}
