//! Work under a lock: released after it, and dropped where it stands when the lock is lost.

use super::{Harness, LONG, becomes_free, bounded, ms, patient, take};
use crate::LIMIT;
use fencepost::{Error, Guard, GuardSet, Loss, Source};
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
        Ok::<_, Error>(guard.token())
    };
    let token = patient(&locks, "a").scope(work).await.unwrap();
    let next = locks.lock("a").try_acquire().await.unwrap().unwrap();
    assert!(next.token() > token);
}

/// The lock is free, and not only about to be, when the error is there.
pub async fn a_scope_whose_work_fails_releases_and_returns_its_error(harness: Harness) {
    let locks = harness.locks().await;
    let error = patient(&locks, "a").scope(async |_: &Guard| Err::<(), Source>("no".into())).await;
    assert_eq!(error.unwrap_err().to_string(), "no");
    locks.lock("a").try_acquire().await.unwrap().unwrap().release().await.unwrap();
}

pub async fn a_scope_of_several_locks_holds_them_all_and_releases_them(harness: Harness) {
    let locks = harness.locks().await;
    let set = locks.all(["b", "a"]).ttl(LONG).wait(LIMIT);
    let work = async |guards: &GuardSet| {
        for name in ["a", "b"] {
            assert!(locks.lock(name).try_acquire().await.unwrap().is_none());
        }
        Ok::<_, Error>(guards.tokens().count())
    };
    assert_eq!(set.scope(work).await.unwrap(), 2);
    set.try_acquire().await.unwrap().unwrap().release().await.unwrap();
    let error = set.scope(async |_: &GuardSet| Err::<(), Source>("no".into())).await.unwrap_err();
    assert_eq!(error.to_string(), "no");
    set.try_acquire().await.unwrap().unwrap().release().await.unwrap();
}

pub async fn a_scope_that_panics_releases(harness: Harness) {
    let locks = harness.locks().await;
    let lock = patient(&locks, "a");
    let work = async |_: &Guard| -> Result<(), Error> { panic!("on purpose") };
    let task = tokio::spawn(async move { lock.scope(work).await });
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
        std::future::pending::<Result<(), Error>>().await
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
    assert_eq!(guard.scope(async |_: &Guard| Ok::<_, Error>(7)).await.unwrap(), 7);
    let error = guard.scope(async |_: &Guard| Err::<(), Source>("no".into())).await.unwrap_err();
    assert_eq!(error.to_string(), "no");
    guard.check().unwrap();
    guard.release().await.unwrap();
}
