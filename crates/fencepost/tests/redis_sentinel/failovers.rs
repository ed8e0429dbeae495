//! Many failovers, one after the other, while clients take turns: two, or `FENCEPOST_FAILOVERS`
//! (`make failovers`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fencepost::{Locks, SupervisorExt as _};
use fencepost_testkit::SplitMix64;
use fencepost_testkit::history::{Client, History, Rule};
use fencepost_testkit::redis::Sentinels;

use crate::harness::{DOWN_AFTER, apart, ms, until};

const CLIENTS: u32 = 8;

/// Has a lock again and again. Some hold it for longer than its ttl, some do nothing for a while: their
/// connections see nothing of what happens meanwhile.
async fn take_turns(locks: Locks, client: Client, mut dice: SplitMix64, stop: Arc<AtomicBool>) {
    let mut roll = move |sides: u64| dice.next_u64() % sides;
    while !stop.load(Ordering::SeqCst) {
        let name = ["a", "b"][usize::from(roll(2) == 1)];
        client.invoke(name);
        match locks.lock(name).wait(ms(1000 + roll(9000))).acquire().await {
            Ok(guard) => {
                client.acquired(guard.token().get(), guard.valid_until_boottime());
                let pause = match roll(20) {
                    0 => ms(roll(3000)),
                    1..4 => ms(roll(300)),
                    _ => ms(roll(5)),
                };
                let lost = tokio::time::timeout(pause, guard.lost()).await;
                match (lost, guard.check()) {
                    (Err(_), Ok(())) => client.released(guard.valid_until_boottime()),
                    (_, told) => {
                        client.lost(&format!("{:?}", told.err()), guard.valid_until_boottime());
                    }
                }
                let _ = guard.release().await;
            }
            Err(error) => client.gave_up(&error.to_string()),
        }
        if roll(50) == 0 {
            tokio::time::sleep(ms(roll(8000))).await;
        }
    }
}

/// Has another server become master, in one of several ways, and says how.
fn strike(all: &mut Sentinels, round: u32, dice: &mut SplitMix64) -> &'static str {
    let master = all.master().unwrap();
    let some_time = |dice: &mut SplitMix64, most: u64| std::thread::sleep(ms(dice.next_u64() % most));
    match round % 5 {
        0 | 3 => {
            all[master].kill();
            all.await_other_than(master);
            some_time(dice, 3000);
            all[master].restart_as_configured();
            "killed, restarted as a master that has been replaced"
        }
        1 => {
            all[master].pause();
            all.await_other_than(master);
            some_time(dice, 9000);
            all[master].resume();
            "paused, goes on as a master that has been replaced"
        }
        4 => {
            all[master].kill();
            some_time(dice, 400);
            all[master].restart_as_configured();
            "killed, restarted in time"
        }
        _ => {
            all.fail_over();
            "replaced as planned"
        }
    }
}

async fn many(parameters: &str, rules: &[Rule]) {
    let rounds = std::env::var("FENCEPOST_FAILOVERS").map_or(2, |text| text.parse().unwrap());
    let start = || {
        let durable = |config: fencepost_testkit::redis::Config| config.line("appendonly yes");
        Sentinels::start_with(2, DOWN_AFTER, durable)
    };
    let mut all = apart(start).await.with_parameters(parameters);
    Locks::init(&all.url()).await.unwrap();
    let (history, stop) = (History::new(), Arc::new(AtomicBool::new(false)));
    let mut tasks = Vec::new();
    for number in 0..CLIENTS {
        let locks = Locks::connect(&all.url()).await.unwrap();
        let dice = SplitMix64::new(u64::from(number));
        tasks.push(tokio::spawn(take_turns(locks, history.client(number), dice, stop.clone())));
    }
    let mut dice = SplitMix64::new(1);
    for round in 0..rounds {
        let began = Instant::now();
        let how;
        (all, dice, how) = apart(move || {
            let how = strike(&mut all, round, &mut dice);
            (all, dice, how)
        })
        .await;
        let master = all.master();
        let before = history.acquisitions();
        until("locks are granted again", async || history.acquisitions() > before + 20).await;
        let granted = began.elapsed();
        all = apart(move || {
            all.await_replicas();
            all
        })
        .await;
        let (granted, in_sync) = (granted.as_secs_f64(), began.elapsed().as_secs_f64());
        let grants = history.acquisitions();
        eprintln!(
            "{round}: {how}; {master:?} is master; grants after {granted:.1} s, all in sync after \
             {in_sync:.1} s; {grants} grants so far"
        );
        if round % 10 == 9 {
            history.check_for(rules);
        }
    }
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(60), task).await.unwrap().unwrap();
    }
    eprintln!("{:?}", history.check_for(rules));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_quarantine_no_two_hold_a_lock_and_no_token_falls() {
    many(
        "max_ttl=3s&ttl=3s",
        &[Rule::Exclusion, Rule::LateLoss, Rule::UniqueTokens, Rule::OrderedTokens, Rule::TokensInTurn],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_one_no_token_falls() {
    many(
        "failover=fast&ttl=1s",
        &[Rule::LateLoss, Rule::UniqueTokens, Rule::OrderedTokens, Rule::TokensInTurn],
    )
    .await;
}
