//! A process that measures: says `ready`, obeys a command a line, answers with a line of JSON, and ends with
//! its input.
//!
//! `cycle TASKS SECONDS`, `contend NAME CONTENDERS HOLD SECONDS FILE` ([`Contest`]), and `hold COUNT
//! SECONDS`, which answers twice: when all are held, and at the end. An answer with `error` says why there is
//! none.

use std::io::{self, BufRead as _, Write as _};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::client::{Client, Holding};
use crate::cycles::cycles;
use crate::turns::{Contest, Turn, contend};
use crate::usage::{memory, processor_time, threads};

/// The ttl of locks that are held and renewed.
const TTL: Duration = Duration::from_secs(5);

/// The clock that all processes of a machine share, in nanoseconds.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Says one line of the conversation.
///
/// # Errors
///
/// Nobody listens any more.
pub fn answer(line: impl std::fmt::Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Obeys until the input ends.
///
/// # Errors
///
/// Nobody listens any more.
pub async fn serve<C: Client>(client: &C) -> io::Result<()> {
    let (said, mut commands) = mpsc::unbounded_channel();
    // A thread of its own: it may be in the middle of reading when this process ends.
    thread::spawn(move || {
        io::stdin().lock().lines().map_while(Result::ok).try_for_each(|line| said.send(line))
    });
    answer("ready")?;
    // What is held is given back when the next command comes, or at the end: the one who asked may look at
    // the store first.
    let mut held = None;
    while let Some(command) = commands.recv().await {
        drop(held.take());
        answer(obey(client, &command, &mut held).await.unwrap_or_else(|error| json!({ "error": error })))?;
    }
    Ok(())
}

async fn obey<C: Client>(client: &C, command: &str, held: &mut Option<Holding>) -> Result<Value, String> {
    let told = |error: C::Error| error.to_string();
    match command.split(' ').collect::<Vec<_>>()[..] {
        ["cycle", tasks, seconds] => {
            let (tasks, lasts) = (number(tasks)?, Duration::from_secs_f64(number(seconds)?));
            let prefix = format!("bench:{}:", std::process::id());
            let times = cycles(client, &prefix, tasks, lasts).await.map_err(told)?;
            let [p50, p99, max] = [50, 99, 100].map(|percent| times.microseconds(percent));
            Ok(json!({ "p50_us": p50, "p99_us": p99, "max_us": max, "per_s": times.rate() }))
        }
        ["contend", ..] => {
            let contest = Contest::parse(command).ok_or_else(|| format!("`{command}` is no contest"))?;
            let turns = contend(client, &contest).await.map_err(told)?;
            let list = |turns: &Vec<Turn>| turns.iter().map(Turn::value).collect::<Value>();
            Ok(json!({ "turns": turns.iter().map(list).collect::<Value>() }))
        }
        ["hold", count, seconds] => {
            hold(client, number(count)?, Duration::from_secs_f64(number(seconds)?), held).await
        }
        _ => Err(format!("`{command}` is no command")),
    }
}

async fn hold<C: Client>(
    client: &C,
    count: usize,
    span: Duration,
    held: &mut Option<Holding>,
) -> Result<Value, String> {
    let told = |error: C::Error| error.to_string();
    // What the first lock brings along, threads and connections, is not counted for the others.
    drop(client.hold(1, TTL).await.map_err(told)?);
    let (before, started) = (memory(), Instant::now());
    let holding = client.hold(count, TTL).await.map_err(told)?;
    let took = started.elapsed().as_secs_f64();
    // All in their stride before it is measured.
    tokio::time::sleep(TTL).await;
    answer(json!({ "acquired_in_s": took })).map_err(|error| error.to_string())?;
    let (spent, started) = (processor_time(std::process::id()), Instant::now());
    tokio::time::sleep(span).await;
    let share = (processor_time(std::process::id()) - spent) / started.elapsed().as_nanos() as f64;
    let figures = json!({
        "lost": count.saturating_sub(holding()),
        "bytes_each": (memory() - before) / count as f64,
        "core": share,
        "threads": threads(),
    });
    *held = Some(holding);
    Ok(figures)
}

fn number<N: std::str::FromStr>(word: &str) -> Result<N, String> {
    word.parse().map_err(|_| format!("`{word}` is no number"))
}
