//! Eight contenders for one name, in eight processes and in one. Only hand-overs to another contender count: one who takes back what
//! it has just released shows nothing.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fencepost::Locks;
use fencepost_testkit::redis::Server;

use crate::cycle::runtime;
use crate::raw::Token;
use crate::results::Goal;
use crate::rounds::{Slice, report_number, report_rates};
use crate::wake::now;

const CONTENDERS: usize = 8;

/// How long they contend in one round.
const SPAN: Duration = Duration::from_secs(1);

const NAME: &str = "bench:crowd";

/// What came of one round.
struct Crowd {
    /// To another contender, a second.
    handovers: f64,
    /// The most turns of one contender by the least.
    unfairness: f64,
}

impl Crowd {
    /// From the turns of each contender, named by numbers that grow.
    fn of(contenders: &[Vec<u64>]) -> Self {
        let mut turns: Vec<_> = contenders
            .iter()
            .enumerate()
            .flat_map(|(contender, turns)| turns.iter().map(move |turn| (*turn, contender)))
            .collect();
        turns.sort_unstable();
        assert!(turns.windows(2).all(|pair| pair[0].0 < pair[1].0), "a number was given twice");
        let handovers = turns.windows(2).filter(|pair| pair[0].1 != pair[1].1).count();
        let count = |pick: fn(usize, usize) -> usize| {
            contenders.iter().map(Vec::len).reduce(pick).unwrap_or_default() as f64
        };
        Self {
            handovers: handovers as f64 / SPAN.as_secs_f64(),
            unfairness: count(usize::max) / count(usize::min).max(1.0),
        }
    }

    fn slice(&self) -> Slice {
        Slice { times: vec![Duration::ZERO; self.handovers as usize], took: Duration::from_secs(1) }
    }
}

/// One of eight processes: contends until the span is over, then tells its turns.
pub(crate) fn play(role: &str, target: &str) {
    match role {
        "crowd" => {
            let turns = runtime().block_on(async {
                let locks = Locks::connect(target).await.expect("a store");
                let end = start() + SPAN;
                let turns = contend(&locks, end).await;
                locks.close().await;
                turns
            });
            tell(&turns);
        }
        "crowd token" => {
            let mut token = Token::connect(target.parse::<SocketAddr>().expect("an address"));
            let end = start() + SPAN;
            let mut turns = Vec::new();
            while Instant::now() < end {
                token.pop(NAME);
                // Nobody else has the token, so the shared clock numbers the turns.
                turns.push(now());
                token.push(NAME);
            }
            tell(&turns);
        }
        other => panic!("{other} is not a part to play"),
    }
}

async fn contend(locks: &Locks, end: Instant) -> Vec<u64> {
    let (lock, mut turns) = (locks.lock(NAME), Vec::new());
    while Instant::now() < end {
        let guard = lock.acquire().await.expect("the lock");
        turns.push(guard.token().get());
        guard.release().await.expect("a release");
    }
    turns
}

/// All start together: the parent sends a line when the last is ready.
fn start() -> Instant {
    println!("ready");
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).expect("the start");
    Instant::now()
}

fn tell(turns: &[u64]) {
    let mut out = std::io::stdout().lock();
    for turn in turns {
        writeln!(out, "{turn}").expect("a line");
    }
}

fn spawn(role: &str, target: &str) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args([&format!("--play={role}"), target, "0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process")
}

fn in_processes(role: &str, target: &str) -> Crowd {
    let mut children: Vec<_> = (0..CONTENDERS).map(|_| spawn(role, target)).collect();
    let mut readers: Vec<_> =
        children.iter_mut().map(|child| BufReader::new(child.stdout.take().expect("its output"))).collect();
    for reader in &mut readers {
        reader.read_line(&mut String::new()).expect("a line");
    }
    for child in &mut children {
        child.stdin.take().expect("its input").write_all(b"go\n").expect("the start");
    }
    let turns = |reader: BufReader<_>| {
        reader.lines().map(|line| line.expect("a line").parse().expect("a number")).collect()
    };
    let turns: Vec<Vec<u64>> = readers.into_iter().map(turns).collect();
    for mut child in children {
        assert!(child.wait().expect("its end").success());
    }
    Crowd::of(&turns)
}

fn in_one_process(url: &str) -> Crowd {
    let turns = runtime().block_on(async {
        let locks = Locks::connect(url).await.expect("a store");
        let end = Instant::now() + SPAN;
        let running: Vec<_> = (0..CONTENDERS)
            .map(|_| {
                let locks = locks.clone();
                tokio::spawn(async move { contend(&locks, end).await })
            })
            .collect();
        let mut turns = Vec::new();
        for task in running {
            turns.push(task.await.expect("a task"));
        }
        locks.close().await;
        turns
    });
    Crowd::of(&turns)
}

pub(crate) fn redis(server: &Server, rounds: usize) {
    let (url, addr) = (server.url(), server.addr().to_string());
    Token::connect(server.addr()).push(NAME);
    let (mut beside_raw, mut in_one, mut unfair, mut raw_unfair) = (vec![], vec![], vec![], vec![]);
    for _ in 0..rounds.div_ceil(3) {
        let (apart, raw) = (in_processes("crowd", &url), in_processes("crowd token", &addr));
        let together = in_one_process(&url);
        unfair.push(apart.unfairness);
        raw_unfair.push(raw.unfairness);
        in_one.push((together.slice(), apart.slice()));
        beside_raw.push((apart.slice(), raw.slice()));
    }
    report_rates("redis, 8 processes: hand-overs / blocking pop", Some(0.4), &beside_raw);
    report_rates("redis, 8 tasks of one: hand-overs / 8 processes", Some(4.0), &in_one);
    let [ours, raw] = [unfair, raw_unfair].map(crate::rounds::middle);
    let detail = format!("most / least turns {ours:.2} beside {raw:.2}");
    report_number(
        "redis, 8 processes: unfairness / blocking pop",
        ours / raw,
        &detail,
        Some(Goal::AtMost(1.1)),
    );
}
