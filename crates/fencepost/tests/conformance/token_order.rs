//! Promise 1: a token is strictly larger than every token handed out earlier for its name.

use fencepost::{Locks, State};

use crate::stage::{LONG, SHORT, Stage, becomes_free, file_url, patient, take};

on_every_store!(
    tokens_grow_across_releases,
    tokens_grow_across_dropped_guards,
    tokens_grow_across_reconnects,
    tokens_grow_across_abandoned_attempts,
    the_token_of_a_force_release_lies_between_the_victim_and_the_next,
);
on_stores_with_leases!(tokens_grow_across_expiry);
on_redis!(
    tokens_grow_when_the_server_restarts_empty,
    tokens_grow_when_the_server_restarts_from_an_old_dump,
    tokens_grow_when_the_counter_was_collected,
    a_counter_outlives_its_lock_but_not_for_ever,
);
on_stores!(tokens_grow_when_all_files_were_removed: file);

async fn tokens_grow_across_releases(stage: Stage) {
    let connections = [stage.locks().await, stage.locks().await];
    let mut last = None;
    for round in 0..100 {
        let guard = take(&connections[round % 2], "a").await;
        assert!(Some(guard.token()) > last);
        last = Some(guard.token());
        guard.release().await.unwrap();
    }
}

async fn tokens_grow_across_dropped_guards(stage: Stage) {
    let locks = stage.locks().await;
    let mut last = None;
    for _ in 0..20 {
        let guard = take(&locks, "a").await;
        assert!(Some(guard.token()) > last);
        last = Some(guard.token());
    }
}

async fn tokens_grow_across_reconnects(stage: Stage) {
    let mut last = None;
    for _ in 0..5 {
        let locks = stage.locks().await;
        let guard = take(&locks, "a").await;
        assert!(Some(guard.token()) > last);
        last = Some(guard.token());
        guard.release().await.unwrap();
        locks.close().await;
    }
}

async fn tokens_grow_across_abandoned_attempts(stage: Stage) {
    let locks = stage.locks().await;
    let first = take(&locks, "a").await;
    let before = first.token();
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    assert!(locks.lock("a").wait(crate::stage::ms(20)).acquire().await.is_err());
    first.release().await.unwrap();
    assert!(take(&locks, "a").await.token() > before);
}

async fn the_token_of_a_force_release_lies_between_the_victim_and_the_next(stage: Stage) {
    let locks = stage.locks().await;
    let victim = take(&locks, "a").await;
    let revoked = locks.force_release("a", fencepost::ForceRelease::now("test")).await.unwrap().unwrap();
    assert!(revoked.token > victim.token());
    drop(victim);
    assert!(take(&locks, "a").await.token() > revoked.token);
}

async fn tokens_grow_across_expiry(stage: Stage) {
    let locks = stage.locks().await;
    let mut last = None;
    for _ in 0..3 {
        let guard = locks.lock("a").ttl(SHORT).renew(false).acquire().await.unwrap();
        assert!(Some(guard.token()) > last);
        last = Some(guard.token());
        guard.lost().await;
        // Keep the guard: nothing but the end of the lease frees the lock.
        let next = take(&locks, "a").await;
        assert!(Some(next.token()) > last);
        assert!(matches!(guard.state(), State::Lost(_)));
        last = Some(next.token());
        next.release().await.unwrap();
    }
}

async fn tokens_grow_when_the_server_restarts_empty(mut stage: Stage) {
    let locks = stage.locks().await;
    let before = take(&locks, "a").await.token();
    becomes_free(&locks, "a").await;
    stage.server_mut().restart_empty();
    let locks = stage.locks().await;
    assert!(take(&locks, "a").await.token() > before);
}

async fn tokens_grow_when_the_server_restarts_from_an_old_dump(mut stage: Stage) {
    let locks = stage.locks().await;
    becomes_free(&locks, "a").await;
    let old = stage.server().snapshot();
    let mut last = None;
    for _ in 0..50 {
        let guard = take(&locks, "a").await;
        last = Some(guard.token());
        guard.release().await.unwrap();
    }
    stage.server_mut().restart_from(&old);
    let locks = stage.locks().await;
    let guard = take(&locks, "a").await;
    assert!(Some(guard.token()) > last, "{:?} after {last:?}", guard.token());
}

/// The key that counts the tokens of `a`.
fn counter(stage: &Stage) -> String {
    let keys = stage.server().keys_like("{lock:a}:fence*");
    assert_eq!(keys.len(), 1, "{keys:?}");
    keys[0].clone()
}

async fn tokens_grow_when_the_counter_was_collected(stage: Stage) {
    let locks = stage.locks().await;
    let mut last = None;
    for _ in 0..20 {
        let guard = take(&locks, "a").await;
        assert!(Some(guard.token()) > last);
        last = Some(guard.token());
        guard.release().await.unwrap();
        stage.server().cli(&["DEL", &counter(&stage)]);
    }
}

async fn a_counter_outlives_its_lock_but_not_for_ever(stage: Stage) {
    let locks = stage.locks().await;
    becomes_free(&locks, "a").await;
    let left: u64 = stage.server().cli(&["PTTL", &counter(&stage)]).parse().unwrap();
    let hour = 3_600_000;
    assert!((hour / 2..=hour).contains(&left), "{left}");
}

async fn tokens_grow_when_all_files_were_removed(stage: Stage) {
    let Stage::File(folder) = &stage else { unreachable!("a test for files") };
    let locks = stage.locks().await;
    let before = take(&locks, "a").await.token();
    becomes_free(&locks, "a").await;
    locks.close().await;
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }.unwrap();
    }
    let locks = Locks::connect(&file_url(folder.path())).await.unwrap();
    assert!(patient(&locks, "a").ttl(LONG).acquire().await.unwrap().token() > before);
}
