//! Waiters of one process, and how they are let on.

use std::pin::Pin;
use std::time::Duration;

use fencepost::{Guard, Lock, Locks};
use fencepost_testkit::redis::Server;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::waiting::{bounded, until};

/// Far longer than a test: what nobody gives back stays.
pub(crate) const TTL: Duration = Duration::from_secs(3600);

pub(crate) async fn connect(server: &Server) -> Locks {
    Locks::connect(&server.url()).await.unwrap()
}

pub(crate) fn lock(locks: &Locks) -> Lock {
    locks.lock("a").ttl(TTL)
}

/// Waiters of one process who hand over their guards when they are served.
pub(crate) struct Crowd {
    pub(crate) served: mpsc::UnboundedReceiver<fencepost::Result<Guard>>,
    pub(crate) tasks: Vec<JoinHandle<()>>,
}

impl Crowd {
    /// Lets so many wait for a lock that is held.
    pub(crate) async fn of(count: u64, lock: &Lock, locks: &Locks) -> Self {
        let (send, served) = mpsc::unbounded_channel();
        let mut tasks = Vec::new();
        for already in 0..count {
            let (lock, send) = (lock.clone(), send.clone());
            tasks.push(tokio::spawn(async move {
                let _ = send.send(lock.acquire().await);
            }));
            until("one more waits", async || locks.stats().waiting_now == already + 1).await;
        }
        Self { served, tasks }
    }

    pub(crate) async fn next(&mut self) -> Guard {
        bounded("the next one is served", self.served.recv()).await.unwrap().unwrap()
    }

    /// Serves those who are left, and checks that tokens grow.
    pub(crate) async fn rest(mut self, mut above: u64) {
        while let Some(guard) = bounded("the next one is served", self.served.recv()).await {
            let guard = guard.unwrap();
            assert!(guard.token().get() > above, "{} after {above}", guard.token());
            above = guard.token().get();
            guard.release().await.unwrap();
        }
    }
}

/// A crowd behind a holder that has just released the lock, and the first of them.
pub(crate) async fn row(server: &Server, count: u64) -> (Locks, Crowd, Guard) {
    let locks = connect(server).await;
    let (crowd, first) = row_of(&locks, count).await;
    (locks, crowd, first)
}

pub(crate) async fn row_of(locks: &Locks, count: u64) -> (Crowd, Guard) {
    let guard = lock(locks).acquire().await.unwrap();
    let mut crowd = Crowd::of(count, &lock(locks), locks).await;
    guard.release().await.unwrap();
    let first = crowd.next().await;
    (crowd, first)
}

/// The last that may have the lock in this process while another process waits.
pub(crate) async fn sixteenth(locks: &Locks) -> Guard {
    let (mut crowd, mut guard) = row_of(locks, 16).await;
    for _ in 1..16 {
        guard.release().await.unwrap();
        guard = crowd.next().await;
    }
    guard
}

/// A release within a row asks the server again if its last answer is older than ten milliseconds.
pub(crate) async fn certain_no_more() {
    tokio::time::sleep(Duration::from_millis(11)).await;
}

/// Waiters that are only looked at when the test wants it.
pub(crate) type Waiter = Pin<Box<dyn Future<Output = fencepost::Result<Guard>> + Send>>;

/// Looks at something that is not done.
pub(crate) async fn poll_once<F: Future + ?Sized>(future: &mut Pin<Box<F>>) {
    std::future::poll_fn(|context| {
        assert!(future.as_mut().poll(context).is_pending());
        std::task::Poll::Ready(())
    })
    .await;
}

/// A release that has sent its request. It has not looked at the answer.
pub(crate) async fn release(
    guard: Guard,
    server: &Server,
) -> Pin<Box<dyn Future<Output = fencepost::Result<()>>>> {
    let before = server.cli(&["GET", "lock:a"]);
    let mut release: Pin<Box<dyn Future<Output = _>>> = Box::pin(guard.release());
    // It lets others go first.
    for _ in 0..4 {
        poll_once(&mut release).await;
    }
    until("the server has handed it over", async || server.cli(&["GET", "lock:a"]) != before).await;
    release
}

pub(crate) async fn waiter(locks: &Locks) -> Waiter {
    waiters(locks, 1).await.remove(0)
}

/// A row of two: the first has the lock, and the second has not been looked at.
pub(crate) async fn pair(server: &Server) -> (Locks, Guard, Waiter) {
    let locks = connect(server).await;
    let guard = lock(&locks).acquire().await.unwrap();
    let mut waiters = waiters(&locks, 2).await;
    guard.release().await.unwrap();
    let first = waiters.remove(0).await.unwrap();
    (locks, first, waiters.remove(0))
}

pub(crate) async fn waiters(locks: &Locks, count: usize) -> Vec<Waiter> {
    waiters_for(&lock(locks), count).await
}

pub(crate) async fn waiters_for(lock: &Lock, count: usize) -> Vec<Waiter> {
    let mut waiters = Vec::new();
    for _ in 0..count {
        let lock = lock.clone();
        let mut waiter: Waiter = Box::pin(async move { lock.acquire().await });
        poll_once(&mut waiter).await;
        waiters.push(waiter);
    }
    waiters
}
