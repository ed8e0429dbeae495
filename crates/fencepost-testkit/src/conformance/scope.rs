//! Work under a lock: released after it, and dropped where it stands when the lock is lost.

use super::{Harness, becomes_free, bounded, ms, patient, take};
use fencepost::{Error, Guard, Loss};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Says when it is dropped.
struct Flag(Arc<AtomicBool>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

pub async fn a_scope_releases_and_returns_what_the_work_returned(harness: Harness) {
    let locks = harness.locks().await;
    let inside = locks.clone();
    let work = async |guard: &Guard| {
        assert!(inside.lock("a").try_acquire().await.unwrap().is_none());
        guard.token()
    };
    let token = patient(&locks, "a").scope(work).await.unwrap();
    let next = locks.lock("a").try_acquire().await.unwrap().unwrap();
    assert!(next.token() > token);
}

pub async fn a_scope_that_panics_releases(harness: Harness) {
    let locks = harness.locks().await;
    let lock = patient(&locks, "a");
    let task = tokio::spawn(async move { lock.scope(async |_: &Guard| panic!("on purpose")).await });
    assert!(task.await.unwrap_err().is_panic());
    becomes_free(&locks, "a").await;
}

pub async fn the_work_is_dropped_when_the_lock_is_lost(harness: Harness) {
    let (locks, operator) = (harness.locks().await, harness.locks().await);
    let dropped = Arc::new(AtomicBool::new(false));
    let lock = patient(&locks, "a").renew_every(ms(50));
    let work = lock.scope(async |_: &Guard| {
        let _flag = Flag(dropped.clone());
        operator.force_release("a", "enough").await.unwrap().unwrap();
        std::future::pending::<()>().await;
    });
    let error = bounded("the scope ends", work).await.unwrap_err();
    let why = Loss::force_released("enough");
    assert!(matches!(&error, Error::Lost { why: lost, .. } if *lost == why), "{error}");
    assert!(dropped.load(Ordering::SeqCst));
    becomes_free(&operator, "a").await;
}

pub async fn work_inside_a_held_guard_keeps_the_guard(harness: Harness) {
    let locks = harness.locks().await;
    let guard = take(&locks, "a").await;
    assert_eq!(guard.scope(async |_: &Guard| 7).await.unwrap(), 7);
    guard.check().unwrap();
    guard.release().await.unwrap();
}
