//! What needs a server of a special kind: a replica, a full one, one whose clock is wrong.

use fencepost_testkit::redis::Server;

use crate::link::{Link, Reply};
use crate::model::Verdict;

const CHANNEL: &str = "0123456789abcdef";
const KEYS: [&str; 3] = ["lock:a", "{lock:a}:fence", "{lock:a}:waiting"];

fn entry(number: u8) -> String {
    format!("00000000-0000-0000-0000-0000000000{number:02x} {CHANNEL} {{}}")
}

struct Single<'a> {
    link: Link,
    script: &'a str,
}

impl Single<'_> {
    fn step(&mut self, verb: &str, who: &str, argument: &str) -> Reply {
        let [lock, fence, queue] = KEYS;
        self.link.call(&["EVAL", self.script, "3", lock, fence, queue, verb, who, argument])
    }

    /// Two steps in one call.
    fn both(&mut self, one: [&str; 3], two: [&str; 3]) -> Reply {
        let mut words = vec!["EVAL", self.script, "6"];
        words.extend(KEYS);
        words.extend(KEYS);
        words.extend(one);
        words.extend(two);
        self.link.call(&words)
    }

    fn token(&mut self, verb: &str, who: &str) -> u64 {
        self.step(verb, who, "30000").text().parse().expect("a token")
    }
}

fn demand(holds: bool, what: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(what()) }
}

/// A server that has become a replica refuses everything that would tell somebody about a lock, and tells
/// nobody.
pub(crate) fn replica(script: &str) -> Verdict {
    let server = Server::start();
    let mut on = Single { link: Link::open(&server), script };
    let mut holder = Link::listening(&server, "SUBSCRIBE", CHANNEL);
    let mine = entry(1);
    let token = on.token("try", &mine);
    on.step("wait", &entry(2), "30000");
    let (grant, value) = (format!("{} {token}", &mine[..36]), format!("{mine} {token}"));
    on.link.call(&["REPLICAOF", "127.0.0.1", "1"]);
    for (verb, who) in [
        ("renew", grant.clone()),
        ("renew", grant.clone()),
        ("free", grant.clone()),
        ("leave", mine.clone()),
        ("leave", entry(3)),
        ("attach", format!("{grant}\n{}", entry(4))),
        ("again", mine.clone()),
        ("again", entry(2)),
        ("wait", entry(5)),
        ("ask", value.clone()),
        ("seize", format!("{}\n{value}", entry(6))),
    ] {
        // A shorter term than is left: it has to be written all the same.
        let reply = on.step(verb, &who, "10");
        let refused = |reply: &Reply| matches!(reply, Reply::Error(error) if error.contains("READONLY"));
        demand(refused(&reply), || format!("{verb} on a replica: {reply:?}"))?;
        let list = on.both([verb, &who, "10"], [verb, &who, "10"]);
        demand(list.list().iter().all(refused), || format!("{verb} on a replica: {list:?}"))?;
    }
    let heard = holder.heard();
    demand(heard.is_empty(), || format!("a replica has told {heard:?}"))?;
    demand(on.link.call(&["GET", KEYS[0]]) == Reply::Text(value), || "the lock has changed".into())
}

/// A full server that refuses to revoke tells nobody.
pub(crate) fn full(script: &str) -> Verdict {
    let server = Server::start();
    let mut on = Single { link: Link::open(&server), script };
    let mut holder = Link::listening(&server, "SUBSCRIBE", CHANNEL);
    let mine = entry(1);
    let token = on.token("try", &mine);
    let value = format!("{mine} {token}");
    on.link.call(&["CONFIG", "SET", "maxmemory", "1"]);
    for (verb, who) in [("ask", value.clone()), ("seize", format!("{}\n{value}", entry(2)))] {
        let reply = on.step(verb, &who, "stuck");
        demand(matches!(&reply, Reply::Error(error) if error.contains("OOM")), || {
            format!("{verb}: {reply:?}")
        })?;
    }
    let heard = holder.heard();
    demand(heard.is_empty(), || format!("a full server has told {heard:?}"))?;
    demand(on.step("free", &format!("{} {token}", &mine[..36]), "-") == Reply::Number(1), || {
        "not freed".into()
    })
}

/// A clock that goes back, and one far ahead.
pub(crate) fn clock(script: &str) -> Verdict {
    let server = Server::config().movable_clock().start();
    let mut on = Single { link: Link::open(&server), script };
    let cycle = |on: &mut Single<'_>| {
        let token = on.token("try", &entry(1));
        on.step("free", &format!("{} {token}", &entry(1)[..36]), "-");
        token
    };
    let first = cycle(&mut on);
    server.set_clock(7_200);
    let ahead = cycle(&mut on);
    demand(ahead > first + 7_000_000_000, || format!("{ahead} after {first}, two hours later"))?;
    for offset in [0, -3_599, -1_000_000] {
        server.set_clock(offset);
        let (one, two) = (cycle(&mut on), cycle(&mut on));
        demand(one > ahead && two == one + 1, || format!("{one}, {two} after {ahead}"))?;
    }
    // Past 2^53 microseconds: with as many digits, and with more.
    on.link.call(&["DEL", KEYS[1]]);
    for offset in [7_600_000_000, 9_100_000_000] {
        server.set_clock(offset);
        let reply = on.step("try", &entry(2), "30000");
        demand(matches!(&reply, Reply::Error(error) if error.contains("out of range")), || {
            format!("{reply:?}")
        })?;
        demand(on.link.call(&["EXISTS", KEYS[0], KEYS[1]]) == Reply::Number(0), || "it was written".into())?;
    }
    server.set_clock(0);
    demand(cycle(&mut on) > first, || "the clock is right again".into())
}

/// Tasks of one process that is stopped cost one second in all, not one each, wherever they stand.
pub(crate) fn stopped(script: &str) -> Verdict {
    let server = Server::start();
    let mut on = Single { link: Link::open(&server), script };
    let _stopped = Link::listening(&server, "SUBSCRIBE", CHANNEL);
    let _live = Link::listening(&server, "SUBSCRIBE", "aaaaaaaaaaaaaaaa");
    let live = |number| entry(number).replace(CHANNEL, "aaaaaaaaaaaaaaaa");
    let token = on.token("try", &live(1));
    for number in 0..3 {
        on.step("wait", &entry(16 + number), "30000");
        on.step("wait", &live(32 + number), "30000");
    }
    on.step("free", &format!("{} {token}", &live(1)[..36]), "-");
    // Its second is over.
    on.link.call(&["DEL", KEYS[0]]);
    let mut token = on.token("again", &live(32));
    for number in 1..3 {
        on.step("free", &format!("{} {token}", &live(31 + number)[..36]), "-");
        token = match on.step("again", &live(32 + number), "30000") {
            Reply::Text(token) => token.parse().expect("a token"),
            other => return Err(format!("a stopped process has the lock again: {other:?}")),
        };
    }
    Ok(())
}
