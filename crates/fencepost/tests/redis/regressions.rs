//! What once went wrong on Redis, so that it does not again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost::SupervisorExt as _;
use fencepost::{Error, Guard, Locks, Retry};
use fencepost_testkit::redis::Server;
use fencepost_testkit::{LIMIT, eventually};

use crate::harness::{connect, ms, poll_once, queues, wait_until};

/// Lets a client wait for a lock in the queue, and hands it over by push.
async fn by_push(server: &Arc<Server>, lock: fencepost::Lock) -> fencepost::Result<Guard> {
    let held = connect(server).await.lock("a").acquire().await.unwrap();
    let waiting = tokio::spawn(async move { lock.acquire().await });
    queues(server, "a", 1).await;
    held.release().await.unwrap();
    waiting.await.unwrap()
}

#[tokio::test]
async fn a_lock_by_push_that_is_not_renewed_still_gets_its_whole_ttl() {
    let server = Arc::new(Server::start());
    let lock = connect(&server).await.lock("a").ttl(Duration::from_secs(3600)).without_renewal();
    let guard = by_push(&server, lock).await.unwrap();
    let counted = server.clone();
    let whole = move || counted.cli(&["PTTL", "lock:a"]).parse::<u64>().unwrap() > 1_000_000;
    wait_until("the server keeps it for its ttl", whole).await;
    while guard.valid_for().unwrap() < Duration::from_secs(1000) {
        tokio::task::yield_now().await;
        guard.check().unwrap();
    }
}

#[tokio::test]
async fn the_wait_for_a_push_is_no_slow_round_trip() {
    let server = Arc::new(Server::start());
    let mut pushed = false;
    // A push that comes too late for its short term is settled by an answer instead, which does count.
    for _ in 0..5 {
        let client = connect(&server).await;
        let guard = by_push(&server, client.lock("a").ttl(ms(900)).without_renewal()).await;
        pushed |= guard.is_ok() && client.stats().round_trips.count == 0;
        drop(guard);
    }
    assert!(pushed, "each grant by push was counted as a round trip");
}

#[tokio::test]
async fn max_hold_counts_from_the_grant_and_not_from_the_wait() {
    let server = Arc::new(Server::start());
    let (hold, client) = (Duration::from_secs(20), connect(&server).await);
    let held = client.lock("a").acquire().await.unwrap();
    let lock = connect(&server).await.lock("a").max_hold(hold);
    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
    let (counted, started) = (server.clone(), boottime());
    // The waiter's last answered question is older than the release by then.
    let asked = move || counted.cli(&["LLEN", "{lock:a}:waiting"]) == "1" && boottime() > started + ms(50);
    wait_until("the waiter stands in the queue", asked).await;
    let released = boottime();
    held.release().await.unwrap();
    let guard = waiting.await.unwrap();
    // The short first term is made up to the longest that is allowed.
    wait_until("all of it counts", move || guard.valid_until_boottime().unwrap() >= released + hold).await;
}

fn boottime() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap())
}

#[tokio::test]
async fn waiters_that_come_and_go_do_not_keep_the_first_from_asking() {
    let server = Arc::new(Server::start());
    let locks = connect(&server).await;
    server.cli(&["SET", "lock:a", "foreign", "PX", "300"]);
    let first = tokio::spawn({
        let lock = locks.lock("a").wait(LIMIT);
        async move { lock.acquire().await.map(drop) }
    });
    let counted = locks.clone();
    wait_until("the first waits", move || counted.stats().waiting_now == 1).await;
    let stop = Arc::new(AtomicBool::new(false));
    let crowd: Vec<_> = (0..4)
        .map(|extra| {
            let (lock, stop) = (locks.lock("a").wait(ms(60 + extra)), stop.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    drop(lock.acquire().await);
                }
            })
        })
        .collect();
    first.await.unwrap().unwrap();
    stop.store(true, Ordering::SeqCst);
    for task in crowd {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn every_waiter_of_a_process_learns_who_holds_the_lock() {
    let server = Server::start();
    let (holder, locks) = (connect(&server).await, connect(&server).await);
    let _held = holder.lock("a").note("mine").acquire().await.unwrap();
    let lock = locks.lock("a").wait(ms(2000));
    let (first, second) = tokio::join!(lock.acquire(), lock.acquire());
    for outcome in [first, second] {
        let error = outcome.unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert_eq!(error.holder().unwrap().note.as_deref(), Some("mine"));
    }
}

#[test]
fn an_extension_on_a_runtime_that_ends_or_blocks_holds_up_nobodys_renewal() {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (locks, one, other) = runtime.block_on(async {
        let locks = connect(&server).await;
        let one = locks.lock("one").ttl(ms(3000)).renew_every(ms(300)).acquire().await.unwrap();
        let other = locks.lock("other").ttl(ms(3000)).renew_every(ms(300)).acquire().await.unwrap();
        (locks, one, other)
    });
    let renewed = |more: u64| {
        let before = locks.stats().renewed;
        eventually("renewals go on", || locks.stats().renewed >= before + more);
        assert!(!one.state().is_lost() && !other.state().is_lost());
    };
    // The runtime stands still while it has an extension under way.
    let mut extension = Box::pin(one.extend());
    runtime.block_on(poll_once(&mut extension));
    renewed(4);
    drop(runtime);
    drop(extension);
    renewed(4);
}

#[tokio::test]
async fn two_tasks_that_take_turns_let_another_process_in() {
    let server = Arc::new(Server::start());
    let (pair, other) = (connect(&server).await, connect(&server).await);
    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..2)
        .map(|_| {
            let (lock, stop) = (pair.lock("a"), stop.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let guard = lock.acquire().await.unwrap();
                    tokio::time::sleep(ms(2)).await;
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    let counted = pair.clone();
    wait_until("they take turns", move || counted.stats().acquired > 20).await;
    let waiting = tokio::spawn(async move { other.lock("a").wait(LIMIT).acquire().await });
    let counted = server.clone();
    let queued = move || counted.cli(&["LLEN", "{lock:a}:waiting"]).parse::<u64>().unwrap() >= 1;
    wait_until("the other queues", queued).await;
    let before = pair.stats().acquired;
    drop(waiting.await.unwrap().unwrap());
    let turns = pair.stats().acquired - before;
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    // Two at most are ahead of it, and a few more of the moment between the two looks.
    assert!(turns < 20, "{turns} turns before the other process");
}

#[tokio::test]
async fn a_server_that_quotes_our_greeting_does_not_make_us_print_the_password() {
    let server = Server::config().line("rename-command HELLO \"\"").start();
    let url = server.url().replace("redis://", "redis://:s3cretpw@");
    let error = Locks::connect(&url).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error}");
    assert!(!format!("{error} {error:?}").contains("s3cretpw"));
}

#[tokio::test]
async fn thousands_of_tasks_at_once_are_served() {
    let server = Server::start();
    // All of them are served; how soon depends on the machine.
    let locks = Locks::connect(&format!("{}?timeout=30s", server.url())).await.unwrap();
    let tasks: Vec<_> = (0..20_000)
        .map(|index| {
            let lock = locks.lock(format!("many:{index}"));
            tokio::spawn(async move { lock.try_acquire().await.map(|guard| drop(guard.unwrap())) })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_schedule_without_a_wait_is_one_try() {
    let server = Server::start();
    let locks = connect(&server).await;
    let lock = locks.lock("a").wait(Duration::ZERO).retry(Retry::fixed(ms(5)).attempts(3));
    let _guard = lock.acquire().await.unwrap();
    assert!(matches!(lock.acquire().await, Err(Error::Busy { .. })));
}

#[tokio::test]
async fn a_foreign_value_that_is_no_text_can_be_cut_off() {
    let server = Server::start();
    let locks = connect(&server).await;
    for value in ["string.char(255, 254, 1)", "''"] {
        let script = format!("return redis.call('SET', KEYS[1], {value}, 'PX', '60000')");
        server.cli(&["EVAL", &script, "1", "lock:a"]);
        assert!(locks.force_release("a", fencepost::ForceRelease::now("why")).await.unwrap().unwrap().freed);
        assert!(server.keys_like("lock:*").is_empty());
    }
}
