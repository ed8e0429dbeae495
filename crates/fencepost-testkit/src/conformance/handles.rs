//! A handle is a key: whoever has it may renew, release or take over the lock, one of them takes it over, and
//! nothing that it says is ever written.

use super::{Harness, LONG, becomes_free, bounded, ms, patient, take};
use fencepost::{Error, Handle, Loss};

fn lost<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Lost { .. }))
}

pub async fn of_two_that_attach_one_handle_the_second_is_told_that_it_is_taken(harness: Harness) {
    let (locks, others) = (harness.locks().await, harness.locks().await);
    let handle = take(&locks, "a").await.detach().await.unwrap();
    let first = patient(&locks, "a").attach(&handle).await.unwrap();
    assert!(lost(patient(&others, "a").attach(&handle).await), "one handle, one guard");
    assert!(lost(others.extend(&handle, LONG).await), "the handle is used up");
    assert!(lost(others.release(&handle).await), "the handle is used up");
    first.extend().await.unwrap();
    assert_eq!(first.token(), handle.token());
    let again = first.detach().await.unwrap();
    assert_ne!(again.owner(), handle.owner());
    others.release(&again).await.unwrap();
    becomes_free(&locks, "a").await;
}

pub async fn a_handle_renews_as_often_as_it_likes_and_then_releases(harness: Harness) {
    let (locks, others) = (harness.locks().await, harness.locks().await);
    let handle = take(&locks, "a").await.detach().await.unwrap();
    for locks in [&locks, &others, &locks] {
        locks.extend(&handle, LONG).await.unwrap();
    }
    let holder = locks.show("a").await.unwrap().unwrap();
    assert_eq!(holder.owner, Some(handle.owner()), "a renewal leaves the identity as it is");
    others.release(&handle).await.unwrap();
    assert!(lost(locks.release(&handle).await));
    assert!(take(&locks, "a").await.token() > handle.token());
}

/// The same handle with another token.
fn forged(handle: &Handle, token: u64) -> Handle {
    let text = handle.to_string();
    let (_, rest) = text.split_once('.').unwrap();
    format!("{token}.{rest}").parse().unwrap()
}

pub async fn a_forged_token_in_a_handle_is_refused_and_changes_nothing(harness: Harness) {
    let locks = harness.locks().await;
    let handle = take(&locks, "a").await.detach().await.unwrap();
    let token = handle.token().get();
    for wrong in [(1 << 53) - 2, token + 1, token - 1].into_iter().filter(|token| *token > 0) {
        let forged = forged(&handle, wrong);
        assert!(lost(locks.extend(&forged, LONG).await), "{wrong}");
        assert!(lost(locks.release(&forged).await), "{wrong}");
        assert!(lost(locks.attach(&forged).await), "{wrong}");
    }
    assert_eq!(locks.show("a").await.unwrap().unwrap().owner, Some(handle.owner()));
    locks.release(&handle).await.unwrap();
    for _ in 0..3 {
        let next = take(&locks, "a").await;
        assert!(next.token().get() < (1 << 53) - 2, "counters were not touched");
        next.release().await.unwrap();
    }
}

pub async fn what_a_store_shows_makes_no_handle(harness: Harness) {
    let locks = harness.locks().await;
    let handle = take(&locks, "a").await.detach().await.unwrap();
    let shown = locks.show("a").await.unwrap().unwrap();
    let owner = shown.owner.unwrap();
    assert!(!handle.to_string().contains(&owner.to_string()));
    assert!(format!("{}.{owner}.a", handle.token()).parse::<Handle>().is_err());
    let digits = owner.to_string().replace('-', "");
    let rebuilt: Handle = format!("{}.{digits}.a", handle.token()).parse().unwrap();
    assert!(lost(locks.release(&rebuilt).await));
    locks.release(&handle).await.unwrap();
}

pub async fn a_release_by_handle_is_the_answer_to_a_force_release(harness: Harness) {
    let (locks, operator) = (harness.locks().await, harness.locks().await);
    let handle = take(&locks, "a").await.detach().await.unwrap();
    let revoked = operator.force_release("a", "host is being drained").await.unwrap().unwrap();
    assert!(!revoked.freed && revoked.token > handle.token());
    assert!(operator.lock("a").try_acquire().await.unwrap().is_none(), "nobody has let go");
    let reason = Loss::force_released("host is being drained");
    let refused = locks.extend(&handle, LONG).await.unwrap_err();
    assert!(matches!(&refused, Error::Lost { why, .. } if *why == reason), "{refused}");
    let refused = locks.attach(&handle).await.unwrap_err();
    assert!(matches!(&refused, Error::Lost { why, .. } if *why == reason), "{refused}");
    locks.release(&handle).await.unwrap();
    becomes_free(&operator, "a").await;
    assert!(take(&locks, "a").await.token() > revoked.token);
}

pub async fn a_renewal_by_handle_never_shortens_the_lease(harness: Harness) {
    let locks = harness.locks().await;
    let handle = take(&locks, "a").await.detach().await.unwrap();
    locks.extend(&handle, LONG).await.unwrap();
    locks.extend(&handle, ms(2000)).await.unwrap();
    let left = locks.show("a").await.unwrap().unwrap().expires_in.unwrap();
    assert!(left > LONG / 2, "{left:?}");
    locks.release(&handle).await.unwrap();
}

pub async fn a_guard_beside_a_renewal_by_handle_still_hears_of_a_force_release(harness: Harness) {
    let (locks, operator) = (harness.locks().await, harness.locks().await);
    let handle = take(&locks, "a").await.detach().await.unwrap();
    let guard = patient(&locks, "a").renew_every(ms(100)).attach(&handle).await.unwrap();
    // Of a handle that is used up: it must not disturb the guard in the same process.
    assert!(lost(locks.extend(&handle, LONG).await));
    operator.force_release("a", "enough").await.unwrap().unwrap();
    let why = bounded("the guard hears of it", guard.lost()).await;
    assert_eq!(why, Loss::force_released("enough"));
}

pub async fn a_guard_whose_lock_was_attached_leaves_it_to_the_next(harness: Harness) {
    leaves_it_to_the_next(harness, false).await;
}

pub async fn an_attached_guard_whose_lock_was_attached_again_leaves_it_as_well(harness: Harness) {
    leaves_it_to_the_next(harness, true).await;
}

async fn leaves_it_to_the_next(harness: Harness, detached: bool) {
    let others = harness.locks().await;
    for (knows, releases) in [(true, true), (true, false), (false, true), (false, false)] {
        let locks = harness.locks().await;
        let lock = patient(&locks, "a").renew_every(if knows { ms(100) } else { LONG / 3 });
        let mut before = lock.acquire().await.unwrap();
        if detached {
            before = lock.attach(&before.detach().await.unwrap()).await.unwrap();
        }
        let attached = patient(&others, "a").attach(&before.handle()).await.unwrap();
        if knows {
            assert_eq!(bounded("the first guard learns it", before.lost()).await, Loss::Taken);
        }
        if releases {
            assert!(lost(before.release().await), "it is another one's");
        } else {
            drop(before);
        }
        // Waits for what goes on in the background.
        locks.close().await;
        let what = format!("knows: {knows}, releases: {releases}");
        attached.extend().await.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(others.lock("a").try_acquire().await.unwrap().is_none(), "{what}");
        attached.release().await.unwrap();
        becomes_free(&others, "a").await;
    }
}

pub async fn an_attached_guard_that_is_asked_to_let_go_holds_the_lock_until_it_does(harness: Harness) {
    let (locks, operator) = (harness.locks().await, harness.locks().await);
    let handle = take(&locks, "a").await.detach().await.unwrap();
    let guard = patient(&locks, "a").renew_every(ms(100)).attach(&handle).await.unwrap();
    let revoked = operator.force_release("a", "host is being drained").await.unwrap().unwrap();
    assert!(!revoked.freed && revoked.token > guard.token());
    assert_eq!(revoked.holder.owner, Some(guard.owner()));
    let why = Loss::force_released("host is being drained");
    assert_eq!(bounded("the guard hears of it", guard.lost()).await, why);
    assert!(operator.lock("a").try_acquire().await.unwrap().is_none(), "the guard has it still");
    let shown = operator.show("a").await.unwrap().unwrap();
    assert_eq!(shown.revoked.as_deref(), Some("host is being drained"));
    drop(guard);
    assert!(take(&operator, "a").await.token() > revoked.token);
}
