//! Waiters of one process and of several.

use std::time::Duration;

use fencepost::Error;

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
