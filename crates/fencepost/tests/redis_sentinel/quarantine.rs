//! A master that may not know of what was granted last: it grants nothing until that has ended.

use fencepost::{Error, ForceRelease, Locks};

use crate::harness::{REIGN, bounded, connect, declared, declared_with, ms, start, until, use_once};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_deployment_waits_and_says_so() {
    let all = start(1).await;
    let locks = connect(&all).await;
    let lock = locks.lock("a");
    for error in
        [lock.try_acquire().await.unwrap_err(), lock.clone().wait(ms(300)).acquire().await.unwrap_err()]
    {
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(error.to_string().contains("in quarantine for another"), "{error}");
        assert!(error.to_string().contains("`fencepost init`"), "{error}");
    }
    assert!(locks.show("a").await.unwrap().is_none());
    lock.acquire().await.unwrap().release().await.unwrap();
    assert!(all[0].keys_like("{fencepost}*") == [REIGN]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_deployment_that_is_declared_grants_at_once_and_one_in_use_cannot_be() {
    let all = start(1).await;
    let said = Locks::init(&all.url()).await.unwrap();
    assert!(said[0].ends_with("grants locks"), "{said:?}");
    let locks = connect(&all).await;
    use_once(&locks, "a").await;
    let said = Locks::init(&all.url()).await.unwrap();
    assert!(said[0].ends_with("already"), "{said:?}");
    // As after a failover.
    all[0].cli(&["SET", REIGN, "aa bb 1000 4000 1 2 switched"]);
    let said = Locks::init(&all.url()).await.unwrap();
    assert!(said[0].contains("grants locks in "), "{said:?}");
    let locks = connect(&all).await;
    let error = locks.lock("b").try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("in quarantine after a failover for another"), "{error}");
    let error = Locks::init(&all.url()).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }) && error.to_string().contains("in use"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_go_on_in_a_quarantine_and_nobody_else_gets_the_lock() {
    let all = declared_with(1, "max_ttl=6s").await;
    let (locks, other) = (connect(&all).await, connect(&all).await);
    let guard = locks.lock("a").acquire().await.unwrap();
    let handle = locks.lock("b").acquire().await.unwrap().detach().await.unwrap();
    let asked = locks.lock("c").acquire().await.unwrap();
    all[0].cli(&["DEL", REIGN]);
    let waiter = tokio::spawn({
        let lock = other.lock("a");
        async move { lock.acquire().await }
    });
    let queued = || all[0].cli(&["LLEN", "{lock:a}:waiting"]) == "1";
    until("it stands in the queue", async || queued()).await;
    guard.extend().await.unwrap();
    // Two may attach one handle if the server has forgotten the first.
    let error = other.attach(&handle).await.unwrap_err();
    assert!(error.to_string().contains("in quarantine"), "{error}");
    locks.extend(&handle, ms(6000)).await.unwrap();
    let now = ForceRelease::now("x");
    let error = other.force_release("c", now).await.unwrap_err();
    assert!(error.to_string().contains("in quarantine"), "{error}");
    other.force_release("c", "in the way").await.unwrap();
    bounded("it is told", asked.lost()).await;
    let token = guard.token();
    guard.release().await.unwrap();
    assert!(all[0].keys_like("lock:a").is_empty() && queued(), "it is free for nobody");
    let error = other.lock("d").try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("in quarantine"), "{error}");
    let next = bounded("the waiter gets it", waiter).await.unwrap().unwrap();
    assert!(next.token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ttl_that_a_quarantine_would_not_outlast_is_refused() {
    let all = declared(1).await;
    let locks = connect(&all).await;
    let refused = |error: Error| {
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("max_ttl"), "{error}");
    };
    refused(locks.lock("a").ttl(ms(1001)).acquire().await.unwrap_err());
    let guard = locks.lock("a").acquire().await.unwrap();
    assert!(guard.valid_for().unwrap() <= ms(1000), "max_ttl is the default");
    refused(guard.extend_to(ms(2000)).await.unwrap_err());
    let handle = guard.detach().await.unwrap();
    refused(locks.lock("a").ttl(ms(2000)).attach(&handle).await.unwrap_err());
    let fast = Locks::connect(&all.url_with("failover=fast")).await.unwrap();
    fast.lock("b").ttl(ms(60_000)).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_longer_ttl_takes_effect_by_a_quarantine() {
    let all = declared(1).await;
    let locks = connect(&all).await;
    use_once(&locks, "a").await;
    let longer = Locks::connect(&all.url_with("max_ttl=1500ms")).await.unwrap();
    let error = longer.lock("a").try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("`max_ttl` or `min-replicas-max-lag` was changed"), "{error}");
    // For all: the reign is another one.
    let error = locks.lock("a").try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("in quarantine"), "{error}");
    use_once(&longer, "a").await;
    // A shorter one needs nothing, and the pause stays the longest that any client has asked for.
    use_once(&locks, "a").await;
    assert!(all[0].cli(&["GET", REIGN]).contains(" 1500 4000 "), "{}", all[0].cli(&["GET", REIGN]));
    Locks::reconfigure(&all.url()).await.unwrap();
    assert!(all[0].cli(&["GET", REIGN]).contains(" 1000 4000 "), "{}", all[0].cli(&["GET", REIGN]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_without_replicas_neither_grants_nor_renews() {
    let all = declared_with(1, "max_ttl=60s").await;
    let locks = connect(&all).await;
    let guard = locks.lock("a").ttl(ms(60_000)).without_renewal().acquire().await.unwrap();
    all[1].pause();
    until("it grants nothing any more", async || {
        let tried = locks.lock("b").try_acquire().await;
        tried.is_err_and(|error| error.to_string().contains("NOREPLICAS"))
    })
    .await;
    let refused = guard.extend().await.unwrap_err();
    assert!(refused.to_string().contains("NOREPLICAS"), "{refused}");
    guard.check().unwrap();
    all[1].resume();
    until("it grants again", async || locks.lock("b").try_acquire().await.is_ok()).await;
    guard.extend().await.unwrap();
}

/// A server looks at its replicas once a second: one that stood still does not know yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_looks_for_replicas_by_itself() {
    let all = declared(1).await;
    let locks = connect(&all).await;
    use_once(&locks, "a").await;
    // Whoever connects after this asks for a longer pause.
    all[0].cli(&["CONFIG", "SET", "min-replicas-max-lag", "1000"]);
    all[1].pause();
    let mut why = String::new();
    until("it grants nothing any more", async || {
        why = locks.lock("a").try_acquire().await.err().map_or(String::new(), |error| error.to_string());
        !why.is_empty()
    })
    .await;
    assert!(why.contains("`min-replicas-max-lag` was changed"), "{why}");
    all[1].resume();
}

/// The old master may grant for as long as it has heard of a replica lately.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_the_old_master_may_lose_too_early_is_not_renewed() {
    let all = declared_with(1, "max_ttl=6s").await;
    let locks = connect(&all).await;
    let short = locks.lock("a").ttl(ms(3000)).without_renewal().acquire().await.unwrap();
    let long = locks.lock("b").ttl(ms(6000)).without_renewal().acquire().await.unwrap();
    all[0].cli(&["DEL", REIGN]);
    long.extend().await.unwrap();
    let error = short.extend().await.unwrap_err();
    assert!(error.to_string().contains("in quarantine"), "{error}");
    bounded("it ends with its lease", short.lost()).await;
    let later = locks.lock("a").ttl(ms(1000)).acquire().await.unwrap();
    assert!(later.token() > short.token());
}

/// Until when the old master may grant, no change of anything else makes shorter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_the_longest_ttl_after_a_failover_does_not_settle_it() {
    let all = declared(1).await;
    let times = || {
        let reign = all[0].cli(&["GET", REIGN]);
        let number = |at| reign.split(' ').nth(at).unwrap().parse::<u64>().unwrap();
        (number(4), number(5))
    };
    all[0].cli(&["DEL", REIGN]);
    let _first = connect(&all).await;
    let (settled, until) = times();
    let _longer = Locks::connect(&all.url_with("max_ttl=1500ms")).await.unwrap();
    assert!(times().0 == settled && times().1 > until, "{:?} after {:?}", times(), (settled, until));
    Locks::reconfigure(&all.url()).await.unwrap();
    assert!(times().0 == settled && times().1 > until, "{:?} after {:?}", times(), (settled, until));
    // It is the first that this server hears.
    all[0].cli(&["SET", REIGN, "aa bb 1500 4000 1 2 switched"]);
    Locks::reconfigure(&all.url()).await.unwrap();
    assert_eq!(times().1 - times().0, 1_500_000, "{:?}", times());
}
