//! Waiters of one process and of several.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use fencepost::{Error, Locks};

use crate::harness::{Directory, held, poll_once};

#[tokio::test]
async fn waiters_of_one_process_are_served_in_order_and_one_that_left_is_passed_over() {
    let dir = Directory::new();
    let locks = dir.locks().await;
    let guard = held(&locks, "job").await;
    let mut waiting = Vec::new();
    for _ in 0..5 {
        let lock = locks.lock("job");
        let mut future = Box::pin(async move { lock.acquire().await });
        assert!(poll_once(&mut future).await.is_none());
        waiting.push(future);
    }
    drop(waiting.remove(2));
    drop(waiting.remove(0));
    guard.release().await.unwrap();
    let mut last = 0;
    for future in waiting {
        let guard = future.await.unwrap();
        assert!(guard.token().get() > last);
        last = guard.token().get();
        guard.release().await.unwrap();
    }
    assert!(locks.list("").await.unwrap().holders.is_empty());
}

#[tokio::test]
async fn waiters_that_all_left_leave_nothing_behind() {
    let dir = Directory::new();
    let (locks, other) = (dir.locks().await, dir.locks().await);
    for _ in 0..20 {
        let guard = held(&locks, "job").await;
        let lock = other.lock("job");
        let mut waiting = Box::pin(lock.acquire());
        assert!(poll_once(&mut waiting).await.is_none());
        drop(waiting);
        guard.release().await.unwrap();
        // The thread that still waits for nobody must not make this one fail.
        locks.lock("job").try_acquire().await.unwrap().expect("free").release().await.unwrap();
    }
}

#[tokio::test]
async fn a_wait_in_vain_names_the_holder() {
    let dir = Directory::new();
    let (locks, other) = (dir.locks().await, dir.locks().await);
    let guard = locks.lock("job").note("nightly").acquire().await.unwrap();
    let error = other.lock("job").wait(Duration::from_millis(20)).acquire().await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    let holder = error.holder().unwrap();
    assert_eq!((holder.owner, holder.note.as_deref()), (Some(guard.owner()), Some("nightly")));
}

#[tokio::test]
async fn looking_at_a_lock_never_makes_it_look_taken() {
    let dir = Directory::new();
    let (locks, viewer) = (dir.locks().await, dir.locks().await);
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let looking = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        while matches!(stopped.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty)) {
            runtime.block_on(viewer.list("")).unwrap();
            runtime.block_on(viewer.show("job")).unwrap();
        }
    });
    for _ in 0..2_000 {
        let guard = locks.lock("job").try_acquire().await.unwrap().expect("nobody holds it");
        guard.release().await.unwrap();
    }
    drop(stop);
    looking.join().unwrap();
}

#[test]
fn a_closed_store_leaves_no_thread_behind() {
    let (_child, said) = Directory::new().child("wait and close");
    assert_eq!(said, "nothing is left");
}

/// The notes of those who wait for `job`, first come first.
async fn notes(locks: &Locks) -> Vec<String> {
    let queue = locks.show("job").await.unwrap().unwrap().queue;
    queue.into_iter().map(|waiter| waiter.note.unwrap_or_default()).collect()
}

/// Waits until those with such notes are shown to wait for `job`.
async fn shown(locks: &Locks, expected: &[&str]) {
    let wait = async {
        while notes(locks).await != expected {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.expect("they are shown");
}

#[tokio::test]
async fn every_waiter_of_a_process_is_shown_also_of_a_detached_lock_and_after_the_file_was_replaced() {
    let dir = Directory::new();
    let (locks, other) = (dir.locks().await, dir.locks().await);
    let _another = held(&locks, "another").await;
    let wait = |name: &str, note: &str| {
        let lock = other.lock(name).note(note);
        tokio::spawn(async move { lock.acquire().await })
    };
    let elsewhere = wait("another", "elsewhere");
    let handle = held(&locks, "job").await.detach().await.unwrap();
    let first = wait("job", "first");
    shown(&locks, &["first"]).await;
    let second = wait("job", "second");
    shown(&locks, &["first", "second"]).await;
    locks.release(&handle).await.unwrap();
    let victim = first.await.unwrap().unwrap();
    shown(&locks, &["second"]).await;
    let third = wait("job", "third");
    shown(&locks, &["second", "third"]).await;
    assert_eq!(notes(&other).await, ["second", "third"], "it sees its own");
    locks.force_release("job", fencepost::ForceRelease::now("it hangs")).await.unwrap().unwrap();
    let next = second.await.unwrap().unwrap();
    shown(&locks, &["third"]).await;
    elsewhere.abort();
    third.abort();
    shown(&locks, &[]).await;
    drop((victim, next));
}

/// The list is for people to read: whatever is in its place, waiters wait and holders are shown.
#[tokio::test]
async fn a_list_of_waiters_that_cannot_be_used_is_in_nobodys_way() {
    use rustix::fs::{CWD, Mode, mkfifoat};
    let dir = Directory::new();
    let (locks, other) = (dir.locks().await, dir.locks().await);
    let list = dir.path().join(".waiting");
    for what in ["garbage", "pipe", "link", "nothing"] {
        match what {
            "garbage" => std::fs::write(&list, [b'x'; 5000]).unwrap(),
            "pipe" => mkfifoat(CWD, &list, Mode::from_raw_mode(0o600)).unwrap(),
            "link" => std::os::unix::fs::symlink("/etc/passwd", &list).unwrap(),
            _ => {}
        }
        let guard = held(&locks, "job").await;
        assert_eq!(notes(&locks).await, [""; 0], "{what}");
        let lock = other.lock("job").note("waits");
        let waiter = tokio::spawn(async move { lock.acquire().await });
        if ["garbage", "nothing"].contains(&what) {
            shown(&locks, &["waits"]).await;
        } else {
            // One that came later is listed elsewhere.
            let elsewhere = Directory::new();
            let (others, _guard) = (elsewhere.locks().await, held(&elsewhere.locks().await, "job").await);
            let lock = others.lock("job").note("later");
            let later = tokio::spawn(async move { lock.acquire().await });
            shown(&others, &["later"]).await;
            later.abort();
            assert_eq!(notes(&locks).await, [""; 0], "{what}");
        }
        guard.release().await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
        std::fs::remove_file(&list).unwrap_or_default();
    }
}

#[tokio::test]
async fn the_list_of_waiters_is_as_open_as_the_locks() {
    for (mode, parameters, expected) in [(0o700, "", 0o600), (0o1777, "?mode=shared", 0o666)] {
        let dir = Directory::new();
        dir.open_to(mode);
        let locks = Locks::connect(&format!("{}{parameters}", dir.url())).await.unwrap();
        let _guard = held(&locks, "job").await;
        let lock = locks.lock("job").note("waits");
        let waiter = tokio::spawn(async move { lock.acquire().await });
        shown(&locks, &["waits"]).await;
        let list = std::fs::metadata(dir.path().join(".waiting")).unwrap();
        assert_eq!(list.permissions().mode() & 0o777, expected);
        waiter.abort();
    }
}

/// The child that it forked has a copy of its open files, and lives on.
#[tokio::test]
async fn a_waiter_that_was_killed_is_not_shown_though_its_child_lives_on() {
    let dir = Directory::new();
    let locks = dir.locks().await;
    let _guard = held(&locks, "job").await;
    let (mut child, forked) = dir.child("wait and fork");
    let _forked = crate::family::Stray::new(&forked);
    shown(&locks, &["from a child"]).await;
    child.kill();
    shown(&locks, &[]).await;
}
