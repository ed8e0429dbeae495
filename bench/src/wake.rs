//! From the call of release in one process to the return of acquire in another that waits.
//!
//! Two processes pass one lock to and fro. Each notes the suspend-aware clock, which all processes share, before it
//! releases and after it has acquired; the gaps between the two are what a waiter sees.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fencepost::Locks;
use fencepost_testkit::redis::Server;
use rustix::fs::FlockOperation;

use crate::raw::{self, Token};
use crate::rounds::{Slice, report_times};

/// Hand-overs by each process in one round.
pub(crate) const TURNS: usize = 40;

/// Long enough that the other process waits before the release.
pub(crate) const HOLD: Duration = Duration::from_millis(2);

pub(crate) fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Writes down one turn.
pub(crate) fn note(acquired: u64, released: u64) {
    println!("{acquired} {released}");
}

pub(crate) fn hold() {
    std::thread::sleep(HOLD);
}

/// The part of one of the two processes.
pub(crate) fn play(role: &str, arguments: &[String]) {
    let (target, side) = (arguments[0].as_str(), arguments[1].as_str());
    // Both start together: the parent sends a line when the other is ready, too.
    println!("ready");
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).expect("the start");
    match role {
        "locks" => {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let locks = Locks::connect(target).await.expect("a store");
                for _ in 0..TURNS {
                    let guard = locks.lock("bench:wake").acquire().await.expect("the lock");
                    let acquired = now();
                    tokio::time::sleep(HOLD).await;
                    let released = now();
                    guard.release().await.expect("a release");
                    note(acquired, released);
                }
                locks.close().await;
            });
        }
        "token" => {
            let mut token = Token::connect(target.parse::<SocketAddr>().expect("an address"));
            let (mine, other) = if side == "0" { ("bench:0", "bench:1") } else { ("bench:1", "bench:0") };
            if side == "0" {
                token.push(mine);
            }
            for _ in 0..TURNS {
                token.pop(mine);
                let acquired = now();
                hold();
                let released = now();
                token.push(other);
                note(acquired, released);
            }
            if side == "0" {
                // The last token comes back here; the next round starts with an empty list.
                token.pop(mine);
            }
        }
        "flock" => {
            for _ in 0..TURNS {
                let file = raw::open(Path::new(target));
                rustix::fs::flock(&file, FlockOperation::LockExclusive).expect("the lock");
                let acquired = now();
                hold();
                let released = now();
                rustix::fs::flock(&file, FlockOperation::Unlock).expect("an unlock");
                note(acquired, released);
                // As the lock does: whoever waits goes first.
                std::thread::yield_now();
            }
        }
        "zookeeper watch" => {
            crate::zookeeper::pass_to_and_fro(target.parse().expect("an address"), side == "0")
        }
        "notify" => crate::postgres::play(target, side),
        "etcd watch" => crate::etcd::watch(target, side, TURNS, HOLD, |acquired, released| {
            let nanoseconds = |moment: Duration| u64::try_from(moment.as_nanos()).expect("a short uptime");
            note(nanoseconds(acquired), nanoseconds(released));
        }),
        other => panic!("{other} is not a part to play"),
    }
}

fn start(role: &str, target: &str, side: usize) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args([&format!("--play={role}"), target, &side.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process")
}

/// Lets two processes pass a lock to and fro, and returns the gaps between them.
pub(crate) fn gaps(role: &str, target: &str) -> Slice {
    let mut children = [start(role, target, 0), start(role, target, 1)];
    let mut readers: Vec<_> =
        children.iter_mut().map(|child| BufReader::new(child.stdout.take().expect("its output"))).collect();
    for reader in &mut readers {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a line");
    }
    for child in &mut children {
        child.stdin.take().expect("its input").write_all(b"go\n").expect("the start");
    }
    let mut turns = Vec::new();
    for (side, reader) in readers.into_iter().enumerate() {
        for line in reader.lines() {
            let line = line.expect("a line");
            if let Some((acquired, released)) = line.split_once(' ') {
                let parse = |text: &str| text.parse::<u64>().expect("a number");
                turns.push((parse(acquired), parse(released), side));
            }
        }
    }
    for mut child in children {
        assert!(child.wait().expect("its end").success());
    }
    turns.sort_unstable();
    let mut slice = Slice::default();
    for pair in turns.windows(2) {
        let ((_, released, before), (acquired, _, after)) = (pair[0], pair[1]);
        assert!(
            acquired >= released || role != "locks" && role != "flock",
            "two processes held the lock at once"
        );
        if before != after {
            slice.times.push(Duration::from_nanos(acquired.saturating_sub(released)));
        }
    }
    slice
}

pub(crate) fn redis(server: &Server, rounds: usize) {
    let (url, addr) = (server.url(), server.addr().to_string());
    let pairs: Vec<_> =
        (0..rounds.div_ceil(2)).map(|_| (gaps("locks", &url), gaps("token", &addr))).collect();
    report_times("redis, waking another process / blocking pop", Some(3.5), &pairs);
}

pub(crate) fn file(folder: &Path, rounds: usize) {
    let url = format!("file://{}", folder.join("locks").display());
    let path = folder.join("wake.lock").display().to_string();
    let pairs: Vec<_> =
        (0..rounds.div_ceil(2)).map(|_| (gaps("locks", &url), gaps("flock", &path))).collect();
    report_times("file, waking another process / blocked flock", None, &pairs);
}
