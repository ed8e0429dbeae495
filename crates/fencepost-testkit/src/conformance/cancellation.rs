//! Promise 5: a future dropped at any await leaves nothing behind, and so does a dropped guard or runtime.
//!
//! Each test polls a future n times and drops it, for every n until it completes. Leases are long here: what
//! becomes free did so because it was given back.

use super::{Harness, LONG, becomes_free, bounded, patient, take, until};
use fencepost::{Error, Guard, Locks};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// More polls than any of these futures needs; a waiter that looks again now and then needs them without end.
const MOST: usize = 40;

/// How long a waiter may be silent before it counts as parked. On a slow machine fewer awaits are tried.
const PARKED: Duration = Duration::from_millis(300);

enum Outcome<T> {
    Done(T),
    Dropped,
}

/// Polls a future up to `count` times, each time it asks for it, and drops it.
async fn poll_and_drop<T>(future: impl Future<Output = T>, count: usize) -> Outcome<T> {
    if count == 0 {
        return Outcome::Dropped;
    }
    let mut future = pin!(future);
    let mut polls = 0;
    let polled = std::future::poll_fn(|context| {
        polls += 1;
        match future.as_mut().poll(context) {
            Poll::Ready(out) => Poll::Ready(Outcome::Done(out)),
            Poll::Pending if polls == count => Poll::Ready(Outcome::Dropped),
            Poll::Pending => Poll::Pending,
        }
    });
    polled.await
}

/// Runs `step` for one poll, two polls and so on, until it says that the future completed.
async fn at_every_await(mut step: impl AsyncFnMut(usize) -> bool) {
    for count in 0..MOST {
        if bounded("one step", step(count)).await {
            return;
        }
    }
    panic!("not done after {MOST} polls");
}

fn completed<T>(outcome: Outcome<T>) -> bool {
    matches!(outcome, Outcome::Done(_))
}

pub async fn acquire_of_a_free_lock_may_be_dropped_at_any_await(harness: Harness) {
    let locks = harness.locks().await;
    let mut done = false;
    at_every_await(async |count| {
        let lock = patient(&locks, "a");
        let outcome = poll_and_drop(lock.acquire(), count).await;
        done |= matches!(outcome, Outcome::Done(Ok(_)));
        let completed = completed(outcome);
        becomes_free(&locks, "a").await;
        completed
    })
    .await;
    assert!(done, "a free lock is acquired in the end");
    harness.is_clear().await;
}

pub async fn acquire_of_a_held_lock_may_be_dropped_at_any_await(harness: Harness) {
    let (locks, others) = (harness.locks().await, harness.locks().await);
    at_every_await(async |count| {
        let held = take(&locks, "a").await;
        let lock = patient(&others, "a");
        // It waits for somebody else in the end, and polling on would not end.
        let outcome = tokio::time::timeout(PARKED, poll_and_drop(lock.acquire(), count)).await;
        assert!(!matches!(outcome, Ok(Outcome::Done(_))), "a held lock is not acquired");
        held.release().await.unwrap();
        becomes_free(&locks, "a").await;
        outcome.is_err()
    })
    .await;
    harness.is_clear().await;
}

pub async fn acquire_may_be_dropped_while_the_lock_is_handed_over(harness: Harness) {
    let (locks, others) = (harness.locks().await, harness.locks().await);
    for count in 1..MOST {
        let held = take(&locks, "a").await;
        let release = tokio::spawn(held.release());
        let lock = patient(&others, "a");
        let outcome = poll_and_drop(lock.acquire(), count).await;
        release.await.unwrap().unwrap();
        drop(outcome);
        becomes_free(&locks, "a").await;
    }
    harness.is_clear().await;
}

pub async fn a_dropped_waiter_does_not_hold_up_the_next(harness: Harness) {
    let locks = harness.locks().await;
    let held = take(&locks, "a").await;
    let wait = |locks: &Locks| {
        let lock = patient(locks, "a");
        tokio::spawn(async move { lock.acquire().await.unwrap() })
    };
    let (far, near) = (harness.locks().await, harness.locks().await);
    let first = wait(&far);
    until("the first waits", async || far.stats().waiting_now == 1).await;
    let second = wait(&near);
    until("the second waits", async || near.stats().waiting_now == 1).await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    held.release().await.unwrap();
    bounded("the second gets the lock", second).await.unwrap().release().await.unwrap();
    harness.is_clear().await;
}

/// Who ends its process next can undo nothing any more.
pub async fn a_dropped_acquire_is_undone_when_close_returns(harness: Harness) {
    let rival = harness.locks().await;
    at_every_await(async |count| {
        let locks = harness.locks().await;
        let completed = completed(poll_and_drop(patient(&locks, "a").acquire(), count).await);
        locks.close().await;
        takes_at_once(&rival, "a").await;
        completed
    })
    .await;
    harness.is_clear().await;
}

pub async fn a_dropped_waiter_is_gone_when_close_returns(harness: Harness) {
    let (holder, rival) = (harness.locks().await, harness.locks().await);
    at_every_await(async |count| {
        let (held, locks) = (take(&holder, "a").await, harness.locks().await);
        let lock = patient(&locks, "a");
        let waits = poll_and_drop(lock.acquire(), count);
        let parked = tokio::time::timeout(PARKED, waits).await.is_err();
        drop(lock);
        locks.close().await;
        held.release().await.unwrap();
        takes_at_once(&rival, "a").await;
        parked
    })
    .await;
    harness.is_clear().await;
}

async fn takes_at_once(locks: &Locks, name: &str) {
    let guard = locks.lock(name).ttl(LONG).try_acquire().await.unwrap();
    guard.expect("nothing is left that holds it").release().await.unwrap();
}

pub async fn try_acquire_may_be_dropped_at_any_await(harness: Harness) {
    let locks = harness.locks().await;
    at_every_await(async |count| {
        let lock = locks.lock("a").ttl(LONG);
        let outcome = poll_and_drop(lock.try_acquire(), count).await;
        let completed = completed(outcome);
        becomes_free(&locks, "a").await;
        completed
    })
    .await;
    harness.is_clear().await;
}

pub async fn extend_may_be_dropped_at_any_await(harness: Harness) {
    let locks = harness.locks().await;
    let guard = take(&locks, "a").await;
    at_every_await(async |count| {
        let outcome = poll_and_drop(guard.extend(), count).await;
        guard.check().unwrap();
        guard.extend().await.unwrap();
        completed(outcome)
    })
    .await;
    guard.release().await.unwrap();
    harness.is_clear().await;
}

pub async fn release_may_be_dropped_at_any_await(harness: Harness) {
    let locks = harness.locks().await;
    at_every_await(async |count| {
        let guard = take(&locks, "a").await;
        let outcome = poll_and_drop(guard.release(), count).await;
        becomes_free(&locks, "a").await;
        completed(outcome)
    })
    .await;
    harness.is_clear().await;
}

pub async fn detach_may_be_dropped_at_any_await(harness: Harness) {
    let locks = harness.locks().await;
    if !locks.capabilities().detach {
        return;
    }
    at_every_await(async |count| {
        let guard = take(&locks, "a").await;
        let outcome = poll_and_drop(guard.detach(), count).await;
        if let Outcome::Done(handle) = outcome {
            locks.attach(&handle.unwrap()).await.unwrap().release().await.unwrap();
            return true;
        }
        becomes_free(&locks, "a").await;
        false
    })
    .await;
    harness.is_clear().await;
}

pub async fn attach_may_be_dropped_at_any_await(harness: Harness) {
    let locks = harness.locks().await;
    if !locks.capabilities().detach {
        return;
    }
    at_every_await(async |count| {
        let handle = take(&locks, "a").await.detach().await.unwrap();
        let outcome = poll_and_drop(locks.attach(&handle), count).await;
        let done = matches!(outcome, Outcome::Done(_));
        let guard = match outcome {
            Outcome::Done(guard) => guard.unwrap(),
            // Whoever has the handle has the lock: an attempt that was given up does not change that.
            Outcome::Dropped => locks.attach(&handle).await.unwrap(),
        };
        guard.release().await.unwrap();
        becomes_free(&locks, "a").await;
        done
    })
    .await;
    harness.is_clear().await;
}

pub async fn scope_may_be_dropped_at_any_await(harness: Harness) {
    let locks = harness.locks().await;
    at_every_await(async |count| {
        let lock = patient(&locks, "a");
        let work = lock.scope(async |_: &Guard| {
            tokio::task::yield_now().await;
            Ok::<_, Error>(())
        });
        let outcome = poll_and_drop(work, count).await;
        becomes_free(&locks, "a").await;
        completed(outcome)
    })
    .await;
    harness.is_clear().await;
}

pub async fn a_lock_set_may_be_dropped_at_any_await(harness: Harness) {
    let locks = harness.locks().await;
    at_every_await(async |count| {
        let set = locks.all(["a", "b", "c"]).ttl(LONG);
        let completed = completed(poll_and_drop(set.acquire(), count).await);
        for name in ["a", "b", "c"] {
            becomes_free(&locks, name).await;
        }
        completed
    })
    .await;
    harness.is_clear().await;
}

pub async fn a_dropped_guard_releases(harness: Harness) {
    let locks = harness.locks().await;
    drop(take(&locks, "a").await);
    becomes_free(&locks, "a").await;
    harness.is_clear().await;
}

pub async fn a_guard_dropped_on_a_plain_thread_releases(harness: Harness) {
    let locks = harness.locks().await;
    let guard = take(&locks, "a").await;
    std::thread::spawn(move || drop(guard)).join().unwrap();
    becomes_free(&locks, "a").await;
    harness.is_clear().await;
}

/// Runs something on a runtime of its own until it reports, and then drops the runtime with all that runs on
/// it.
fn on_a_runtime_that_ends<F>(report: tokio::sync::oneshot::Receiver<()>, future: F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.spawn(future);
        runtime.block_on(report).unwrap();
    };
    std::thread::spawn(run).join().unwrap();
}

pub async fn a_guard_dropped_with_its_runtime_releases(harness: Harness) {
    let locks = harness.locks().await;
    let (report, reported) = tokio::sync::oneshot::channel();
    let lock = patient(&locks, "a");
    on_a_runtime_that_ends(reported, async move {
        let _guard = lock.acquire().await.unwrap();
        report.send(()).unwrap();
        std::future::pending::<()>().await;
    });
    becomes_free(&locks, "a").await;
    harness.is_clear().await;
}

pub async fn a_waiter_dropped_with_its_runtime_leaves_the_queue(harness: Harness) {
    let locks = harness.locks().await;
    let held = take(&locks, "a").await;
    let (report, reported) = tokio::sync::oneshot::channel();
    let (lock, waiting) = (patient(&locks, "a"), locks.clone());
    on_a_runtime_that_ends(reported, async move {
        tokio::spawn(async move { lock.acquire().await.map(drop) });
        while waiting.stats().waiting_now == 0 {
            tokio::task::yield_now().await;
        }
        report.send(()).unwrap();
        std::future::pending::<()>().await;
    });
    assert_eq!(locks.stats().waiting_now, 0);
    held.release().await.unwrap();
    becomes_free(&locks, "a").await;
    harness.is_clear().await;
}

pub async fn locks_outlive_the_runtime_they_were_connected_on(harness: Harness) {
    let connect = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let locks = harness.locks().await;
            let guard = take(&locks, "a").await;
            (locks, guard)
        })
    };
    let (locks, guard) = std::thread::scope(|scope| scope.spawn(connect).join().unwrap());
    guard.extend().await.unwrap();
    guard.release().await.unwrap();
    becomes_free(&locks, "a").await;
}
