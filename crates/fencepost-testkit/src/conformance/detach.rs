//! A detached lock outlives its guard, and whoever has the handle can go on with it.

use super::{Harness, LONG, SHORT, becomes_free, bounded, patient, take};
use fencepost::{Error, Handle, State};

pub async fn a_detached_lock_stays_held_and_can_be_attached_from_its_text(harness: Harness) {
    let locks = harness.locks().await;
    let text = take(&locks, "a b/c").await.detach().await.unwrap().to_string();
    locks.close().await;
    let locks = harness.locks().await;
    assert!(locks.lock("a b/c").try_acquire().await.unwrap().is_none());
    let handle: Handle = text.parse().unwrap();
    let guard = patient(&locks, "a b/c").attach(&handle).await.unwrap();
    guard.release().await.unwrap();
    becomes_free(&locks, "a b/c").await;
}

pub async fn a_handle_is_good_for_nothing_after_the_release(harness: Harness) {
    let locks = harness.locks().await;
    let handle = take(&locks, "a").await.detach().await.unwrap();
    locks.attach(&handle).await.unwrap().release().await.unwrap();
    let error = locks.attach(&handle).await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    let next = take(&locks, "a").await;
    assert!(matches!(locks.attach(&handle).await, Err(Error::Lost { .. })));
    next.check().unwrap();
    assert_eq!(locks.show("a").await.unwrap().unwrap().owner, Some(next.owner()));
}

pub async fn an_attached_lock_keeps_its_token_and_is_renewed(harness: Harness) {
    let locks = harness.locks().await;
    let guard = take(&locks, "a").await;
    let (owner, token) = (guard.owner(), guard.token());
    let handle = guard.detach().await.unwrap();
    let guard = locks.lock("a").ttl(LONG).attach(&handle).await.unwrap();
    assert_eq!(guard.token(), token);
    assert_ne!(guard.owner(), owner, "the handle is used up");
    guard.extend().await.unwrap();
    assert!(matches!(guard.state(), State::Held { .. }));
    guard.release().await.unwrap();
    assert!(take(&locks, "a").await.token() > token);
}

pub async fn a_detached_lock_ends_with_its_ttl(harness: Harness) {
    let locks = harness.locks().await;
    let guard = locks.lock("a").ttl(SHORT).acquire().await.unwrap();
    let token = guard.token();
    let handle = guard.detach().await.unwrap();
    let next = bounded("the lease ends", take(&locks, "a")).await;
    assert!(next.token() > token);
    assert!(matches!(locks.attach(&handle).await, Err(Error::Lost { .. })));
}

pub async fn a_store_that_cannot_detach_says_so_and_releases(harness: Harness) {
    let locks = harness.locks().await;
    assert!(!locks.capabilities().detach);
    let guard = take(&locks, "a").await;
    let handle: Handle = format!("{}.{}.a", guard.token(), "0".repeat(32)).parse().unwrap();
    let unsupported = |error: Error| matches!(error, Error::Unsupported { .. }) && !error.is_transient();
    assert!(unsupported(guard.detach().await.unwrap_err()));
    becomes_free(&locks, "a").await;
    assert!(unsupported(locks.attach(&handle).await.unwrap_err()));
    assert!(unsupported(locks.extend(&handle, LONG).await.unwrap_err()));
    assert!(unsupported(locks.release(&handle).await.unwrap_err()));
    harness.is_clear().await;
}
