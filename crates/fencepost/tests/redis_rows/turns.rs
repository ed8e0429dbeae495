//! How a row goes on: who has its turn, by which token, and what others see.

use std::time::Duration;

use fencepost::Error;
use fencepost_testkit::redis::Server;

use crate::stage::{Crowd, TTL, certain_no_more, connect, lock, pair, row, waiters};
use crate::waiting::{bounded, until};

#[tokio::test]
async fn a_row_has_the_lock_by_one_request_and_leaves_nothing() {
    let server = Server::start();
    let locks = connect(&server).await;
    let guard = lock(&locks).acquire().await.unwrap();
    let mut tasks = Vec::new();
    for already in 0..12 {
        let lock = lock(&locks);
        tasks.push(tokio::spawn(async move { lock.acquire().await?.release().await }));
        until("one more waits", async || locks.stats().waiting_now == already + 1).await;
    }
    until("the first one stands in the queue", async || server.cli(&["LLEN", "{lock:a}:queue"]) == "1").await;
    let before = server.evalsha_calls();
    guard.release().await.unwrap();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let calls = server.evalsha_calls() - before;
    assert!(calls < 8, "{calls} requests for 12 in a row");
    until("nothing is left", async || server.keys_like("lock:*").is_empty()).await;
    assert_eq!(server.cli(&["EXISTS", "{lock:a}:queue"]), "0");
}

#[tokio::test]
async fn another_process_has_the_lock_after_sixteen_turns_though_more_wait_here() {
    let server = Server::start();
    let (locks, mut crowd, mut guard) = row(&server, 10).await;
    for _ in 1..10 {
        guard.release().await.unwrap();
        guard = crowd.next().await;
    }
    let other = lock(&connect(&server).await);
    let elsewhere = tokio::spawn(async move { other.acquire().await });
    until("it stands in the queue", async || server.cli(&["LLEN", "{lock:a}:queue"]) == "1").await;
    let mut crowd = Crowd::of(20, &lock(&locks), &locks).await;
    guard.release().await.unwrap();
    for _ in 10..16 {
        crowd.next().await.release().await.unwrap();
    }
    let elsewhere = bounded("another process has it", elsewhere).await.unwrap().unwrap();
    assert!(crowd.served.try_recv().is_err(), "a seventeenth one was served");
    let above = elsewhere.token().get();
    elsewhere.release().await.unwrap();
    crowd.rest(above).await;
}

#[tokio::test]
async fn others_see_who_of_a_row_has_the_lock_and_its_token() {
    let server = Server::start();
    let (_locks, mut crowd, first) = row(&server, 4).await;
    let (other, mut next) = (connect(&server).await, Some(first));
    while let Some(guard) = next {
        until("others see it", async || {
            let shown = other.show("a").await.unwrap().unwrap();
            (shown.owner, shown.token) == (Some(guard.owner()), Some(guard.token()))
        })
        .await;
        let Err(Error::Busy { holder: Some(busy), .. }) = lock(&other).wait(Duration::ZERO).acquire().await
        else {
            panic!("it is not busy");
        };
        assert_eq!((busy.owner, busy.token), (Some(guard.owner()), Some(guard.token())));
        let before = guard.token();
        guard.release().await.unwrap();
        next = bounded("the next one is served", crowd.served.recv()).await.map(Result::unwrap);
        assert!(next.as_ref().is_none_or(|next| next.token() > before));
    }
    assert!(other.show("a").await.unwrap().is_none());
}

#[test]
fn others_see_who_has_the_lock_also_if_nobody_turns_the_runtime_of_the_one_before() {
    let server = Server::start();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (theirs, ours) = (runtime(), runtime());
    let (_locks, first, second) = theirs.block_on(pair(&server));
    theirs.block_on(first.release()).unwrap();
    ours.block_on(async {
        let second = second.await.unwrap();
        let other = connect(&server).await;
        until("others see it", async || {
            other.show("a").await.unwrap().unwrap().owner == Some(second.owner())
        })
        .await;
    });
}

#[tokio::test]
async fn a_guard_that_is_dropped_and_a_waiter_that_is_aborted_hold_up_nobody() {
    let server = Server::start();
    let (_locks, mut crowd, first) = row(&server, 5).await;
    let above = first.token().get();
    crowd.tasks[1].abort();
    drop(first);
    let third = crowd.next().await;
    crowd.tasks[4].abort();
    drop(third);
    crowd.rest(above).await;
    until("nothing is left", async || server.keys_like("lock:*").is_empty()).await;
}

#[tokio::test]
async fn a_turn_that_is_not_wanted_any_more_goes_to_the_next() {
    let server = Server::start();
    let locks = connect(&server).await;
    let guard = lock(&locks).acquire().await.unwrap();
    let mut waiters = waiters(&locks, 4).await;
    let before = guard.token();
    guard.release().await.unwrap();
    // It has the lock, and nobody has looked.
    drop(waiters.remove(0));
    let second = bounded("it goes on", waiters.remove(0)).await.unwrap();
    assert!(second.token() > before);
    second.check().unwrap();
    // What the first one undoes in the background does not touch the lock of the second.
    locks.lock("other").acquire().await.unwrap().release().await.unwrap();
    second.extend().await.unwrap();
    drop(waiters);
    second.release().await.unwrap();
    locks.close().await;
    assert!(server.keys_like("lock:*").is_empty());
    assert_eq!(server.cli(&["EXISTS", "{lock:a}:queue"]), "0");
}

#[tokio::test]
async fn an_extension_past_the_ttl_is_not_handed_on() {
    let server = Server::start();
    let (_locks, mut crowd, first) = row(&server, 3).await;
    first.extend_to(TTL * 10).await.unwrap();
    first.release().await.unwrap();
    let second = crowd.next().await;
    let left: u128 = server.cli(&["PTTL", "lock:a"]).parse().unwrap();
    assert!(left <= TTL.as_millis(), "{left} ms are left to a holder that asked for {TTL:?}");
    drop(second);
    crowd.next().await.release().await.unwrap();
}

#[tokio::test]
async fn a_member_that_does_not_renew_gets_its_whole_ttl() {
    let server = Server::start();
    let locks = connect(&server).await;
    let short = locks.lock("a").ttl(Duration::from_secs(4)).renew(false);
    let guard = short.acquire().await.unwrap();
    let mut crowd = Crowd::of(2, &short, &locks).await;
    guard.release().await.unwrap();
    let first = crowd.next().await;
    let half = Duration::from_millis(2600);
    until("nearly half of it is over", async || first.valid_for().unwrap() < half).await;
    first.release().await.unwrap();
    let second = crowd.next().await;
    until("the rest is made up for", async || second.valid_for().unwrap() > Duration::from_millis(3500))
        .await;
}

#[tokio::test]
async fn a_row_takes_no_more_tokens_than_the_clock_allows() {
    let server = Server::start();
    let locks = connect(&server).await;
    let guard = lock(&locks).acquire().await.unwrap();
    let fence = format!("{{lock:a}}:fence:{}", &server.run_id()[..12]);
    let counter = || server.cli(&["GET", &fence]).parse::<u64>().unwrap();
    // A row takes its tokens at once while the clock is ahead of them.
    let mut crowd = Crowd::of(6, &lock(&locks), &locks).await;
    guard.release().await.unwrap();
    let first = crowd.next().await;
    assert_eq!(counter(), first.token().get() + 5);
    // And one at a time while it is not.
    let ahead = counter() + 1_000_000_000_000;
    server.cli(&["SET", &fence, &ahead.to_string(), "PX", "86400000"]);
    first.release().await.unwrap();
    crowd.rest(0).await;
    let guard = lock(&locks).acquire().await.unwrap();
    assert_eq!(guard.token().get(), ahead + 1);
    let mut crowd = Crowd::of(4, &lock(&locks), &locks).await;
    guard.release().await.unwrap();
    for more in 2..=5 {
        let guard = crowd.next().await;
        assert_eq!((guard.token().get(), counter()), (ahead + more, ahead + more));
        guard.release().await.unwrap();
    }
    // A counter that is new starts at the clock.
    let guard = lock(&locks).acquire().await.unwrap();
    let mut crowd = Crowd::of(4, &lock(&locks), &locks).await;
    server.cli(&["DEL", &fence]);
    guard.release().await.unwrap();
    let first = crowd.next().await;
    assert_eq!(first.token().get(), counter());
    assert!(first.token().get() < ahead);
}

#[tokio::test]
async fn one_that_stood_in_the_queue_meanwhile_does_not_stay_there() {
    let server = Server::start();
    let (_locks, mut crowd, first) = row(&server, 3).await;
    let queue = || server.cli(&["LRANGE", "{lock:a}:queue", "0", "-1"]);
    until("the second one has asked", async || !queue().is_empty()).await;
    first.release().await.unwrap();
    let second = crowd.next().await;
    let owner = second.owner().to_string();
    until("it has left the queue", async || !queue().contains(&owner)).await;
    second.check().unwrap();
    assert_eq!(server.cli(&["EXISTS", "lock:a"]), "1", "but not given the lock back");
    let above = second.token().get();
    second.release().await.unwrap();
    crowd.rest(above).await;
    assert_eq!(server.cli(&["EXISTS", "{lock:a}:queue"]), "0");
}

#[tokio::test]
async fn a_late_pass_overwrites_no_newer_one() {
    let server = Server::start();
    let (locks, mut crowd, first) = row(&server, 3).await;
    let value = server.cli(&["GET", "lock:a"]);
    certain_no_more().await;
    first.release().await.unwrap();
    let second = crowd.next().await;
    let script = include_str!("../../src/backends/redis/turn.lua");
    let pass = ["EVAL", script, "3", "lock:a", "fence", "queue", "pass", &value[..36], &value];
    assert_eq!(server.cli(&pass), "1", "the lock is the row's");
    assert_eq!(locks.show("a").await.unwrap().unwrap().owner, Some(second.owner()));
    server.cli(&["DEL", "lock:a"]);
    assert_eq!(server.cli(&pass), "", "and a pass brings nothing back");
    assert_eq!(server.cli(&["EXISTS", "lock:a"]), "0");
}

/// An older client knows no rows: it compares whole values, those that it wrote itself.
#[tokio::test]
async fn an_older_client_and_a_row_exclude_each_other() {
    const WAIT: &str = include_str!("../../src/backends/redis/turn.lua");
    const FREE: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
        local head = redis.call('LPOP', KEYS[3])
        if not head then return redis.call('DEL', KEYS[1]) end
        local grant = 'granted ' .. string.sub(head, 1, 36) .. ' ' .. redis.call('INCR', KEYS[2])
        redis.call('SET', KEYS[1], head, 'PX', ARGV[2])
        return redis.call('PUBLISH', string.sub(head, 38, 53), grant)";
    let server = Server::start();
    let fence = format!("{{lock:a}}:fence:{}", &server.run_id()[..12]);
    let older =
        "0192aaaa-0000-7000-8000-000000000000 0123456789abcdef {\"host\":\"h\",\"pid\":1,\"since\":1}";
    let keys = ["3", "lock:a", &fence, "{lock:a}:queue"];
    let step = |script, words: &[&str]| server.cli(&[&["EVAL", script], &keys[..], words].concat());
    let wait = || step(WAIT, &["wait", older, "1000", "3600000"]);
    let (locks, crowd, first) = row(&server, 3).await;
    assert!(wait().starts_with(&server.cli(&["GET", "lock:a"])), "it is busy");
    assert_eq!(step(FREE, &[older, "1000"]), "0");
    let above = first.token().get();
    first.release().await.unwrap();
    crowd.rest(above).await;
    let token: u64 = wait().parse().unwrap();
    assert!(token > above + 2, "{token}");
    // And the other way round.
    let crowd = Crowd::of(3, &lock(&locks), &locks).await;
    until("the first one stands in the queue", async || server.cli(&["LLEN", keys[3]]) == "1").await;
    let shown = locks.show("a").await.unwrap().unwrap();
    assert_eq!(shown.token.map(fencepost::FencingToken::get), Some(token));
    assert_eq!(server.cli(&["GET", "lock:a"]), older, "nobody has touched it");
    assert_eq!(step(FREE, &[older, "1000"]), "1");
    crowd.rest(token).await;
}

#[test]
fn a_row_goes_through_two_runtimes_and_outlives_one() {
    let server = Server::start();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (ours, theirs) = (runtime(), runtime());
    let (locks, guard) = ours.block_on(async {
        let locks = connect(&server).await;
        let guard = lock(&locks).acquire().await.unwrap();
        (locks, guard)
    });
    let mut there = theirs.block_on(waiters(&locks, 2));
    let mut here = ours.block_on(waiters(&locks, 2));
    let before = guard.token();
    ours.block_on(guard.release()).unwrap();
    let first = theirs.block_on(there.remove(0)).unwrap();
    theirs.block_on(first.release()).unwrap();
    // The second one has its turn there, and its runtime ends.
    drop(there);
    drop(theirs);
    let third = ours.block_on(bounded("it goes on", here.remove(0))).unwrap();
    assert!(third.token() > before);
    ours.block_on(third.release()).unwrap();
    drop(ours.block_on(bounded("and on", here.remove(0))).unwrap());
}
