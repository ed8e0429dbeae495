//! From the call of release in one process to the return of acquire in another that waits: two processes pass
//! one lock to and fro.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fencepost_measure::{Contest, Crowd};
use fencepost_testkit::redis::Server;

use crate::raw::Token;
use crate::results::progress;
use crate::rounds::{SLICE, report_microseconds};
use crate::workers::{contest, locks, pair};

/// Hand-overs by each side of a raw limit that counts them.
pub(crate) const TURNS: usize = 40;

/// Long enough that the other process waits before the release.
pub(crate) const HOLD: Duration = Duration::from_millis(2);

pub(crate) const NAME: &str = "bench-wake";

fn passing(commands: impl IntoIterator<Item = Command>, lasts: Duration) -> Crowd {
    let name = NAME.to_owned();
    contest(commands, &Contest { name, contenders: 1, hold: HOLD, lasts, polite: None })
}

/// Measures locks on a store and a raw limit in turns.
pub(crate) fn report(
    what: &str,
    goal: Option<f64>,
    (url, rounds): (&str, usize),
    raw: impl Fn(usize) -> [Command; 2],
) {
    progress(what);
    let pairs: Vec<_> = (0..rounds.div_ceil(2))
        .map(|round| {
            let ours = passing([locks(url), locks(url)], SLICE);
            assert_eq!(ours.overlaps, 0, "two processes held the lock at once");
            // Those that count their turns end by themselves.
            (ours.gaps.microseconds(50), passing(raw(round), SLICE * 2).gaps.microseconds(50))
        })
        .collect();
    report_microseconds(what, goal, &pairs);
}

pub(crate) fn redis(server: &Server, rounds: usize) {
    let (url, addr) = (server.url(), server.addr().to_string());
    Token::connect(server.addr()).push(NAME);
    report("redis, waking another process / blocking pop", Some(2.2), (&url, rounds), |_| {
        pair("token", &addr)
    });
    report("redis, waking another process / our script bare", None, (&url, rounds), |_| {
        pair("pushed", &addr)
    });
}

pub(crate) fn file(folder: &Path, rounds: usize) {
    let url = format!("file://{}", folder.join("locks").display());
    let raw = folder.display().to_string();
    report("file, waking another process / blocked flock", None, (&url, rounds), |_| pair("flock", &raw));
}
