//! An operator takes a lock back; its holder learns the reason.

use super::{Harness, becomes_free, bounded, ms, patient, take};
use fencepost::{Error, ForceRelease, Loss};

fn reason() -> Loss {
    Loss::force_released("host is being drained")
}

pub async fn the_victim_learns_the_reason(harness: Harness) {
    let (locks, operator) = (harness.locks().await, harness.locks().await);
    let victim = patient(&locks, "a").renew_every(ms(100)).acquire().await.unwrap();
    let revoked = operator.force_release("a", "host is being drained").await.unwrap().unwrap();
    assert_eq!(revoked.holder.owner, Some(victim.owner()));
    assert_eq!(bounded("the victim learns it", victim.lost()).await, reason());
    assert!(matches!(victim.release().await, Err(Error::Lost { why, .. }) if why == reason()));
    becomes_free(&operator, "a").await;
    assert_eq!(locks.stats().lost.force_released, 1);
}

pub async fn with_now_the_lock_is_free_while_the_victim_still_lives(harness: Harness) {
    let (locks, operator) = (harness.locks().await, harness.locks().await);
    let victim = patient(&locks, "a").renew_every(ms(100)).acquire().await.unwrap();
    let revoked =
        operator.force_release("a", ForceRelease::now("host is being drained")).await.unwrap().unwrap();
    assert!(revoked.freed);
    let next = take(&operator, "a").await;
    let why = bounded("the victim learns it", victim.lost()).await;
    assert!(why == reason() || why == Loss::Taken, "{why}");
    drop(victim);
    next.extend().await.unwrap();
    assert_eq!(operator.show("a").await.unwrap().unwrap().owner, Some(next.owner()));
    next.release().await.unwrap();
}

pub async fn a_lock_that_nobody_holds_cannot_be_taken_back(harness: Harness) {
    let locks = harness.locks().await;
    assert_eq!(locks.force_release("a", "x").await.unwrap(), None);
    assert_eq!(locks.force_release("a", ForceRelease::now("x")).await.unwrap(), None);
    becomes_free(&locks, "a").await;
    assert_eq!(locks.force_release("a", "x").await.unwrap(), None);
}

pub async fn a_politely_revoked_lock_is_not_free_before_its_holder_lets_go(harness: Harness) {
    let (locks, operator) = (harness.locks().await, harness.locks().await);
    let victim = patient(&locks, "a").without_renewal().acquire().await.unwrap();
    let revoked = operator.force_release("a", "host is being drained").await.unwrap().unwrap();
    if !revoked.freed {
        assert!(operator.lock("a").try_acquire().await.unwrap().is_none());
        let holder = operator.show("a").await.unwrap().unwrap();
        assert_eq!(holder.revoked.as_deref(), Some("host is being drained"));
    }
    assert!(matches!(victim.extend().await, Err(Error::Lost { .. })));
    drop(victim);
    becomes_free(&operator, "a").await;
}

pub async fn a_force_release_that_names_a_token_takes_the_lock_from_nobody_else(harness: Harness) {
    let (locks, operator) = (harness.locks().await, harness.locks().await);
    let before = take(&locks, "a").await;
    let seen = before.token();
    before.release().await.unwrap();
    assert_eq!(operator.force_release("a", ForceRelease::now("stuck").if_token(seen)).await.unwrap(), None);
    let holder = take(&locks, "a").await;
    for how in [ForceRelease::ask("stuck"), ForceRelease::now("stuck")] {
        let error = operator.force_release("a", how.if_token(seen)).await.unwrap_err();
        assert!(matches!(&error, Error::Changed { .. }), "{error}");
        assert_eq!(error.holder().and_then(|holder| holder.token), Some(holder.token()));
    }
    holder.extend().await.unwrap();
    let how = ForceRelease::now("stuck").if_token(holder.token());
    assert!(operator.force_release("a", how).await.unwrap().unwrap().token > holder.token());
    becomes_free(&operator, "a").await;
}
