//! The scripted faults of the memory store, as users' own tests rely on them.

use crate::{LONG, bounded, ms, until};
use fencepost::memory::{Call, ManualClock, Store};
use fencepost::{Error, Loss, State};

fn is_unavailable<T>(outcome: &fencepost::Result<T>) -> bool {
    matches!(outcome, Err(Error::Unavailable { .. }))
}

#[tokio::test]
async fn a_failed_acquire_has_no_effect() {
    let store = Store::new();
    let locks = store.locks().unwrap();
    store.fail(Call::Acquire, 2);
    assert!(is_unavailable(&locks.lock("a").acquire().await));
    assert!(is_unavailable(&locks.lock("a").try_acquire().await));
    assert_eq!((store.held(), locks.stats().failed), (0, 2));
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn an_acquire_whose_answer_was_lost_is_undone() {
    let store = Store::new();
    let locks = store.locks().unwrap();
    store.lose_answers(Call::Acquire, 1);
    assert!(is_unavailable(&locks.lock("a").ttl(LONG).try_acquire().await));
    assert_eq!(store.held(), 0);
}

#[tokio::test]
async fn a_failed_release_is_uncertain_and_goes_on_behind() {
    let store = Store::new();
    let locks = store.locks().unwrap();
    let guard = locks.lock("a").ttl(LONG).acquire().await.unwrap();
    store.fail(Call::Release, 3);
    assert!(matches!(guard.release().await, Err(Error::Uncertain { .. })));
    until("it is released behind", async || store.held() == 0).await;
}

#[tokio::test]
async fn a_release_whose_answer_was_lost_has_happened() {
    let store = Store::new();
    let locks = store.locks().unwrap();
    let guard = locks.lock("a").ttl(LONG).acquire().await.unwrap();
    store.lose_answers(Call::Release, 1);
    assert!(matches!(guard.release().await, Err(Error::Uncertain { .. })));
    assert_eq!(store.held(), 0);
}

#[tokio::test]
async fn a_scope_whose_release_was_not_answered_still_gives_its_result() {
    let store = Store::new();
    let locks = store.locks().unwrap();
    store.lose_answers(Call::Release, 1);
    assert_eq!(locks.lock("a").scope(async |_| Ok::<_, Error>(7)).await.unwrap(), 7);
}

#[tokio::test]
async fn a_frozen_store_answers_after_the_thaw() {
    let store = Store::new();
    let locks = store.locks().unwrap();
    store.freeze();
    let lock = locks.lock("a").ttl(LONG);
    let (guard, ()) = bounded("it thaws", async {
        tokio::join!(lock.acquire(), async {
            until("it waits", async || locks.stats().waiting_now == 1).await;
            store.thaw();
        })
    })
    .await;
    guard.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn an_expired_lock_is_free_while_its_holder_does_not_know() {
    let clock = ManualClock::new();
    let store = Store::with_clock(&clock);
    let locks = store.locks().unwrap();
    let guard = locks.lock("a").ttl(LONG).acquire().await.unwrap();
    assert!(store.expire("a") && !store.expire("a"));
    assert!(matches!(guard.state(), State::Held { .. }));
    let next = locks.lock("a").ttl(LONG).acquire().await.unwrap();
    clock.advance(LONG / 2).await;
    assert_eq!(guard.state(), State::Lost(Loss::Taken));
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_delayed_renewal_counts_as_slow() {
    let store = Store::new();
    let locks = store.locks().unwrap();
    store.delay(Call::Renew, ms(1_100));
    let _guard = locks.lock("a").ttl(ms(4_000)).renew_every(ms(50)).acquire().await.unwrap();
    until("it is counted", async || locks.stats().slow > 0).await;
}

#[tokio::test]
async fn statistics_add_up() {
    let store = Store::new();
    let locks = store.locks().unwrap();
    let guard = locks.lock("a").acquire().await.unwrap();
    assert_eq!(locks.stats().held_now, 1);
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    drop(locks.lock("a").acquire().await.unwrap());
    until("the drop is counted", async || locks.stats().released == 2).await;
    let stats = locks.stats();
    assert_eq!((stats.acquired, stats.busy, stats.held_now), (2, 1, 0));
    assert_eq!((stats.waiting.count, stats.holding.count, stats.round_trips.count), (2, 2, 2));
}

#[tokio::test]
async fn an_acquire_dropped_while_its_answer_is_under_way_is_undone() {
    let store = Store::new();
    let locks = store.locks().unwrap();
    store.delay(Call::Acquire, LONG);
    let acquire = tokio::spawn({
        let lock = locks.lock("a").ttl(LONG);
        async move { lock.acquire().await.map(drop) }
    });
    until("the store has granted it", async || store.held() == 1).await;
    acquire.abort();
    assert!(acquire.await.unwrap_err().is_cancelled());
    assert_eq!(store.held(), 0);
}

#[tokio::test]
async fn a_renewal_by_handle_without_an_answer_has_an_unknown_outcome() {
    let store = Store::new();
    let locks = store.locks().unwrap();
    let handle = locks.lock("a").ttl(LONG).acquire().await.unwrap().detach().await.unwrap();
    store.lose_answers(Call::Renew, 1);
    let error = locks.extend(&handle, LONG).await.unwrap_err();
    assert!(matches!(&error, Error::Uncertain { .. }), "{error}");
    locks.extend(&handle, LONG).await.unwrap();
    locks.release(&handle).await.unwrap();
}
