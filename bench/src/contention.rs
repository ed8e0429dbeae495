//! Eight contenders for one name, in eight processes and in one. Only hand-overs to another contender count:
//! one who takes back what it has just released shows nothing.

use std::time::Duration;

use fencepost_measure::{Contest, Crowd};
use fencepost_testkit::redis::Server;

use crate::raw::Token;
use crate::results::{Goal, progress};
use crate::rounds::{middle, report_number, report_per_second};
use crate::workers::{contest, locks, player};

pub(crate) const CONTENDERS: usize = 8;

/// How long they contend in one round.
const SPAN: Duration = Duration::from_secs(1);

const NAME: &str = "bench-crowd";

pub(crate) fn redis(server: &Server, rounds: usize) {
    let (url, addr) = (server.url(), server.addr().to_string());
    Token::connect(server.addr()).push(NAME);
    let of = |contenders: usize| Contest {
        name: NAME.to_owned(),
        contenders,
        hold: Duration::ZERO,
        lasts: SPAN,
        polite: None,
    };
    let [mut apart, mut raw, mut together] = [const { Vec::<Crowd>::new() }; 3];
    for _ in 0..rounds.div_ceil(3) {
        progress("redis, eight contenders");
        apart.push(contest((0..CONTENDERS).map(|_| locks(&url)), &of(1)));
        raw.push(contest((0..CONTENDERS).map(|_| player("token", &addr, 0)), &of(1)));
        together.push(contest([locks(&url)], &of(CONTENDERS)));
    }
    for crowd in apart.iter().chain(&together) {
        assert_eq!(crowd.overlaps, 0, "two held the lock at once, or a number was given twice");
    }
    let rates = |ours: &[Crowd], other: &[Crowd]| -> Vec<_> {
        ours.iter().zip(other).map(|(ours, other)| (ours.handovers, other.handovers)).collect()
    };
    report_per_second("redis, 8 processes: hand-overs / blocking pop", Some(0.45), &rates(&apart, &raw));
    report_per_second("redis, 8 tasks of one: hand-overs / 8 processes", None, &rates(&together, &apart));
    let unfairness = |crowds: &[Crowd]| middle(crowds.iter().map(|crowd| crowd.unfairness).collect());
    let (ours, bare) = (unfairness(&apart), unfairness(&raw));
    let detail = format!("most / least turns {ours:.2} beside {bare:.2}");
    report_number(
        "redis, 8 processes: unfairness / blocking pop",
        ours / bare,
        &detail,
        Some(Goal::AtMost(1.1)),
    );
    let detail = "most / least turns";
    report_number("redis, 8 tasks of one: unfairness", unfairness(&together), detail, None);
    report_waits("redis, 8 processes: ms waited, p50", &apart);
    report_waits("the blocking pop's: ms waited, p50", &raw);
    report_waits("redis, 8 tasks of one: ms waited, p50", &together);
}

fn report_waits(what: &str, crowds: &[Crowd]) {
    let milliseconds =
        |percent: usize| middle(crowds.iter().map(|crowd| crowd.waits.microseconds(percent) / 1e3).collect());
    let detail = format!("p99 {:.2} ms, max {:.2} ms", milliseconds(99), milliseconds(100));
    report_number(what, milliseconds(50), &detail, None);
}
