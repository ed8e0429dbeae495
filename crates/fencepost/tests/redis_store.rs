//! What is particular to the Redis store, on a real server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fencepost::{Locks, Loss, State};
use fencepost_testkit::redis::Server;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

#[tokio::test]
async fn smoke() {
    let server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let guard = locks.lock("a").acquire().await.unwrap();
    println!("{:?} {:?}", guard.token(), guard.state());
    println!("{:?}", locks.show("a").await.unwrap());
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    let err = locks.lock("a").wait(ms(50)).note("x").acquire().await.unwrap_err();
    println!("{err}");
    guard.release().await.unwrap();
    println!("{:?}", server.keys());
}

#[tokio::test]
async fn many_waiters_in_several_clients_take_turns() {
    let server = Server::start();
    let inside = Arc::new(AtomicU64::new(0));
    let last = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let locks = Locks::connect(&server.url()).await.unwrap();
        for _ in 0..10 {
            let (locks, inside, last) = (locks.clone(), inside.clone(), last.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..20 {
                    let guard = locks.lock("hot").acquire().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    assert!(last.swap(guard.token().get(), Ordering::SeqCst) < guard.token().get());
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    println!("{:?}", server.keys());
}

#[tokio::test]
async fn a_force_released_holder_is_told_and_keeps_the_lock_until_it_lets_go() {
    let server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let guard = locks.lock("a").acquire().await.unwrap();
    let revoked = locks.force_release("a", "stuck").await.unwrap().unwrap();
    assert_eq!(guard.lost().await, Loss::ForceReleased { reason: "stuck".into() });
    assert!(matches!(guard.state(), State::Lost(_)));
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    drop(guard);
    let next = locks.lock("a").acquire().await.unwrap();
    assert!(next.token() > revoked.token);
}
