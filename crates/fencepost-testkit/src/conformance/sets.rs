//! Several locks at once: sorted, all or nothing, a token each.

use super::{Harness, IN_VAIN, LONG, becomes_free, bounded, ms, take, until};
use fencepost::{Error, GuardSet, Loss, State};

pub async fn a_set_holds_every_name_with_a_token_of_its_own(harness: Harness) {
    let locks = harness.locks().await;
    let set = locks.all(["b", "a", "b", "c"]).ttl(LONG).acquire().await.unwrap();
    let names: Vec<_> = set.tokens().map(|(name, _)| name.to_string()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(set.token("b"), Some(set.guards()[1].token()));
    assert_eq!(set.token("nope"), None);
    assert!(matches!(set.state(), State::Held { .. }));
    for name in ["a", "b", "c"] {
        assert!(locks.lock(name).try_acquire().await.unwrap().is_none());
    }
    set.release().await.unwrap();
    harness.is_clear().await;
}

pub async fn a_set_holds_nothing_if_one_name_is_not_free(harness: Harness) {
    let locks = harness.locks().await;
    let held = take(&locks, "b").await;
    let set = locks.all(["a", "b", "c"]).ttl(LONG);
    assert!(set.try_acquire().await.unwrap().is_none());
    // What it had by then is given back, if need be in the background.
    becomes_free(&locks, "a").await;
    let error = set.clone().wait(IN_VAIN).acquire().await.unwrap_err();
    assert!(matches!(&error, Error::Timeout { name, .. } if name.as_str() == "b"), "{error}");
    becomes_free(&locks, "a").await;
    locks.lock("c").try_acquire().await.unwrap().unwrap().release().await.unwrap();
    held.release().await.unwrap();
    set.try_acquire().await.unwrap().unwrap().release().await.unwrap();
}

pub async fn sets_in_any_order_never_wait_for_each_other(harness: Harness) {
    let locks = harness.locks().await;
    let orders = [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"], ["c", "a", "b"]];
    let tasks: Vec<_> = (0..20)
        .map(|task| {
            let set = locks.all(orders[task % orders.len()]).ttl(LONG);
            tokio::spawn(async move { set.acquire().await.unwrap().release().await.unwrap() })
        })
        .collect();
    for task in tasks {
        bounded("all end", task).await.unwrap();
    }
    harness.is_clear().await;
}

pub async fn a_set_is_lost_when_one_of_its_locks_is(harness: Harness) {
    let locks = harness.locks().await;
    let set = locks.all(["a", "b"]).ttl(LONG).renew_every(ms(50)).acquire().await.unwrap();
    let work = set.scope(async |_: &GuardSet| {
        locks.force_release("b", "enough").await.unwrap().unwrap();
        std::future::pending::<Result<(), Error>>().await
    });
    let error = bounded("the scope ends", work).await.unwrap_err();
    let why = Loss::force_released("enough");
    assert!(
        matches!(&error, Error::Lost { name, why: lost, .. } if name.as_str() == "b" && *lost == why),
        "{error}"
    );
    until("the set knows", async || set.state().is_lost()).await;
    drop(set);
    for name in ["a", "b"] {
        becomes_free(&locks, name).await;
    }
}
