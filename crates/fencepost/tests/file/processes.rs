//! Locks between processes: what ends with a process, and what a program that it starts keeps.

use fencepost::Locks;
use fencepost::SupervisorExt as _;

use crate::family::Stray;
use crate::harness::{Directory, held, poll_once};

#[tokio::test]
async fn a_holder_that_is_killed_frees_its_lock_at_once() {
    let dir = Directory::new();
    let locks = dir.locks().await;
    let (mut child, token) = dir.child("hold");
    assert!(locks.lock("job").try_acquire().await.unwrap().is_none());
    let holder = locks.show("job").await.unwrap().unwrap();
    assert_eq!((holder.pid, holder.note.as_deref()), (Some(child.child.id()), Some("from a child")));
    let lock = locks.lock("job");
    let waiting = lock.acquire();
    tokio::pin!(waiting);
    assert!(poll_once(&mut waiting).await.is_none());
    child.kill();
    let guard = waiting.await.unwrap();
    assert!(guard.token().get() > token.parse().unwrap());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn an_executed_program_does_not_keep_the_lock() {
    let dir = Directory::new();
    let locks = dir.locks().await;
    let (mut child, program) = dir.child("exec");
    let program = Stray::new(&program);
    child.kill();
    held(&locks, "job").await.release().await.unwrap();
    assert!(program.is_alive());
}

#[tokio::test]
async fn a_lifeline_keeps_the_lock_until_it_is_released() {
    let dir = Directory::new();
    let (locks, other) = (dir.locks().await, dir.locks().await);
    let guard = held(&locks, "job").await;
    let copy = guard.lifeline().unwrap().try_clone_to_owned().unwrap();
    assert!(other.lock("job").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    // An explicit release counts for every copy.
    held(&other, "job").await.release().await.unwrap();
    drop(copy);
}

#[tokio::test]
async fn tokens_grow_across_processes_and_after_the_files_were_lost() {
    let dir = Directory::new();
    let mut last = 0;
    for round in 0..4 {
        let (child, token) = dir.child("hold");
        child.finish();
        let token: u64 = token.parse().unwrap();
        assert!(token > last);
        last = token;
        if round % 2 == 1 {
            std::fs::remove_file(dir.file("job")).unwrap();
        }
    }
    let locks = dir.locks().await;
    for _ in 0..100 {
        let guard = held(&locks, "job").await;
        assert!(guard.token().get() > last);
        last = guard.token().get();
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn durable_tokens_grow_too() {
    let dir = Directory::new();
    let locks = Locks::connect(&format!("{}?durable=yes", dir.url())).await.unwrap();
    let first = held(&locks, "job").await;
    let token = first.token();
    first.release().await.unwrap();
    assert!(held(&locks, "job").await.token() > token);
}
