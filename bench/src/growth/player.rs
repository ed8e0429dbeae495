//! A process with many locks, or many who want one. It says `ready`, and obeys a command a line:
//!
//! - `hold COUNT TTL` takes so many locks and keeps them, renewed.
//! - `renew SECONDS` tells what that takes.
//! - `cycle COUNT` takes and gives back a lock so often.
//! - `contend NAMES CONTENDERS HOLD` lets so many contend for each of so many names, and hold it for so many
//!   microseconds, more or less. It answers when as many turns are over as there are contenders.
//! - `wait NAME COUNT` has so many wait for one name.
//! - `count SECONDS` tells how often a lock was taken meanwhile.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use fencepost::{Guard, Locks};
use fencepost_measure::usage::{memory, processor_time};
use fencepost_measure::{answer, now};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// How many locks are asked for at once.
const ABREAST: usize = 64;

pub(crate) async fn serve(locks: &Locks) -> io::Result<()> {
    answer("ready")?;
    let mut held = Vec::new();
    let (said, mut commands) = mpsc::unbounded_channel();
    // A thread of its own: it may be in the middle of reading when this process ends.
    thread::spawn(move || io::stdin().lines().map_while(Result::ok).try_for_each(|line| said.send(line)));
    while let Some(command) = commands.recv().await {
        answer(obey(locks, &command, &mut held).await)?;
    }
    Ok(())
}

async fn obey(locks: &Locks, command: &str, held: &mut Vec<Guard>) -> Value {
    let words: Vec<_> = command.split(' ').collect();
    let number = |place: usize| words[place].parse::<usize>().expect("a number");
    let (before, started, stats) = (spent(), Instant::now(), locks.stats());
    match words[0] {
        "hold" => {
            let (count, ttl) = (number(1), Duration::from_secs(number(2) as u64));
            let memory_before = memory();
            *held = hold(locks, count, ttl).await;
            json!({
                "bytes_each": (memory() - memory_before) / count as f64,
                "spent": spent() - before,
                "took": started.elapsed().as_secs_f64(),
            })
        }
        "renew" | "count" => {
            tokio::time::sleep(Duration::from_secs(number(1) as u64)).await;
            let now = locks.stats();
            json!({
                "renewed": now.renewed - stats.renewed,
                "acquired": now.acquired - stats.acquired,
                "spent": spent() - before,
                "lost": held.iter().filter(|guard| guard.check().is_err()).count(),
            })
        }
        "cycle" => {
            let mut times = Vec::new();
            let lock = locks.lock(format!("growth:{}", std::process::id()));
            for _ in 0..number(1) {
                let before = Instant::now();
                lock.acquire().await.expect("the lock").release().await.expect("a release");
                times.push(before.elapsed());
            }
            times.sort_unstable();
            json!({ "spent": spent() - before, "p50": times[times.len() / 2].as_secs_f64() * 1e6 })
        }
        "contend" => {
            let (names, contenders) = (number(1), number(2));
            let hold = Duration::from_micros(number(3) as u64);
            for contender in 0..names * contenders {
                // More at once than the server can answer in time would be refused.
                if contender % 1000 == 999 {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                let lock = locks.lock(format!("growth:{}", contender % names));
                tokio::spawn(async move {
                    loop {
                        // A contest with fewer contenders than it should have shows nothing.
                        let Ok(guard) = lock.acquire().await else { std::process::exit(1) };
                        if hold.is_zero() {
                            // Those of this process who have something to say do so before it goes on.
                            tokio::task::yield_now().await;
                        } else {
                            // By chance, or all would go on at the same time.
                            let chance = (now() % 1_000_000) as f64 / 1e6;
                            tokio::time::sleep(hold.mul_f64(0.5 + chance)).await;
                        }
                        let Ok(_) = guard.release().await else { std::process::exit(1) };
                    }
                });
            }
            while locks.stats().acquired < stats.acquired + (names * contenders) as u64 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            json!({ "took": started.elapsed().as_secs_f64() })
        }
        "wait" => {
            for _ in 0..number(2) {
                let lock = locks.lock(words[1]);
                tokio::spawn(async move { lock.acquire().await.map(drop) });
            }
            json!({})
        }
        _ => json!({ "error": format!("`{command}` is no command") }),
    }
}

async fn hold(locks: &Locks, count: usize, ttl: Duration) -> Vec<Guard> {
    let mut lanes = JoinSet::new();
    for lane in 0..ABREAST {
        let locks = locks.clone();
        lanes.spawn(async move {
            let mut guards = Vec::new();
            for number in (lane..count).step_by(ABREAST) {
                let lock = locks.lock(format!("held:{number}")).ttl(ttl);
                guards.push(lock.acquire().await.expect("a lock"));
            }
            guards
        });
    }
    lanes.join_all().await.into_iter().flatten().collect()
}

/// Processor time of this process so far, in microseconds.
fn spent() -> f64 {
    processor_time(std::process::id()) / 1e3
}
